"""The state of a driver in a cluster, and the interface that YARN and Kubernetes implement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class DriverState(StrEnum):
    UNKNOWN = "unknown"
    """The cluster gave no usable answer: the driver may well run."""
    WAITING = "waiting for the cluster"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    GONE = "gone"
    """The cluster answers, but no longer knows the driver: it runs nowhere, and how it ended is lost."""

    @property
    def has_ended(self) -> bool:
        return self in {DriverState.SUCCEEDED, DriverState.FAILED, DriverState.KILLED, DriverState.GONE}


@dataclass(frozen=True, slots=True)
class DriverStatus:
    state: DriverState
    reason: str
    """A sentence for operators."""
    exit_code: int | None = None
    """Exit code of the driver's Python, once it has ended and if the cluster reports it."""


class Driver(Protocol):
    """One driver in a cluster. It holds no resource between calls; each takes up to 10 s."""

    def status(self) -> DriverStatus:
        """The cluster's current status. Never raises: a cluster that does not answer gives the state UNKNOWN."""

    def kill(self) -> None:
        """End the driver at once, without its current batch; safe to repeat, and after its end.

        Raises AccessDenied, and EnvironmentUnusable if the cluster does not answer.
        """

    def log(self, *, limit_bytes: int) -> str | None:
        """The last bytes of its standard error and output; None if the cluster has none (yet)."""
