"""What a person did in Airflow to a task that was deferred, read from the state that the task is in now."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow.sdk import TaskInstanceState

if TYPE_CHECKING:
    from frazil.supervise.supervisor import Step, Supervisor

BY = "Airflow"

_ENDED = frozenset(
    {
        TaskInstanceState.FAILED,
        TaskInstanceState.SUCCESS,
        TaskInstanceState.SKIPPED,
        TaskInstanceState.UPSTREAM_FAILED,
        TaskInstanceState.REMOVED,
    }
)


class Act(StrEnum):
    MARKED = "marked"
    """As failed or as success: it shall stop, and stay stopped."""
    CLEARED = "cleared"
    """It shall begin anew."""
    DELETED = "deleted with its run"
    """It shall stop; what is wanted of the stream stays as it was."""
    TAKEN_OVER = "taken over by another triggerer"
    """No person's act at all: Airflow deals a deferred task's trigger out again, and calls that a kill as well."""
    UNKNOWN = "changed in a way that cannot be looked up"


def act_of(states: Mapping[str, Mapping[str, str | None]], *, run_id: str, task_id: str) -> Act:
    """Which act leads from a deferred task to this one; `states` are task states by run id and task id."""
    tasks = states.get(run_id, {})
    if task_id not in tasks:
        return Act.DELETED
    state = tasks[task_id]
    if state in _ENDED:
        return Act.MARKED
    return Act.TAKEN_OVER if state == TaskInstanceState.DEFERRED else Act.CLEARED


def follow(act: Act, supervisor: Supervisor, *, run_id: str) -> Step:
    """Do to the writer what the person did to its task."""
    if act is Act.MARKED:
        return supervisor.person_stopped(by=BY, reason=f"the run {run_id} was marked failed or success")
    if act is Act.CLEARED:
        return supervisor.person_cleared(by=BY, reason=f"the run {run_id} was cleared")
    if act is not Act.TAKEN_OVER:
        supervisor.stop(f"{BY}: the run {run_id} was {act}")
    return supervisor.look()
