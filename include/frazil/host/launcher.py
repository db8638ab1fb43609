"""The contract between the supervisor and whatever runs a writer: a process here, a cluster later."""

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
    ENDED = "ended"

    @property
    def is_alive(self) -> bool:
        return self in {ProcessState.RUNNING, ProcessState.FOREGROUND}


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to run, and what the launch shall be remembered by."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """The whole environment of the writer; it may hold secrets, and is never written down."""
    spec_fingerprint: str
    generation: int
    streams: tuple[str, ...] = ()
    """What the application writes, by name."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a writer."""

    process: ProcessState
    launch: Launch | None
    """The latest launch; None exactly where the state is NEVER."""
    heartbeat: Heartbeat | None
    """Of the latest launch only."""
    exits: tuple[ExitRecord, ...]
    """Oldest first. A launch in the foreground leaves none."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    launch_id: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    lines: tuple[str, ...]
    position: LogPosition


class Launcher(ABC):
    """Runs one writer application where it outlives whoever launched it.

    A launcher holds no resource between calls: any process may make a second one for the same application, which sees,
    stops and reads the same writer. Calls block, for a second at most, and may come from several processes at once.
    """

    @abstractmethod
    def launch(self, request: LaunchRequest) -> Launch:
        """Start the writer detached, and return once it runs.

        Raises WriterBusy, with the running writer untouched, where one runs already; EnvironmentUnusable where the
        command cannot be started at all.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """What there is to see now. It changes nothing but this: an end that nobody wrote down, it writes down."""

    @abstractmethod
    def stop(self, *, force: bool) -> None:
        """Ask the writer to end after the batch at hand; `force` ends it and all its processes at once.

        Returns at once, is safe to repeat, and does nothing where no supervised writer runs.
        """

    @abstractmethod
    def read_log(self, since: LogPosition | None, *, limit_bytes: int) -> LogChunk | None:
        """Whole lines of the writer's log after a position, at most the last `limit_bytes` of them.

        Without a position, or with one of an earlier launch, it starts at the beginning of the log; None where there
        is no log.
        """
