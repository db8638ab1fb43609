"""Turns the supervisor's decisions into events of a stream's history, where they belong there. Pure."""

from __future__ import annotations

from frazil.history.points import Happened, Kind
from frazil.supervise.decision import Cause, Decision, WriterAction
from frazil.supervise.observed import Desired, Unreadable

_WORDS = {
    WriterAction.START: "the writer is started",
    WriterAction.STOP: "the writer is stopped",
    WriterAction.RESTART: "the writer is restarted",
    WriterAction.KILL: "the writer is killed",
    WriterAction.GIVE_UP: "the supervisor gives up, and a person is needed",
}
"""Holds are not recorded: the decision before or the start after them gives the reason."""


def history_entry(
    decision: Decision, desired: Desired | Unreadable, problem: str | None, *, now_ms: int
) -> Happened | None:
    """Return the event for a decision that was carried out, or failed with `problem`; None if it needs no event."""
    if decision.cause is Cause.PAUSED and isinstance(desired, Desired):
        # As of the act, in words that stay the same: each supervisor that comes after tells it again.
        why = f": {desired.reason}" if desired.reason else ""
        return Happened(desired.at_ms, Kind.SUPERVISION, f"the stream is paused by {desired.by or 'somebody'}{why}")
    if decision.action not in _WORDS:
        return None
    failed = f"; that failed: {problem}" if problem else ""
    sentence = f"{_WORDS[decision.action]} ({decision.cause}): {decision.reason}{failed}"
    return Happened(now_ms, Kind.SUPERVISION, sentence)
