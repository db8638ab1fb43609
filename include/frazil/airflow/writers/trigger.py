"""The trigger that supervises a writer and logs the supervisor's decisions to the task."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.sdk import Connection, TaskInstanceState
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetTaskStates, TaskStatesResult
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from frazil import clock
from frazil.airflow.shown_state import MIN_DEFERRAL_S, LineSelector, ShownState
from frazil.errors import SpecError
from frazil.host.supervising_run import (
    announce_given_up,
    confirm_announcement,
    read_supervising_run,
    write_supervising_run,
)
from frazil.spec.units import mask_numbers
from frazil.supervise.decision import WriterAction
from frazil.timetext import format_utc

if TYPE_CHECKING:
    from frazil.host.heartbeat import Stall
    from frazil.status.state import StreamState
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
    """The try of this run that supervises the writer now, if any."""


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
    if action is TaskAction.MARKED:
        return supervisor.pause_for_user(by=CHANGED_BY, reason=f"the run {run_id} was marked failed or success")
    if action is TaskAction.CLEARED:
        return supervisor.clear_for_user(by=CHANGED_BY, reason=f"the run {run_id} was cleared")
    if action is not TaskAction.TAKEN_OVER:
        supervisor.stop(f"{CHANGED_BY}: the run {run_id} was {action}")
    return supervisor.preview()


LOG_INTERVAL_S = 3_600.0
"""Seconds between two log lines of an unchanged state: long, because Airflow never rotates a deferred task's log."""
REMOVAL_DELAY_S = 60.0
"""Seconds before the task of a removed stream ends: its DAG may still have a schedule, or its file may return."""
NEXT_TRY_TIMEOUT_S = 3.0
"""Seconds within which the next try of a cleared task records itself, if its trigger runs on this host."""
KILL_TIMEOUT_S = 28.0
"""Maximum time that `on_kill` waits for the user's action: Airflow allows a trigger 30 s for a kill."""

THREADS = ThreadPoolExecutor(max_workers=32, thread_name_prefix="frazil-writers")
"""Threads for blocking calls: one unresponsive catalog in the event loop's few threads would delay every writer."""

RUNNING_ACTIONS: set[asyncio.Task[None]] = set()
"""References to unfinished work of killed triggers, because the event loop keeps only weak references."""

T = TypeVar("T")


class UserActionTrigger(BaseTrigger):
    """Applies a user's action on a task to the task's stream. Airflow kills the trigger for each such action."""

    stream: str
    argument_names: ClassVar[tuple[str, ...]]
    """The names of the attributes from which Airflow recreates the trigger."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in self.argument_names}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def on_kill(self) -> None:
        """Apply the user's action. The action continues although Airflow 3.3 cancels the trigger every second."""
        work = asyncio.create_task(self._apply_user_action())
        RUNNING_ACTIONS.add(work)
        work.add_done_callback(RUNNING_ACTIONS.discard)
        ends_at_s = time.monotonic() + KILL_TIMEOUT_S
        while not work.done() and time.monotonic() < ends_at_s:
            with suppress(asyncio.CancelledError):
                await asyncio.wait({work}, timeout=max(ends_at_s - time.monotonic(), 0))
        if work.done():
            work.result()

    async def _apply_user_action(self) -> None:
        raise NotImplementedError

    async def _task_action(self) -> TaskAction:
        try:
            action = find_task_action(await asyncio.wait_for(self._fetch_task(), 20.0))
        except Exception:
            self.log.warning("Cannot read the task's state from Airflow.", exc_info=True)
            return TaskAction.UNKNOWN
        if action is TaskAction.TAKEN_OVER:
            await asyncio.sleep(NEXT_TRY_TIMEOUT_S)
            with suppress(Exception):  # then the first result is used, and the writer continues
                action = find_task_action(await asyncio.wait_for(self._fetch_task(), NEXT_TRY_TIMEOUT_S))
        return action

    async def _fetch_task(self) -> DeferredTask:
        instance = self.task_instance
        if instance is None:
            raise LookupError("a trigger without a task")
        ids = {"dag_id": instance.dag_id, "run_id": instance.run_id, "task_id": instance.task_id}
        return await fetch_task(self.stream, **ids, try_number=instance.try_number)

    async def _preload(self) -> None:
        """Read the task's state once, so that Airflow's modules are imported before a kill."""
        with suppress(Exception):
            await self._fetch_task()


