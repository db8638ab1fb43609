"""The status of a driver in a cluster, and the interface that is implemented for each kind of cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class DriverState(StrEnum):
    """The state of a driver in a cluster."""

    UNKNOWN = "unknown"
    """The cluster gave no usable response. The driver may still run."""
    WAITING = "waiting for the cluster"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    GONE = "gone"
    """The cluster has no record of the driver. The driver does not run, and its exit code is lost."""

    @property
    def has_ended(self) -> bool:
        return self in {DriverState.SUCCEEDED, DriverState.FAILED, DriverState.KILLED, DriverState.GONE}


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """The state of a driver, with a reason."""

    state: DriverState
    reason: str
    """A sentence for operators that explains the state."""
    exit_code: int | None = None
    """The exit code of the driver's Python; None while the driver runs, or if the cluster does not report it."""


class Driver(Protocol):
    """One driver in a cluster. Keeps no connection between calls. Each call takes at most about 10 s."""

    def status(self) -> DriverStatus:
        """Return the driver's current status. Never raises an error: if the cluster does not respond, the state is
        UNKNOWN.
        """

    def kill(self) -> None:
        """Kill the driver immediately; its current batch is not committed. Does nothing if the driver has ended.

        Raises AccessDenied, and EnvironmentUnusable if the cluster does not respond.
        """

    def log(self, *, limit_bytes: int) -> str | None:
        """Return the last part of the driver's standard error and output; None if the cluster does not have its log."""
