"""The interface between the supervisor and whatever runs a writer: a process of this host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from frazil.host.heartbeat import Heartbeat
from frazil.host.records import ExitRecord, Launch


class ProcessState(StrEnum):
    NEVER = "never launched"
    RUNNING = "running"
    FOREGROUND = "running in the foreground"
    HOSTED = "running in a shared application"
    ENDED = "ended"

    @property
    def is_alive(self) -> bool:
        return self in {ProcessState.RUNNING, ProcessState.FOREGROUND, ProcessState.HOSTED}


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to run, and what the launch's record contains."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """The whole environment of the writer. It may contain secrets, so it is never stored."""
    spec_fingerprint: str
    generation: int
    streams: tuple[str, ...] = ()
    """The streams that the application writes, by name."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A writer at one moment."""

    process: ProcessState
    launch: Launch | None
    """The latest launch; None exactly when the state is NEVER."""
    heartbeat: Heartbeat | None
    """The heartbeat of the latest launch."""
    exits: tuple[ExitRecord, ...]
    """Oldest first, including those of launches in the foreground."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    launch_id: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    lines: tuple[str, ...]
    position: LogPosition


class Launcher(ABC):
    """Runs one writer application, which outlives the process that launched it.

    A launcher holds no resource between calls: another process can open a second one for the same application, and
    observe, stop and read the same writer. Calls block for up to a second; several processes may call at once.
    """

    @abstractmethod
    def launch(self, request: LaunchRequest) -> Launch:
        """Start the writer detached, and return once it runs.

        Raises WriterBusy if one already runs, and leaves it alone; EnvironmentUnusable if the command cannot start.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """The writer's current state. The only side effect is to record an unrecorded exit."""

    @abstractmethod
    def stop(self, *, force: bool) -> None:
        """Ask the writer to end after its current batch; `force` kills it and all its processes.

        Returns at once, is safe to repeat, and does nothing if no supervised writer runs.
        """

    @abstractmethod
    def read_log(self, since: LogPosition | None, *, limit_bytes: int) -> LogChunk | None:
        """Whole lines of the writer's log after a position: up to its last `limit_bytes`.

        Without a position, or with one of an earlier launch, reads from the beginning. None if the log does not exist.
        """
