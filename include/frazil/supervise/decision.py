"""Decisions about a writer: their input, their limits (in milliseconds), and the check that it makes progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from frazil.errors import find_subclasses
from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import ExitRecord, Launch, StopRequest, SupervisorNotes
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.timetext import format_elapsed


class DesiredMode(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class DesiredState:
    mode: DesiredMode = DesiredMode.RUNNING
    generation: int = 0
    """Number that increases with each pause, resume and restart."""
    restart_generation: int = 0
    reason: str = ""
    by: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class UnreadableState:
    """A declaration or desired state that cannot be read. This never stops a running writer."""

    problem: str


@dataclass(frozen=True, slots=True)
class RemovedDeclaration:
    since_ms: int


@dataclass(frozen=True, slots=True)
class ValidDeclaration:
    fingerprint: str


SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS

ADVANCE_LIMITS_MS: Mapping[Phase, int] = MappingProxyType(
    {
        **dict.fromkeys((Phase.STARTING, Phase.STAGING, Phase.JOURNALING, Phase.STOPPING), 5 * MINUTE_MS),
        **dict.fromkeys((Phase.TAKING_OVER, Phase.COMMITTING), 10 * MINUTE_MS),
        Phase.WAITING: 6 * MINUTE_MS,
        Phase.ENDED: MINUTE_MS,
    }
)
"""Maximum time without progress in each phase, well above the phase's own timeouts."""


@dataclass(frozen=True, slots=True)
class SupervisionPolicy:
    advance_limits_ms: Mapping[Phase, int] = field(default_factory=lambda: ADVANCE_LIMITS_MS)
    """Maximum time without progress in each phase. A slower writer counts as hung; in WAITING only if it has lag."""
    heartbeat_limit_ms: int = MINUTE_MS
    hung_grace_ms: int = 30 * SECOND_MS
    """How long a hung writer may take to stop before it is killed."""
    removal_grace_ms: int = 10 * SECOND_MS
    """How long a declaration may be missing until the writer stops: editors replace files."""
    first_backoff_ms: int = SECOND_MS
    max_backoff_ms: int = MINUTE_MS
    max_denied_backoff_ms: int = 15 * MINUTE_MS
    """Maximum backoff after refused access: a catalog may lock out frequent clients."""
    moved_ms: int = 5 * MINUTE_MS
    """Time without supervision after which another host may have supervised the stream."""
    crash_limit: int = 5
    """Crashes without a commit, within `crash_window_ms`, after which the supervisor gives up."""
    crash_window_ms: int = 60 * MINUTE_MS

    def backoff_ms(self, crashes: int) -> int:
        return min(self.max_backoff_ms, self.first_backoff_ms << min(max(crashes - 1, 0), 30))

    def denied_backoff_ms(self, denials: int) -> int:
        return min(self.max_denied_backoff_ms, self.max_backoff_ms << min(max(denials - 1, 0), 30))

    @classmethod
    def for_stream(cls, spec: StreamSpec) -> SupervisionPolicy:
        interval_ms = int(spec.commit.longest_interval.total_seconds() * 1000)
        waiting_ms = ADVANCE_LIMITS_MS[Phase.WAITING] + interval_ms
        return cls(MappingProxyType({**ADVANCE_LIMITS_MS, Phase.WAITING: waiting_ms}))


@dataclass(frozen=True, slots=True)
class DecisionInput:
    writer: Observation
    declared: ValidDeclaration | UnreadableState | RemovedDeclaration
    desired: DesiredState | UnreadableState
    policy: SupervisionPolicy = field(default_factory=SupervisionPolicy)
    notes: SupervisorNotes = field(default_factory=SupervisorNotes)
    table_fingerprint: str | None = None
    """The table's fingerprint (`frazil.supervise.desired_state.table_fingerprint`), if it was read."""
    watched_since_ms: int = 0
    """Start of uninterrupted supervision. Earlier missing heartbeats are ignored: the machine may have slept."""
    away_since_ms: int = 0
    """When supervision last left this host; 0 if unknown."""
    returned_at_ms: int = 0

    @property
    def process(self) -> ProcessState:
        return self.writer.process

    @property
    def launch(self) -> Launch | None:
        return self.writer.launch

    @property
    def heartbeat(self) -> Heartbeat | None:
        return self.writer.heartbeat

    @property
    def stall(self) -> Stall | None:
        return self.heartbeat.stall if self.heartbeat and self.process.is_alive else None

    @property
    def exit(self) -> ExitRecord | None:
        """The exit of the latest launch; None while the writer runs, and after a foreground launch."""
        last = self.exits[-1] if self.exits else None
        return last if last and self.launch and last.launch_id == self.launch.id else None

    @property
    def exits(self) -> tuple[ExitRecord, ...]:
        return tuple(exit_ for exit_ in self.writer.exits if exit_.is_supervised)

    @property
    def stop_request(self) -> StopRequest | None:
        stop = self.notes.stop
        return stop if stop and self.launch and stop.launch_id == self.launch.id else None


