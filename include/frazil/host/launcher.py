"""The interface through which a supervisor launches, observes and stops a writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from frazil.host.heartbeat import Heartbeat
from frazil.host.records import ExitRecord, Launch


class ProcessState(StrEnum):
    NEVER_LAUNCHED = "never launched"
    RUNNING = "running"
    FOREGROUND = "running in the foreground"
    HOSTED = "running in a shared application"
    ENDED = "ended"

    @property
    def is_alive(self) -> bool:
        return self in {ProcessState.RUNNING, ProcessState.FOREGROUND, ProcessState.HOSTED}


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The command to run, and the content of the launch's record."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """The whole environment of the writer. It may contain secrets, so it is never stored."""
    spec_fingerprint: str
    generation: int
    streams: tuple[str, ...] = ()
    """Names of the streams that the application writes."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a writer at one time."""

    process: ProcessState
    launch: Launch | None
    """The latest launch; None if and only if `process` is NEVER_LAUNCHED."""
    heartbeat: Heartbeat | None
    """The heartbeat of the latest launch."""
    exits: tuple[ExitRecord, ...]
    """The exits, oldest first, including exits of foreground launches."""


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

    A launcher holds no resource between calls: another process can open a launcher for the same application, and
    observe and stop the same writer. Calls block for up to a second; several processes may call at the same time.
    """

    @abstractmethod
    def launch(self, request: LaunchRequest) -> Launch:
        """Start the writer as a detached process, and return once it runs.

        Raises WriterBusy if a writer already runs, which continues. Raises EnvironmentUnusable if the command
        cannot start.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """Return the writer's current state. Also records an exit that no process has recorded."""

    @abstractmethod
    def stop(self, *, force: bool) -> None:
        """Ask the writer to end after its current batch; with `force`, kill the writer and all its processes.

        Does not wait, is idempotent, and does nothing if no supervised writer runs.
        """

    @abstractmethod
    def read_log(self, since: LogPosition | None, *, limit_bytes: int) -> LogChunk | None:
        """Return whole lines of the writer's log after a position, at most the last `limit_bytes`.

        Without a position, or with a position of an earlier launch, reads from the beginning. Returns None if the log
        does not exist.
        """
