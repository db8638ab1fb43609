"""Determines what a user did to a deferred task, from the task's current state in Airflow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow.sdk import TaskInstanceState
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetTaskStates, TaskStatesResult

from frazil.host.supervising_run import read_supervising_run

if TYPE_CHECKING:
    from frazil.supervise.supervisor import SupervisionStep, Supervisor

CHANGED_BY = "Airflow"
"""The author of changes of the desired state that users make in Airflow."""


class TaskAction(StrEnum):
    """What a user did to a task, or why else Airflow killed the task's trigger."""

    MARKED = "marked"
    """A user marked the task as failed or as success: the writer stops, and stays stopped."""
    CLEARED = "cleared"
    """A user cleared the task: a new writer replaces the running writer."""
    DELETED = "deleted with its run"
    """A user deleted the run: the writer stops, and the stream's desired state does not change."""
    TAKEN_OVER = "taken over by another triggerer"
    """No user acted: Airflow moved the trigger to another triggerer."""
    UNKNOWN = "changed in an unknown way"


@dataclass(frozen=True, slots=True)
class DeferredTask:
    try_number: int
    state_now: str | None
    exists_now: bool
    try_number_now: int | None
    """The try that supervises the writer now; None if no try of this run does."""


def find_task_action(task: DeferredTask) -> TaskAction:
    if not task.exists_now:
        return TaskAction.DELETED
    if task.state_now in {"failed", "success", "skipped", "upstream_failed", "removed"}:
        return TaskAction.MARKED
    if task.state_now != TaskInstanceState.DEFERRED:
        return TaskAction.CLEARED
    # Already deferred again as another try, so a user cleared it.
    return TaskAction.CLEARED if (task.try_number_now or 0) > task.try_number else TaskAction.TAKEN_OVER


async def fetch_task(stream: str, *, dag_id: str, run_id: str, task_id: str, try_number: int) -> DeferredTask:
    """Read the task's state from Airflow, and the try that supervises now from the run folder.

    Raises the errors of the task SDK.
    """
    request = GetTaskStates(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id])
    # Awaited, not sent from a thread: a slow Airflow would exhaust the threads.
    answer = await task_runner.SUPERVISOR_COMMS.asend(request)
    if not isinstance(answer, TaskStatesResult):
        raise AirflowRuntimeError(answer) if isinstance(answer, ErrorResponse) else TypeError(f"{answer!r}")
    tasks = answer.task_states.get(run_id, {})
    run = read_supervising_run(stream)
    number = run.try_number if run is not None and run.run_id == run_id else None
    return DeferredTask(try_number, tasks.get(task_id), task_id in tasks, number)


def apply_action(action: TaskAction, supervisor: Supervisor, *, run_id: str) -> SupervisionStep:
    """Apply a user's action on the task to the writer. Return the supervisor's step."""
    if action is TaskAction.MARKED:
        return supervisor.pause_for_user(by=CHANGED_BY, reason=f"the run {run_id} was marked failed or success")
    if action is TaskAction.CLEARED:
        return supervisor.clear_for_user(by=CHANGED_BY, reason=f"the run {run_id} was cleared")
    if action is not TaskAction.TAKEN_OVER:
        supervisor.stop(f"{CHANGED_BY}: the run {run_id} was {action}")
    return supervisor.preview()
