"""The status of a driver in a cluster, and the interface that each kind of cluster implements."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class DriverState(StrEnum):
    UNKNOWN = "unknown"
    """The cluster gave no usable response. The driver may still be running."""
    WAITING = "waiting for the cluster"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    GONE = "gone"
    """The cluster has no record of the driver: it does not run, and its exit status is lost."""

    @property
    def has_ended(self) -> bool:
        return self in {DriverState.SUCCEEDED, DriverState.FAILED, DriverState.KILLED, DriverState.GONE}


@dataclass(frozen=True, slots=True)
class DriverStatus:
    state: DriverState
    reason: str
    """One sentence for operators that explains the state."""
    exit_code: int | None = None
    """Exit code of the driver's Python process; None while the driver runs, or if the cluster does not report it."""


class Driver(Protocol):
    """One driver in a cluster. Keeps no connection open between calls. Each call takes up to 10 s."""

    def status(self) -> DriverStatus:
        """Return the driver's current status. Never raises: if the cluster does not respond, the state is UNKNOWN."""

    def kill(self) -> None:
        """Kill the driver immediately; its current batch is lost. Has no effect on a driver that has ended.

        Raises AccessDenied, or EnvironmentUnusable if the cluster does not respond.
        """

    def log(self, *, limit_bytes: int) -> str | None:
        """Return the last bytes of the driver's standard error and output; None if the cluster has no log (yet)."""
