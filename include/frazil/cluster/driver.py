"""What a cluster tells of one driver that runs in it, and what a form for YARN or Kubernetes must answer."""

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
    """The cluster answers, and does not know the driver any more: it runs nowhere, and how it ended is lost."""

    @property
    def has_ended(self) -> bool:
        return self in {DriverState.SUCCEEDED, DriverState.FAILED, DriverState.KILLED, DriverState.GONE}


@dataclass(frozen=True, slots=True)
class DriverStatus:
    state: DriverState
    reason: str
    """A sentence, for people."""
    exit_code: int | None = None
    """Of the driver's Python, once it has ended and where the cluster tells it."""


class Driver(Protocol):
    """One driver in a cluster. It holds no resource between calls, each of which takes 10 s at most."""

    def status(self) -> DriverStatus:
        """What the cluster tells now. Never raises: a cluster that does not answer is the state UNKNOWN."""

    def kill(self) -> None:
        """End the driver at once, without its current batch; safe to repeat, and after its end.

        Raises AccessDenied, and EnvironmentUnusable if the cluster does not answer.
        """

    def log(self, *, limit_bytes: int) -> str | None:
        """The last bytes of what it wrote to its standard error and output; None where the cluster has none (yet)."""
