"""The words of a decision: what to do, for what cause, and the sentence that says so in the log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    KEEP = "keep"
    """A writer runs, and shall."""
    START = "start"
    STOP = "stop"
    """Gracefully: the batch at hand commits."""
    RESTART = "restart"
    """Stop gracefully; once it has ended, a later decision starts it."""
    KILL = "kill"
    """A stop that goes nowhere is ended by force."""
    HOLD = "hold"
    """No writer runs, and none shall yet."""
    GIVE_UP = "give up"
    """No writer runs, and a person is needed: said once, aloud."""
    END = "end"
    """Nothing is left to supervise."""


class Cause(StrEnum):
    ADVANCING = "advancing"
    FOREGROUND = "in the foreground"
    STOPPING = "stopping"
    REMOVED = "removed"
    PAUSED = "paused"
    ASKED = "asked for"
    SPEC_CHANGED = "spec changed"
    HUNG = "hung"
    SILENT = "silent"
    SPEC_UNREADABLE = "spec unreadable"
    STATE_UNREADABLE = "desired state unreadable"
    FIRST_START = "first start"
    STOPPED = "stopped as asked"
    NEEDS_PERSON = "needs a person"
    RETURNED = "supervision came back"
    DENIED = "access denied"
    CRASH_LOOP = "crash loop"
    CRASHED = "crashed"
    UNAVAILABLE = "unavailable"
    ENDED = "ended by itself"


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    cause: Cause
    reason: str
    """A sentence for the log, with the numbers that it rests on."""
    until_ms: int | None = None
    """When a hold ends by itself; None where only a person, or something else's return, ends it."""
    subject: str = ""
    """What a GIVE_UP is about: the same subject is given up on once."""
