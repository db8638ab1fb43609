"""A decision about a writer, and the limits (in milliseconds) that it depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from frazil.errors import find_subclasses
from frazil.host.heartbeat import Heartbeat, Phase, Stall
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import ExitRecord, Launch, StopRequest, SupervisorNotes
from frazil.spec.model import StreamSpec


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


@dataclass(frozen=True, slots=True)
class DecisionInput:
    writer: Observation
    declared: ValidDeclaration | UnreadableState | RemovedDeclaration
    desired: DesiredState | UnreadableState
    notes: SupervisorNotes = field(default_factory=SupervisorNotes)
    table_fingerprint: str | None = None
    """The table's fingerprint (`frazil.supervise.desired.table_fingerprint`), if it was read."""
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
