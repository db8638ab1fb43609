"""Describes the state of the DAG run that an action started: one sentence, from what its tasks reported. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

UNFINISHED = ("queued", "running")
FAILED_TASKS = ("failed", "up_for_retry")
ACTIVE_TASKS = ("running", "deferred")


@dataclass(frozen=True, slots=True)
class TaskResult:
    task: str
    state: str
    message: str = ""
    """What the task reported with `frazil.airflow.dag_profile.report`, or the error with which it failed."""
    map_index: int = -1


@dataclass(frozen=True, slots=True)
class RunResult:
    state: str
    """The run's state in Airflow: queued, running, success or failed."""
    message: str
    log: str
    """The path, in Airflow's UI, of the task that explains the state, or of the run."""
    finished: bool


def describe_run(dag: str, run: str, state: str, tasks: Sequence[TaskResult], *, paused: bool) -> RunResult:
    """Return the state of a run. `tasks` are in the order in which they ended; those that have not ended come last."""
    said, task = _sentence(dag, state, tasks, paused=paused)
    path = f"/dags/{quote(dag)}/runs/{quote(run, safe='')}"
    if task is not None:
        mapped = f"/mapped/{task.map_index}" if task.map_index >= 0 else ""
        path = f"{path}/tasks/{quote(task.task)}{mapped}"
    return RunResult(state, said, path, finished=state not in UNFINISHED)


def _sentence(dag: str, state: str, tasks: Sequence[TaskResult], *, paused: bool) -> tuple[str, TaskResult | None]:
    if paused and state in UNFINISHED:
        return f"The run waits, because the DAG {dag} is paused in Airflow: unpause it.", None
    failed = next((one for one in tasks if one.state in FAILED_TASKS), None)
    if failed is not None:
        again = " and will be retried" if failed.state == "up_for_retry" else ""
        return f"The task {failed.task} failed{again}: {failed.message or 'its log has the error'}", failed
    if state == "success":
        reports = [one for one in tasks if one.message]
        said = "; ".join(dict.fromkeys(one.message.rstrip(".") for one in reports)) or "The run succeeded"
        return f"{said}.", reports[-1] if reports else None
    if state == "failed":
        return "The run failed before any of its tasks did: see the run in Airflow.", None
    active = next((one for one in tasks if one.state in ACTIVE_TASKS), None)
    return (f"The task {active.task} is running.", active) if active else (f"The run is {state}.", None)