class WriterTrigger(UserActionTrigger):
    """Runs a step of a writer's supervisor every few seconds. All state is in the run folder."""

    argument_names = ("stream", "streams", "application", "poll_seconds", "shared", "parent")

    def __init__(  # noqa: PLR0913 - what it is made again from
        self,
        *,
        stream: str,
        streams: str,
        application: str,
        poll_seconds: float,
        shared: bool = False,
        parent: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shared, self.parent = shared, parent
        self.stream, self.streams, self.application = stream, streams, application
        self.poll_seconds = poll_seconds
        self._supervisor: Supervisor | None = None
        self._preloading: asyncio.Task[None] | None = None
        self._last_logged: tuple[object, ...] = ()
        self._logged_at_s, self._unchanged_since_ms = 0.0, 0
        self._shown = ShownState(self.log.info)
        self._stall: Stall | None = None
        self._lines = LineSelector()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await run_in_thread(self._begin)
        supervisor = await self._make_supervisor()
        self._preloading = asyncio.create_task(self._preload())
        settled_at_s = time.monotonic() + MIN_DEFERRAL_S
        while True:
            step = await run_in_thread(supervisor.step)
            self._log_step(step)
            self._show(step)
            if step.decision.action == "give up":
                await run_in_thread(partial(self._announce, step))
                state = self._stream_state(step)
                await self._shown.write_final_state(self.task_instance, state.state, state.sentence)
                await asyncio.sleep(max(settled_at_s - time.monotonic(), 0))
                decision = step.decision
                yield TriggerEvent(
                    {
                        "cause": str(decision.cause),
                        "reason": decision.reason,
                        "subject": decision.subject,
                        "table_fingerprint": step.observed.table_fingerprint,
                    }
                )  # type: ignore[no-untyped-call]
                return
            if step.decision.action == "end":
                # If the run ended while its DAG still had a schedule, the next run would start immediately.
                await asyncio.sleep(REMOVAL_DELAY_S)
                # The DAG is about to be removed with its declaration; then no worker could end the task.
                if (await run_in_thread(supervisor.preview)).decision.action == "end":
                    yield TaskSuccessEvent()
                    return
            await asyncio.sleep(self._wait_s(step))

    def _wait_s(self, step: SupervisionStep) -> float:
        """Return the seconds until the next step: fewer than usual if a restart is due earlier."""
        due_ms = step.decision.until_ms
        if due_ms is None or due_ms <= step.at_ms:
            return self.poll_seconds
        return min(self.poll_seconds, (due_ms - step.at_ms) / 1_000)

    async def _apply_user_action(self) -> None:
        action = await self._task_action()
        self.log.info("The task was %s in Airflow.", action)
        if action is TaskAction.TAKEN_OVER:
            return
        supervisor = await self._make_supervisor()
        run_id = self.task_instance.run_id if self.task_instance else "unknown"
        step = await run_in_thread(partial(apply_action, action, supervisor, run_id=run_id))
        self._log_step(step)
        if action is TaskAction.MARKED:  # the state of a task that was cleared is its next try's
            self._show(step)

    def _show(self, step: SupervisionStep) -> None:
        state = self._stream_state(step)
        self._shown.show(self.task_instance, state.state, state.sentence)

    def _stream_state(self, step: SupervisionStep) -> StreamState:
        from frazil.status.derive import derive_from_decision  # loads PyIceberg, which the supervisor has loaded
        from frazil.status.state import StreamState

        known = StreamState(self.stream)
        return derive_from_decision(known, step.observed, step.decision, now_ms=step.at_ms, problem=step.problem)

    def _begin(self) -> None:
        """Record which run supervises the writer on this host, which may differ from the worker's host."""
        if (instance := self.task_instance) is None:
            return
        try:
            confirm_announcement(self.stream, run_id=instance.run_id)
            write_supervising_run(self.stream, instance.run_id, instance.try_number)
        except OSError as error:  # a full disk must not end the supervision of a running writer
            self.log.warning("%s: cannot record which run supervises it: %s", self.stream, error)

    def _announce(self, step: SupervisionStep) -> None:
        if (instance := self.task_instance) is None:
            return
        try:
            run, reason, table = instance.run_id, step.decision.reason, step.observed.table_fingerprint
            announce_given_up(self.stream, step.decision.subject, run_id=run, reason=reason, table_fingerprint=table)
        except OSError as error:  # the run fails nevertheless, and the next run may fail for the same reason
            self.log.warning("%s: cannot record that the supervisor gave up: %s", self.stream, error)

    async def _make_supervisor(self) -> Supervisor:
        """Return the supervisor, created once in a thread because it imports PyIceberg."""
        if self._supervisor is None:
            self._supervisor = await run_in_thread(partial(self._build_supervisor, asyncio.get_running_loop()))
        return self._supervisor

    def _build_supervisor(self, loop: asyncio.AbstractEventLoop) -> Supervisor:
        import frazil.status.derive  # noqa: F401 - so that the event loop never waits for this import
        from frazil.supervise.supervised import Program, SupervisedApplication, SupervisedStream  # loads PyIceberg
        from frazil.supervise.supervisor import Supervisor  # loads PyIceberg

        def connections(ids: frozenset[str]) -> Mapping[str, str]:
            return asyncio.run_coroutine_threadsafe(_read_connections(ids), loop).result(30.0)

        program = Program(self.stream, Path(self.streams), Path(self.application), self.parent)
        supervised = SupervisedApplication(program) if self.shared else SupervisedStream(program)
        return Supervisor(supervised, connections=connections)

    def _log_step(self, step: SupervisionStep) -> None:
        """Log the decision and new lines of the writer's log. Logs an unchanged decision once an hour."""
        from frazil.host.writer_log import parse_levels

        for level, line in self._lines.lines_to_copy(parse_levels(step.writer_log), now_s=time.monotonic()):
            self.log.log(level, "writer | %s", line)
        self._report_stall(step.observed.stall)
        decision = step.decision
        if decision.action is WriterAction.START:
            self._lines.begin()
        parts = (decision.action, decision.cause, decision.until_ms, mask_numbers(step.problem or ""))
        now_s, now_ms = time.monotonic(), clock.now_ms()
        if parts == self._last_logged and now_s - self._logged_at_s < LOG_INTERVAL_S:
            return
        since = f", unchanged since {format_utc(self._unchanged_since_ms)}" if parts == self._last_logged else ""
        self._unchanged_since_ms = self._unchanged_since_ms if since else now_ms
        self._last_logged, self._logged_at_s = parts, now_s
        self.log.info("%s: %s (%s)%s: %s", self.stream, decision.action, decision.cause, since, decision.reason)
        if step.problem:
            self.log.error("%s: the action failed and will be retried: %s", self.stream, step.problem)

    def _report_stall(self, stall: Stall | None) -> None:
        """Warn when a stall begins or ends, but not when only its numbers change."""
        before, self._stall = self._stall, stall
        if (before and before.kind) == (stall and stall.kind):
            return
        if stall is None and before is not None:
            self.log.warning("%s: the stall (%s) is over.", self.stream, before.kind)
        elif stall is not None:
            self.log.warning("%s: stalled (%s): %s", self.stream, stall.kind, stall.failure)


async def run_in_thread(blocking: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(THREADS, blocking)


async def _read_connections(ids: frozenset[str]) -> dict[str, str]:
    """Read Airflow connections as JSON, by id. Never log them. Raises SpecError if one is missing."""
    found = {}
    for name in sorted(ids):
        try:
            connection = await Connection.async_get(name)
        except AirflowNotFoundException:
            problem = f"the declaration refers to the Airflow connection {name!r}, which does not exist; add it"
            raise SpecError(problem) from None
        fields = ("conn_type", "host", "login", "password", "schema", "port")
        known = {field: getattr(connection, field) for field in fields}
        found[name] = json.dumps({**known, "extra": connection.extra_dejson})
    return found
