"""All that a decision rests on, seen at one moment: no decision reads a clock, a file or a process itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from frazil.errors import kinds
from frazil.host.heartbeat import Heartbeat, Stall
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import ExitRecord, Launch, Notes, StopRequest


class DesiredMode(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Desired:
    """What people want of a stream."""

    mode: DesiredMode = DesiredMode.RUNNING
    generation: int = 0
    """Raised by every act of a person."""
    restart_generation: int = 0
    """The generation of the last act that asked for a restart."""
    reason: str = ""
    by: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What should be read could not be: never a ground to touch a writer that runs."""

    problem: str


@dataclass(frozen=True, slots=True)
class Removed:
    """Nobody declares the stream any more."""

    since_ms: int


@dataclass(frozen=True, slots=True)
class Declared:
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Observed:
    writer: Observation
    declared: Declared | Unreadable | Removed
    desired: Desired | Unreadable
    notes: Notes = field(default_factory=Notes)
    table_fingerprint: str | None = None
    """What a person's command may change in the table; None where it was not looked at."""
    watched_since_ms: int = 0
    """Since when somebody has watched without a gap: silence before that proves nothing (the machine slept)."""

    away_since_ms: int = 0
    """The last look on this host before nobody looked here; 0 where none is known."""
    returned_at_ms: int = 0
    """When somebody looked again, after `away_since_ms`."""

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
        """What holds a writer back that lives; of one that ended, how it ended says more."""
        return self.heartbeat.stall if self.heartbeat and self.process.is_alive else None

    @property
    def exit(self) -> ExitRecord | None:
        """How the latest launch ended; None while it runs, and after one in the foreground."""
        last = self.writer.exits[-1] if self.writer.exits else None
        return last if last and self.launch and last.launch_id == self.launch.id else None

    @property
    def stop_request(self) -> StopRequest | None:
        """The stop that was asked of the latest launch."""
        asked = self.notes.stop
        return asked if asked and self.launch and asked.launch_id == self.launch.id else None


def error_name(code: int) -> str:
    """The error class that a writer ends with that code for, or an empty string."""
    names = [cls.__name__ for cls in kinds() if cls.exit_code == code and code > 1]
    return names[0] if names else ""