def describe_request(by: str | None, reason: str | None, at_ms: int | None, *, now_ms: int) -> str:
    """Return who requested a desired state, when, and why, such as "by ada 3 min ago: upgrade"."""
    when = f" {format_elapsed(now_ms - at_ms)} ago" if at_ms else ""
    return f"by {by or 'an unknown user'}{when}{f': {reason}' if reason else ''}"


def error_name(code: int | None) -> str:
    """Return the name of the error that has this exit code; empty for the codes that any program may have."""
    names = [cls.__name__ for cls in find_subclasses() if vars(cls).get("exit_code") == code and (code or 0) > 1]
    return names[0] if names else ""


class WriterAction(StrEnum):
    KEEP = "keep"
    START = "start"
    STOP = "stop"
    """Stop gracefully: the current batch is committed."""
    RESTART = "restart"
    """Stop gracefully. A later decision starts a new writer."""
    KILL = "kill"
    HOLD = "hold"
    """No writer runs, and none may start yet."""
    GIVE_UP = "give up"
    """No writer runs, and an operator must fix the cause. The Airflow task fails, once."""
    END = "end"


class Cause(StrEnum):
    ADVANCING = "advancing"
    FOREGROUND = "in the foreground"
    HOSTED = "in a shared application"
    STOPPING = "stopping"
    REMOVED = "removed"
    PAUSED = "paused"
    REQUESTED = "requested"
    SPEC_CHANGED = "spec changed"
    HUNG = "hung"
    SILENT = "silent"
    """The writer runs, but sends no heartbeats."""
    SPEC_UNREADABLE = "spec unreadable"
    STATE_UNREADABLE = "desired state unreadable"
    FIRST_START = "first start"
    STOPPED = "stopped on request"
    NEEDS_ATTENTION = "needs attention"
    RETURNED = "supervision returned"
    DENIED = "access denied"
    CRASH_LOOP = "crash loop"
    CRASHED = "crashed"
    UNAVAILABLE = "unavailable"
    ENDED = "ended by itself"


@dataclass(frozen=True, slots=True)
class Decision:
    action: WriterAction
    cause: Cause
    reason: str
    until_ms: int | None = None
    """When a hold ends by itself; otherwise None."""
    subject: str = ""
    """The failed launch's id or the problem, for which the supervisor gives up; else empty."""


HEARTBEAT_TTL_MS = 10_000
"""Maximum age of a fresh heartbeat: ten missed heartbeats."""


def get_fresh_heartbeat(writer: Observation, *, now_ms: int) -> Heartbeat | None:
    """Return the heartbeat of a running writer; None if it is stale or the writer has ended."""
    heartbeat = writer.heartbeat
    fresh = heartbeat is not None and now_ms - heartbeat.written_at_ms <= HEARTBEAT_TTL_MS
    return heartbeat if fresh and writer.process.is_alive else None


def has_committed(writer: Observation, table: str) -> bool:
    """Return whether a writer on this host has committed to the table, according to its exits and heartbeat."""
    heartbeat = writer.heartbeat
    tables = {end.table for end in writer.exits if end.committed}
    if heartbeat is not None and heartbeat.last_commit_at_ms is not None:
        tables.add(heartbeat.table)
    return table in tables


def get_known_lag(heartbeat: Heartbeat) -> int | None:
    """Return the lag in a heartbeat; None while the planner cannot reach Kafka, because it may be outdated."""
    stall = heartbeat.stall
    kind, waits = stall.kind if stall else None, heartbeat.phase is Phase.WAITING
    is_old = kind in {StallKind.KAFKA, StallKind.TOPIC} or (kind is StallKind.OFFSETS and waits)
    return None if is_old else heartbeat.lag


def is_fenced(heartbeat: Heartbeat, *, epoch: int) -> bool:
    """Whether the writer can no longer commit, because a newer epoch exists."""
    begins = heartbeat.phase in {Phase.STARTING, Phase.TAKING_OVER}
    return not begins and heartbeat.epoch is not None and heartbeat.epoch < epoch


