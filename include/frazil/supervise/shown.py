"""How a writer is, in one word and a sentence, for people who look at its task. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from frazil.host.heartbeat import Heartbeat
from frazil.spec.units import counted
from frazil.supervise.decide import fruitless_row
from frazil.supervise.decision import Cause, Decision, WriterAction
from frazil.supervise.liveness import known_lag
from frazil.supervise.observed import Observed
from frazil.supervise.policy import Policy
from frazil.timetext import ago

FAILURES = 3
"""A writer that ended so often in a row without a commit is crash-looping: one failure is an accident."""


class State(StrEnum):
    """The words are those of the operations page where both know the state."""

    STARTING = "starting"
    RUNNING = "running"
    SLOW = "slow"
    """Its batches take longer than the commit interval, so that its lag grows."""
    STALLED = "stalled"
    OUTAGE = "waits for catalog or storage"
    STOPPING = "stopping"
    PAUSED = "paused"
    HELD = "held"
    """No writer runs, and none may start yet."""
    CRASH_LOOPING = "crash-looping"
    GIVEN_UP = "given up"
    REMOVED = "removed"
    UNKNOWN = "unknown"
    """It cannot be looked at."""


@dataclass(frozen=True, slots=True)
class Shown:
    """`sentence` has the numbers behind the state, as of that moment."""

    state: State
    sentence: str


def shown(decision: Decision, observed: Observed, *, policy: Policy, problem: str | None = None) -> Shown:
    """The state that a decision and what it was made of come to; `problem` is what went wrong while acting on it."""
    if problem is not None:
        return Shown(State.HELD, f"{decision.action} fails, and is tried again: {problem}")
    state = _alive(decision, observed, policy) if observed.process.is_alive else _ended(decision, observed, policy)
    return Shown(state, sentence_of(state, observed.heartbeat, otherwise=decision.reason))


def _alive(decision: Decision, observed: Observed, policy: Policy) -> State:
    if decision.action is not WriterAction.KEEP or decision.cause is Cause.STOPPING:
        return State.REMOVED if decision.action is WriterAction.END else State.STOPPING
    beat, began_ms = observed.heartbeat, observed.launch.launched_at_ms if observed.launch else 0
    committed_ms = beat.last_commit_at_ms if beat is not None else None
    if (committed_ms is None or committed_ms < began_ms) and _is_looping(observed, policy):
        return State.CRASH_LOOPING
    return state_of(beat)


def state_of(beat: Heartbeat | None) -> State:
    """The state of a writer that runs, and shall."""
    if beat is None or beat.epoch is None:
        return State.STARTING
    if beat.stall is not None:
        return State.STALLED
    if beat.outage:
        return State.OUTAGE
    return State.SLOW if beat.backpressure_ms else State.RUNNING


def _ended(decision: Decision, observed: Observed, policy: Policy) -> State:
    if decision.action is WriterAction.END or decision.cause is Cause.REMOVED:
        return State.REMOVED
    if decision.cause is Cause.PAUSED:
        return State.PAUSED
    if decision.subject:
        return State.GIVEN_UP
    if decision.cause in {Cause.CRASHED, Cause.ENDED, Cause.UNAVAILABLE} and _is_looping(observed, policy):
        return State.CRASH_LOOPING
    return State.STARTING if decision.action is WriterAction.START else State.HELD


def _is_looping(observed: Observed, policy: Policy) -> bool:
    exits = observed.exits
    return bool(exits) and len(fruitless_row(exits, window_ms=policy.crash_window_ms)) >= FAILURES


def sentence_of(state: State, beat: Heartbeat | None, *, otherwise: str) -> str:
    """What a heartbeat says of such a state; what else is known of the writer where that says more."""
    if beat is None:
        return otherwise
    if state is State.STALLED and beat.stall is not None:
        return beat.stall.reason
    if state is State.OUTAGE:
        return beat.outage or otherwise
    if state is State.SLOW:
        lag = known_lag(beat)
        waiting = "" if lag is None else f", and {counted(lag, 'record', 'waits|wait')}"
        return f"a batch takes {ago(beat.backpressure_ms)} longer than its commit interval{waiting}; {otherwise}"
    return otherwise
