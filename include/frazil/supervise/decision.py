"""A decision about a writer: the action, its cause, and the reason in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WriterAction(StrEnum):
    KEEP = "keep"
    """The writer runs as it should."""
    START = "start"
    STOP = "stop"
    """Stop gracefully: the current batch commits."""
    RESTART = "restart"
    """Stop gracefully. A later decision starts the next writer."""
    KILL = "kill"
    """Kill a writer that makes no progress towards a requested stop."""
    HOLD = "hold"
    """No writer runs, and none may start yet."""
    GIVE_UP = "give up"
    """No writer runs, and an operator must fix the cause. The Airflow task fails once."""
    END = "end"
    """The stream was removed and nothing is left to supervise."""


class Cause(StrEnum):
    ADVANCING = "advancing"
    FOREGROUND = "in the foreground"
    HOSTED = "in a shared application"
    STOPPING = "stopping"
    REMOVED = "removed"
    PAUSED = "paused"
    REQUESTED = "requested"
    SPEC_CHANGED = "spec changed"
    HUNG = "hung"
    SILENT = "silent"
    SPEC_UNREADABLE = "spec unreadable"
    STATE_UNREADABLE = "desired state unreadable"
    FIRST_START = "first start"
    STOPPED = "stopped on request"
    NEEDS_ATTENTION = "needs attention"
    RETURNED = "supervision returned"
    DENIED = "access denied"
    CRASH_LOOP = "crash loop"
    CRASHED = "crashed"
    UNAVAILABLE = "unavailable"
    ENDED = "ended by itself"


@dataclass(frozen=True, slots=True)
class Decision:
    action: WriterAction
    cause: Cause
    reason: str
    """A sentence for the log, with the numbers behind the decision."""
    until_ms: int | None = None
    """When a hold ends by itself; None if it lasts until an operator or a service changes something."""
    subject: str = ""
    """The launch id or problem that a GIVE_UP is about. The supervisor gives up once per subject."""
