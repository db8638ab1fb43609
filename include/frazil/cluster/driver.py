"""The status of a driver in a cluster, and the interface that is implemented for each kind of cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class DriverState(StrEnum):
    UNKNOWN = "unknown"
    """The cluster gave no usable response. The driver may still run."""
    WAITING = "waiting for the cluster"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    GONE = "gone"
    """The cluster has no record of the driver, which does not run. Its exit code is lost."""

    @property
    def has_ended(self) -> bool:
        return self in {DriverState.SUCCEEDED, DriverState.FAILED, DriverState.KILLED, DriverState.GONE}


@dataclass(frozen=True, slots=True)
class DriverStatus:
    state: DriverState
    reason: str
    exit_code: int | None = None
    """The exit code of the driver's Python, if it has ended and the cluster reports it."""


class Driver(Protocol):
    """One driver in a cluster. Keeps no connection between calls, which take at most about 10 s."""

    def status(self) -> DriverStatus:
        """Return the driver's current status; UNKNOWN if the cluster does not respond."""

    def kill(self) -> None:
        """Kill the driver, and thereby its current batch. Raises AccessDenied and EnvironmentUnusable."""

    def log(self, *, limit_bytes: int) -> str | None:
        """Return the last part of the driver's standard error and output; None if the cluster does not have its log."""
