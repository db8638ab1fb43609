"""A decision about a writer: the action, its cause, and the sentence for the log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WriterAction(StrEnum):
    KEEP = "keep"
    """A writer runs, as wanted."""
    START = "start"
    STOP = "stop"
    """Stop gracefully: the current batch commits."""
    RESTART = "restart"
    """Stop gracefully; a later decision starts the next writer."""
    KILL = "kill"
    """Kill a writer that makes no progress towards a requested stop."""
    HOLD = "hold"
    """No writer runs, and none may start yet."""
    GIVE_UP = "give up"
    """No writer runs, and an operator must fix the cause: the Airflow task fails, once."""
    END = "end"
    """The stream was removed and nothing is left to supervise."""


class Cause(StrEnum):
    ADVANCING = "advancing"
    FOREGROUND = "in the foreground"
    HOSTED = "in a shared application"
    STOPPING = "stopping"
    REMOVED = "removed"
    PAUSED = "paused"
    REQUESTED = "asked for"
    SPEC_CHANGED = "spec changed"
    HUNG = "hung"
    SILENT = "silent"
    SPEC_UNREADABLE = "spec unreadable"
    STATE_UNREADABLE = "desired state unreadable"
    FIRST_START = "first start"
    STOPPED = "stopped as asked"
    NEEDS_ATTENTION = "needs attention"
    RETURNED = "supervision came back"
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
    """When a hold ends without further input; None if it waits for an operator or for a service to return."""
    subject: str = ""
    """The end or problem that a GIVE_UP is about; the supervisor gives up once for each subject."""
