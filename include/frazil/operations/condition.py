"""How a stream is, in one word, and how much it needs a person. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from frazil.maintenance.alert_rules import stale_after_ms
from frazil.spec.model import StreamSpec
from frazil.spec.units import counted
from frazil.status.stream import StreamStatus
from frazil.status.writer import exit_words
from frazil.supervise.policy import Policy
from frazil.timetext import ago

CRASHES = 3
"""A writer that failed so often within a quarter of an hour is crash-looping: one failure is an accident."""

STARTS_WITHIN_MS = Policy().longest_backoff_ms
"""From the end of a writer, or the act that asks for one, to its start: the longest that a supervisor waits."""


class Level(IntEnum):
    """How much something needs a person, most first."""

    BROKEN = 0
    """Nothing goes on before somebody acts."""
    TROUBLE = 1
    """It goes on, or somebody wanted it to stop, but it is not as promised."""
    UNKNOWN = 2
    """It is being looked at, or does not answer."""
    QUIET = 3
    """Nothing happens, and nothing should: it is paused, or has not begun."""
    WELL = 4


@dataclass(frozen=True, slots=True)
class Condition:
    """`word` names the state. `sentence` says what a person should know or do; empty if nothing."""

    level: Level
    word: str
    sentence: str = ""
    rule: str = ""
    """The alert that it amounts to, whose entry in the runbook says what to do; empty where none does."""


NOT_BEGUN = "not begun"
LOOKING = Condition(Level.UNKNOWN, "looking")


def promise_ms(spec: StreamSpec) -> int:
    """How old the last commit may be while records wait."""
    longest_ms = spec.commit.longest_interval // timedelta(milliseconds=1)
    return stale_after_ms(spec.maintenance, longest_ms)


def freshness_ms(status: StreamStatus, *, now_ms: int) -> int | None:
    """The age of the last commit; 0 where nothing waits in Kafka."""
    if status.last_commit_at_ms is None:
        return None
    return 0 if status.lag == 0 else max(now_ms - status.last_commit_at_ms, 0)


def condition_of(status: StreamStatus, spec: StreamSpec, *, now_ms: int) -> Condition:
    """The first that applies: what stops the stream, what holds it back, then whether it runs."""
    return (
        _stopped(status)
        or _without_writer(status, now_ms=now_ms)
        or _held_back(status, spec, now_ms=now_ms)
        or _as_it_should(status, spec, now_ms=now_ms)
    )


def _stopped(status: StreamStatus) -> Condition | None:
    writer, first = status.writer, next(iter(status.problems), "")
    if status.desired == "paused" and writer.pid is None:
        return Condition(Level.QUIET, "paused", status.desired_reason or "")
    if writer.given_up:
        said = "; ".join(status.problems[: 2 if writer.error else 1]) or f"Mend the cause, then resume {status.name}"
        return Condition(Level.BROKEN, "given up", said, "writer")
    if writer.crashes >= CRASHES:
        why = first or f"its writer failed {writer.crashes} times within a quarter of an hour"
        return Condition(Level.BROKEN, "crash-looping", why, "restarts")
    if status.table_exists is None or (status.table_exists is False and first):
        word = "table unreadable" if status.table_exists is None else "no table"
        return Condition(Level.BROKEN, word, first, "table")
    if writer.ended_at_ms is not None and writer.exit_code != 0:
        said = first or f"its last writer ended with {exit_words(writer)}"
        return Condition(Level.BROKEN, "stopped", said, "writer")
    return None


def _without_writer(status: StreamStatus, *, now_ms: int) -> Condition | None:
    """Where the last writer was one of this host, has ended, and no other host's has committed since."""
    writer = status.writer
    if writer.pid is not None or not writer.has_ended or status.commits_elsewhere:
        return None
    if abs(now_ms - max(writer.ended_at_ms or 0, status.desired_at_ms or 0)) <= STARTS_WITHIN_MS:
        return Condition(Level.QUIET, "starting", "its last writer has ended, and the next one has not started yet")
    ended = f" {ago(now_ms - writer.ended_at_ms)} ago" if writer.ended_at_ms is not None else ""
    waiting = f", and {counted(status.lag, 'record', 'waits|wait')}" if status.lag else ""
    said = f"its last writer here ended{ended}, and no other has committed since{waiting}: does its DAG run in Airflow?"
    return Condition(Level.TROUBLE, "no writer", said, "writer")


def _held_back(status: StreamStatus, spec: StreamSpec, *, now_ms: int) -> Condition | None:
    if status.stall is not None:
        return Condition(Level.TROUBLE, "stalled", status.stall.reason, "stall")
    if status.writer.stale:
        return Condition(Level.TROUBLE, "silent", next(iter(status.problems), "its heartbeat is old"), "writer")
    age_ms = freshness_ms(status, now_ms=now_ms)
    if age_ms is not None and age_ms > promise_ms(spec) and (status.lag or status.writer.pid):
        waiting = "records wait" if status.lag is None else f"{status.lag:,} records wait"
        return Condition(Level.TROUBLE, "late", f"no commit for {ago(age_ms)} while {waiting}", "freshness")
    if status.writer.pid is not None and status.backpressure_ms:
        said = f"a batch takes {ago(status.backpressure_ms)} longer than its interval"
        return Condition(Level.TROUBLE, "slow", said, "lag")
    if status.problems:
        return Condition(Level.TROUBLE, "has a problem", status.problems[0])
    return None


def _running(status: StreamStatus) -> Condition:
    if status.desired == "paused":
        return Condition(Level.QUIET, "pausing", "its writer stops after the current batch")
    if status.restarting:
        said = "its writer stops after the current batch, and then the next one starts"
        return Condition(Level.QUIET, "restarting", said)
    is_first = status.last_commit_at_ms is None and not status.rows
    return Condition(Level.WELL, "starting" if is_first and status.writer.phase == "starting" else "running")


def _as_it_should(status: StreamStatus, spec: StreamSpec, *, now_ms: int) -> Condition:
    if status.writer.pid is not None:
        return _running(status)
    age_ms = None if status.last_commit_at_ms is None else now_ms - status.last_commit_at_ms
    if status.commits_elsewhere and age_ms is not None and age_ms <= promise_ms(spec):
        return Condition(Level.WELL, "commits elsewhere")
    if status.last_commit_at_ms is None and status.writer.ended_at_ms is None:
        unpause = "Unpause the DAG of its writer to begin"
        return Condition(Level.QUIET, NOT_BEGUN, unpause)
    said = "no writer runs on this host, and nothing was committed lately"
    return Condition(Level.TROUBLE, "no writer", said, "writer")
