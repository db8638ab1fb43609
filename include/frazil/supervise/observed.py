"""The input of a decision, observed at one point in time. The decision itself reads no clock, file or process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from frazil.errors import find_subclasses
from frazil.host.heartbeat import Heartbeat, Stall
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import ExitRecord, Launch, StopRequest, SupervisorNotes


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
    """No file has declared the stream since `since_ms`."""

    since_ms: int


@dataclass(frozen=True, slots=True)
class ValidDeclaration:
    """A valid declaration, identified by its fingerprint."""

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
    """When supervision returned to this host after `away_since_ms`."""

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
        """Why a running writer makes no progress, or None."""
        return self.heartbeat.stall if self.heartbeat and self.process.is_alive else None

    @property
    def exit(self) -> ExitRecord | None:
        """The exit of the latest launch; None while the writer runs, and after a foreground launch."""
        last = self.exits[-1] if self.exits else None
        return last if last and self.launch and last.launch_id == self.launch.id else None

    @property
    def exits(self) -> tuple[ExitRecord, ...]:
        """Exits of supervised launches, oldest first."""
        return tuple(exit_ for exit_ in self.writer.exits if exit_.is_supervised)

    @property
    def stop_request(self) -> StopRequest | None:
        stop = self.notes.stop
        return stop if stop and self.launch and stop.launch_id == self.launch.id else None


def error_name(code: int) -> str:
    names = [cls.__name__ for cls in find_subclasses() if vars(cls).get("exit_code") == code and code > 1]
    return names[0] if names else ""
