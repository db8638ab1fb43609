"""Supervises one writer application. Each call of `step` observes, decides, acts and reports. Its state is in the run
folder and the table, so Airflow may replace a supervisor at any time. Two concurrent supervisors do no harm: the lock
allows only one launch, and the other actions may safely be repeated.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from dataclasses import dataclass
from typing import Any

from frazil.errors import EnvironmentUnusable, SpecError, WriterBusy
from frazil.history.points import EventKind, HistoryEvent
from frazil.history.recorder import SupervisionRecorder
from frazil.host.launcher import Launcher, LogPosition
from frazil.host.records import (
    Launch,
    StopRequest,
    read_notes,
    read_supervision_times,
    write_notes,
    write_supervision_times,
)
from frazil.supervise.decision import Cause, Decision, DecisionInput, DesiredState, UnreadableState, WriterAction
from frazil.supervise.decision_rules import FIXED_BY_TABLE_CHANGE, decide
from frazil.supervise.supervised import FetchConnections, SupervisedProgram

log = logging.getLogger(__name__)

MIN_GAP_MS = 30_000
"""Minimum time between steps that counts as a gap. Heartbeats missing in a gap are ignored."""
WATCH_INTERVAL_MS = 10_000
MAX_LOG_BYTES = 64 * 1024
MAX_FIRST_READ_BYTES = 4 * 1024
"""Number of bytes of the log that a new supervisor reads first. Its predecessor has reported the rest."""


@dataclass(frozen=True, slots=True)
class SupervisionStep:
    decision: Decision
    observed: DecisionInput
    problem: str | None
    """The error if the action failed; otherwise None. The next step observes and decides again."""
    writer_log: tuple[str, ...]
    at_ms: int = 0


class Supervisor:
    def __init__(
        self,
        program: SupervisedProgram,
        *,
        connections: FetchConnections = lambda _ids: {},
        launcher: Launcher | None = None,
    ) -> None:
        self._program, self._connections = program, connections
        self._folder = self._program.folder
        self._launcher = launcher or self._program.launcher()
        self._clock = program.clock
        self._supervision = SupervisionRecorder(self._program.history)
        self._last_step_ms, self._watched_since_ms = 0, 0
        self._watch, self._watch_written_ms = read_supervision_times(self._folder), 0
        self._log_position: LogPosition | None = None
        # A step that Airflow cancelled continues in its thread while another begins.
        self._step_lock = threading.Lock()

    def step(self) -> SupervisionStep:
        """Observe, decide and act once, in about a second. Expected errors become `SupervisionStep.problem`."""
        return self._step(act=True)

    def preview(self) -> SupervisionStep:
        return self._step(act=False)

    def pause_for_user(self, *, by: str, reason: str) -> SupervisionStep:
        """Pause the program and stop the writer, even if the pause cannot be stored. Raises the catalog's errors."""
        try:
            self._program.pause(by=by, reason=reason)
        finally:
            self.stop(f"{by}: {reason}")
        return self.step()

    def clear_for_user(self, *, by: str, reason: str) -> SupervisionStep:
        """Restart a running writer, or let the supervisor retry. End a pause that the user `by` requested."""
        with self._step_lock:
            launch = self._launcher.observe().launch
            self._update_notes(given_up=None, cleared=launch.id if launch else None)
        self.stop(f"{by}: {reason}")
        self._program.resume(by=by, reason=reason)
        return self.preview()

    def stop(self, reason: str) -> None:
        """Ask a running writer to end after its current batch. Does not change the desired state."""
        with self._step_lock:
            observation = self._launcher.observe()
            if observation.process.is_alive and observation.launch is not None:
                self._ask_to_stop(observation.launch, Cause.REQUESTED, reason, now_ms=self._clock())

    def _step(self, *, act: bool) -> SupervisionStep:
        with self._step_lock:
            now_ms = self._clock()
            if now_ms - self._last_step_ms > MIN_GAP_MS:
                self._watched_since_ms = now_ms
            self._last_step_ms = now_ms
            self._record_activity(now_ms, write=act)
            observed = self._observe()
            decision = decide(observed, now_ms=now_ms)
            problem = None
            if act:
                problem = self._carry_out(decision, observed, now_ms=now_ms)
                launch_id = observed.launch.id if observed.launch else ""
                subject = f"{decision.action} {decision.cause} {launch_id} {problem or ''}"
                entry = to_history_event(decision, observed.desired, problem, now_ms=now_ms)
                self._supervision.record(entry, subject=subject, now_ms=now_ms)
            return SupervisionStep(decision, observed, problem, self._read_log(), now_ms)

    def _record_activity(self, now_ms: int, *, write: bool) -> None:
        self._watch = self._watch.record_step(now_ms, gap_ms=MIN_GAP_MS)
        if write and (
            abs(now_ms - self._watch_written_ms) >= WATCH_INTERVAL_MS or self._watch.returned_at_ms == now_ms
        ):
            try:
                write_supervision_times(self._folder, self._watch)
            except OSError as error:  # a full disk must not end the supervision of a running writer
                log.warning("%s: cannot store the time of this check: %s", self._program.name, error)
            self._watch_written_ms = now_ms

    def _observe(self) -> DecisionInput:
        writer = self._launcher.observe()
        declared = self._program.read()
        observed = DecisionInput(
            writer=writer,
            declared=declared,
            desired=self._program.desired(),
            policy=self._program.policy(),
            notes=read_notes(self._folder),
            watched_since_ms=self._watched_since_ms,
            away_since_ms=self._watch.away_since_ms,
            returned_at_ms=self._watch.returned_at_ms,
        )
        exit_ = observed.exit
        if exit_ is None or exit_.code not in FIXED_BY_TABLE_CHANGE:
            return observed
        return dataclasses.replace(observed, table_fingerprint=self._program.table_fingerprint())

    def _carry_out(self, decision: Decision, observed: DecisionInput, *, now_ms: int) -> str | None:
        launch = observed.launch
        if decision.action is WriterAction.START:
            return self._launch(observed)
        if decision.action in {WriterAction.STOP, WriterAction.RESTART} and launch is not None:
            self._ask_to_stop(launch, decision.cause, decision.reason, now_ms=now_ms)
        elif decision.action is WriterAction.KILL:
            self._launcher.stop(force=True)
        return None

    def _launch(self, observed: DecisionInput) -> str | None:
        desired = observed.desired
        generation = desired.generation if isinstance(desired, DesiredState) else 0
        try:
            request = self._program.build_launch_request(generation=generation, connections=self._connections)
            launch = self._launcher.launch(request)
        except (WriterBusy, EnvironmentUnusable, SpecError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        self._program.on_launch()
        self._log_position = LogPosition(launch.id, 0)
        return None

    def _ask_to_stop(self, launch: Launch, cause: Cause, reason: str, *, now_ms: int) -> None:
        """Record the stop request, then send the signal: the writer's end counts as requested."""
        self._update_notes(stop=StopRequest(launch.id, now_ms, cause, reason))
        self._launcher.stop(force=False)

    def _update_notes(self, **changes: Any) -> None:
        write_notes(self._folder, dataclasses.replace(read_notes(self._folder), **changes))

    def _read_log(self) -> tuple[str, ...]:
        limit_bytes = MAX_LOG_BYTES if self._log_position else MAX_FIRST_READ_BYTES
        chunk = self._launcher.read_log(self._log_position, limit_bytes=limit_bytes)
        if chunk is None:
            return ()
        self._log_position = chunk.position
        return chunk.lines


_ACTION_TEXTS = {
    WriterAction.START: "the writer is started",
    WriterAction.STOP: "the writer is stopped",
    WriterAction.RESTART: "the writer is restarted",
    WriterAction.KILL: "the writer is killed",
    WriterAction.GIVE_UP: "the supervisor gives up; an operator must fix the cause",
}
"""The history's messages by action. Holds are not recorded."""


def to_history_event(
    decision: Decision, desired: DesiredState | UnreadableState, problem: str | None, *, now_ms: int
) -> HistoryEvent | None:
    if decision.cause is Cause.PAUSED and isinstance(desired, DesiredState):
        # The time and the text are constant, because each later supervisor records the pause again.
        reason = f": {desired.reason}" if desired.reason else ""
        return HistoryEvent(
            desired.at_ms, EventKind.SUPERVISION, f"the stream is paused by {desired.by or 'an unknown user'}{reason}"
        )
    if decision.action not in _ACTION_TEXTS:
        return None
    problem_text = f"; the action failed: {problem}" if problem else ""
    sentence = f"{_ACTION_TEXTS[decision.action]} ({decision.cause}): {decision.reason}{problem_text}"
    return HistoryEvent(now_ms, EventKind.SUPERVISION, sentence)