def describe_progress(heartbeat: Heartbeat | None, launch: Launch, *, now_ms: int) -> str:
    since = format_elapsed(now_ms - launch.launched_at_ms)
    if heartbeat is None:
        return f"{_describe_process(launch)} was launched {since} ago and has sent no heartbeat yet"
    lag_records = get_known_lag(heartbeat)
    lag = "unknown" if lag_records is None else format_count(lag_records, "record")
    commit = heartbeat.last_commit_at_ms
    commit_text = f"{format_elapsed(now_ms - commit)} ago" if commit else "none yet"
    progress_text = f" ({format_count(heartbeat.batch_records, 'record')} read)" if heartbeat.batch_records else ""
    if heartbeat.merged_rows:
        progress_text = f" ({format_count(heartbeat.merged_rows, 'row')} read for its merge)"
    batch = f"epoch {heartbeat.epoch}, batch {heartbeat.batch}{progress_text}"
    return f"{_describe_process(launch)}, up {since}, {heartbeat.phase}, {batch}, lag {lag}, last commit {commit_text}"


def decide_hung(observed: DecisionInput, launch: Launch, *, now_ms: int) -> Decision | None:
    """Return the decision to restart a hung writer. A waiting writer without records to read needs no progress."""
    heartbeat = observed.heartbeat
    if heartbeat is not None:
        heartbeat_age_ms = now_ms - max(heartbeat.written_at_ms, observed.watched_since_ms)
        if heartbeat_age_ms > observed.policy.heartbeat_limit_ms:
            limit = format_elapsed(observed.policy.heartbeat_limit_ms)
            silence_text = f"runs, but has sent no heartbeat for {format_elapsed(heartbeat_age_ms)} (limit {limit})"
            return Decision(WriterAction.RESTART, Cause.SILENT, f"{_describe_process(launch)} {silence_text}")
    phase = _phase(heartbeat)
    stall = heartbeat.stall if heartbeat else None
    has_read_all = not (heartbeat and heartbeat.lag) or (stall is not None and stall.kind is StallKind.LEADER)
    if phase is Phase.WAITING and has_read_all:
        return None
    idle_ms = now_ms - max(_advanced_at_ms(heartbeat, launch), observed.watched_since_ms)
    limit_ms = observed.policy.advance_limits_ms[phase]
    if idle_ms <= limit_ms:
        return None
    reason = (
        f"{_describe_process(launch)} made no progress for {format_elapsed(idle_ms)} while {phase} (limit "
        f"{format_elapsed(limit_ms)})"
    )
    return Decision(WriterAction.RESTART, Cause.HUNG, reason)


def decide_stopping(observed: DecisionInput, launch: Launch, stop: StopRequest, *, now_ms: int) -> Decision:
    heartbeat = observed.heartbeat
    phase = _phase(heartbeat)
    was_hung = stop.cause in {Cause.HUNG, Cause.SILENT}
    idle = phase is Phase.WAITING
    policy = observed.policy
    limit_ms = policy.hung_grace_ms if was_hung else policy.advance_limits_ms[Phase.STOPPING if idle else phase]
    floor_ms = max(stop.requested_at_ms, observed.watched_since_ms)
    idle_ms = now_ms - max(floor_ms, 0 if was_hung else _advanced_at_ms(heartbeat, launch))
    heartbeat_age_ms = now_ms - max(floor_ms, heartbeat.written_at_ms if heartbeat else now_ms)
    since = format_elapsed(now_ms - stop.requested_at_ms)
    sentence = f"{_describe_process(launch)} was asked to stop {since} ago ({stop.reason})"
    if idle_ms > limit_ms or heartbeat_age_ms > policy.heartbeat_limit_ms:
        lasted = format_elapsed(max(idle_ms, heartbeat_age_ms))
        hangs = f"{sentence} and made no progress for {lasted} while {phase} (limit {format_elapsed(limit_ms)})"
        return Decision(WriterAction.KILL, Cause.STOPPING, hangs)
    return Decision(WriterAction.KEEP, Cause.STOPPING, f"{sentence}; its current batch ({phase}) may still commit")


def _phase(heartbeat: Heartbeat | None) -> Phase:
    return heartbeat.phase if heartbeat else Phase.STARTING


def _advanced_at_ms(heartbeat: Heartbeat | None, launch: Launch) -> int:
    return max(launch.launched_at_ms, heartbeat.advanced_at_ms if heartbeat else 0)


def _describe_process(launch: Launch) -> str:
    process = launch.writer or launch.parent
    return f"pid {process.pid}" if process else "the writer"
