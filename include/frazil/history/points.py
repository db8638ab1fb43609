"""The parts of a history, and the merging of numbers over time. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MINUTE_MS = 60_000
TEN_MS = 10 * MINUTE_MS
WRITTEN_MS = 60_000
"""A running writer has written everything older than this."""


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of one minute, or of ten. Times are milliseconds since 1970, UTC.

    Sums are over the batches that landed in that time. A measurement between batches is None if it was not taken.
    """

    at_ms: int
    """Start of the time."""
    span_ms: int = MINUTE_MS
    batches: int = 0
    records: int = 0
    rejected: int = 0
    """Number of dead letters."""
    files: int = 0
    bytes: int = 0
    """Size of the files, before a merge."""
    lag: int | None = None
    """Maximum of records waiting in Kafka."""
    freshness_ms: int | None = None
    """Maximum age of the last commit while records waited; 0 if none did."""
    backpressure_ms: int | None = None
    """Maximum by which a batch exceeded the commit interval."""
    stage_ms: int = 0
    """Sum over batches."""
    commit_ms: int = 0
    """Sum over batches, including journal and merge."""
    merge_ms: int = 0
    """Sum over batches; 0 for a stream that does not merge."""
    watermark_ms: int | None = None
    """The last watermark."""
    interval_ms: int | None = None
    """The last commit interval, as stretched."""

    @property
    def end_ms(self) -> int:
        return self.at_ms + self.span_ms

    def then(self, later: Point) -> Point:
        """Combine both, with this one's time."""
        joined: dict[str, Any] = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        joined |= {name: _maximum(getattr(self, name), getattr(later, name)) for name in _MAXIMA}
        joined |= {name: _last(getattr(self, name), getattr(later, name)) for name in _LAST}
        return dataclasses.replace(self, **joined)


_SUMS = ("batches", "records", "rejected", "files", "bytes", "stage_ms", "commit_ms", "merge_ms")
_MAXIMA = ("lag", "freshness_ms", "backpressure_ms")
_LAST = ("watermark_ms", "interval_ms")


class Kind(StrEnum):
    """Kinds of events in a history."""

    EPOCH = "epoch"
    """A writer took over."""
    SKIP = "skip"
    """Records were lost to Kafka's retention."""
    STALL = "stall"
    OUTAGE = "outage"
    EVOLUTION = "evolution"
    THROTTLE = "throttle"
    DECISION = "decision"
    """How batches are distributed from now on."""
    NOTICE = "notice"
    FUTURE = "future"
    """Rows with event times too far in the future."""
    END = "end"
    """A writer ended with an error."""
    LETTERS = "dead letters"
    """A replay or a discard, which the table has; never in a history."""
    SUPERVISION = "supervision"
    """An action of a supervisor: starts, restarts with their reason, stops, giving up."""
    ACT = "act"
    """A user's action on the stream, or on a backfill of it: resets, backfills, abandonments."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event, as a sentence that begins with a lower-case letter."""

    at_ms: int
    kind: Kind
    sentence: str


@dataclass(frozen=True, slots=True)
class History:
    """A stream's known past, oldest first."""

    points: tuple[Point, ...] = ()
    """Ten-minute points for two weeks, and minutes for the last hours. Times without a writer have no point."""
    happened: tuple[Happened, ...] = ()
    problem: str | None = None
    """Why part or all of it could not be read."""


def beginning(at_ms: int, span_ms: int) -> int:
    """Start of the span that contains a moment."""
    return at_ms - at_ms % span_ms


def in_ten(points: Iterable[Point]) -> Point:
    """Combine points of the same ten minutes, given in order; at least one."""
    first, *rest = points
    total = dataclasses.replace(first, at_ms=beginning(first.at_ms, TEN_MS), span_ms=TEN_MS)
    for point in rest:
        total = total.then(point)
    return total


def finished(points: Sequence[Point], now_ms: int) -> Sequence[Point]:
    """Points, oldest first, without the last one if part of it is in the future or not yet written.

    A point that another follows is complete: a writer writes all that it knows at once.
    """
    return points[:-1] if points and now_ms < points[-1].end_ms + WRITTEN_MS else points


def _maximum(one: int | None, other: int | None) -> int | None:
    return max((n for n in (one, other) if n is not None), default=None)


def _last(one: int | None, other: int | None) -> int | None:
    return one if other is None else other
