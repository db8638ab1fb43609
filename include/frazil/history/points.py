"""Data points and events of a stream's history, and the merging of points of one to ten minutes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MINUTE_MS = 60_000
TEN_MINUTES_MS = 10 * MINUTE_MS
MAX_STORE_DELAY_MS = 60_000
"""Milliseconds within which a running writer stores a finished point."""


@dataclass(frozen=True, slots=True)
class Point:
    """Measurements of one minute, or of ten minutes. Times are milliseconds since 1970, UTC.

    Sums are over the batches that landed in this time. A measurement between batches is None if it was not taken.
    """

    at_ms: int
    """Start of the point's time span."""
    span_ms: int = MINUTE_MS
    batches: int = 0
    records: int = 0
    rejected: int = 0
    """Number of dead letters."""
    files: int = 0
    bytes: int = 0
    """Total size of the data files, before a merge."""
    lag: int | None = None
    """Maximum number of records waiting in Kafka."""
    freshness_ms: int | None = None
    """Maximum age of the last commit while records waited; 0 if no record waited."""
    backpressure_ms: int | None = None
    """Maximum time by which a batch exceeded the commit interval."""
    stage_ms: int = 0
    """Total time of staging, over all batches."""
    commit_ms: int = 0
    """Total time of commits, over all batches, including journal and merge."""
    merge_ms: int = 0
    """Total time of merges, over all batches; 0 for a stream that does not merge."""
    watermark_ms: int | None = None
    """The last watermark."""
    interval_ms: int | None = None
    """The last commit interval, including any extension by `commit.throttle`."""

    @property
    def end_ms(self) -> int:
        return self.at_ms + self.span_ms

    def then(self, later: Point) -> Point:
        """Combine this point with a later point; the result has this point's time span."""
        joined: dict[str, Any] = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        joined |= {name: _maximum(getattr(self, name), getattr(later, name)) for name in _MAXIMA}
        joined |= {name: _last(getattr(self, name), getattr(later, name)) for name in _LAST}
        return dataclasses.replace(self, **joined)


_SUMS = ("batches", "records", "rejected", "files", "bytes", "stage_ms", "commit_ms", "merge_ms")
_MAXIMA = ("lag", "freshness_ms", "backpressure_ms")
_LAST = ("watermark_ms", "interval_ms")


class EventKind(StrEnum):
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
    """The distribution of batches changed."""
    NOTICE = "notice"
    FUTURE = "future"
    """Rows had event times too far in the future."""
    END = "end"
    """A writer ended with an error."""
    DEAD_LETTERS = "dead letters"
    """Dead letters were replayed or discarded. This event is read from the table; it is never stored in the history."""
    SUPERVISION = "supervision"
    """A supervisor acted: starts, restarts with their reason, stops, giving up."""
    USER_ACTION = "action"
    """A user acted on the stream or its backfill: resets, backfills, abandonments."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event, as a sentence that begins with a lower-case letter."""

    at_ms: int
    kind: EventKind
    sentence: str


@dataclass(frozen=True, slots=True)
class History:
    """A stream's history, as it could be read."""

    points: tuple[Point, ...] = ()
    """Points, oldest first: ten-minute points for two weeks, one-minute points for the last hours. Times without a
    writer have no point.
    """
    happened: tuple[HistoryEvent, ...] = ()
    problem: str | None = None
    """Why part or all of the history could not be read; None if all was read."""


def span_start(at_ms: int, span_ms: int) -> int:
    """Return the start of the time span that contains a time."""
    return at_ms - at_ms % span_ms


def merge_ten_minutes(points: Iterable[Point]) -> Point:
    """Combine points of the same ten minutes into one. The points are in order, and at least one is required."""
    first, *rest = points
    total = dataclasses.replace(first, at_ms=span_start(first.at_ms, TEN_MINUTES_MS), span_ms=TEN_MINUTES_MS)
    for point in rest:
        total = total.then(point)
    return total


def drop_unfinished(points: Sequence[Point], now_ms: int) -> Sequence[Point]:
    """Drop the last point if part of its time is in the future or not yet stored. The points are oldest first.

    A point that is followed by another point is complete, because a writer writes all of its points at once.
    """
    return points[:-1] if points and now_ms < points[-1].end_ms + MAX_STORE_DELAY_MS else points


def _maximum(one: int | None, other: int | None) -> int | None:
    return max((n for n in (one, other) if n is not None), default=None)


def _last(one: int | None, other: int | None) -> int | None:
    return one if other is None else other
