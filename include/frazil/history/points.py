"""What a history consists of, and how numbers of one time become those of a longer one. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MINUTE_MS = 60_000
TEN_MS = 10 * MINUTE_MS
WRITTEN_MS = 60_000
"""A writer that runs has put what it knew before that."""


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of one minute, or of ten. Times are milliseconds since 1970, UTC.

    Sums are over the batches that landed in that time. What is measured between batches is None where nobody measured.
    """

    at_ms: int
    """When the time began."""
    span_ms: int = MINUTE_MS
    batches: int = 0
    records: int = 0
    rejected: int = 0
    """Dead letters."""
    files: int = 0
    bytes: int = 0
    """Of the files, before a merge."""
    lag: int | None = None
    """The most records that waited in Kafka at once."""
    freshness_ms: int | None = None
    """The longest time since the last commit while records waited; 0 if none did."""
    backpressure_ms: int | None = None
    """By how much the slowest batch took longer than the commit interval."""
    stage_ms: int = 0
    """All batches together."""
    commit_ms: int = 0
    """All batches together, including journal and merge."""
    merge_ms: int = 0
    """All batches together; 0 for a stream that merges nothing."""
    watermark_ms: int | None = None
    """The last."""
    interval_ms: int | None = None
    """The commit interval in the end, as stretched."""

    @property
    def end_ms(self) -> int:
        return self.at_ms + self.span_ms

    def then(self, later: Point) -> Point:
        """Both together, in this one's time."""
        joined: dict[str, Any] = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        joined |= {name: _most(getattr(self, name), getattr(later, name)) for name in _MAXIMA}
        joined |= {name: _last(getattr(self, name), getattr(later, name)) for name in _LAST}
        return dataclasses.replace(self, **joined)


_SUMS = ("batches", "records", "rejected", "files", "bytes", "stage_ms", "commit_ms", "merge_ms")
_MAXIMA = ("lag", "freshness_ms", "backpressure_ms")
_LAST = ("watermark_ms", "interval_ms")


class Kind(StrEnum):
    """What a history tells in words."""

    EPOCH = "epoch"
    """A writer took over."""
    SKIP = "skip"
    """Records were lost to Kafka's retention."""
    STALL = "stall"
    OUTAGE = "outage"
    EVOLUTION = "evolution"
    THROTTLE = "throttle"
    DECISION = "decision"
    """How batches are distributed from here on."""
    NOTICE = "notice"
    FUTURE = "future"
    """Rows with event times too far in the future."""
    END = "end"
    """A writer ended with an error."""
    LETTERS = "dead letters"
    """A replay or a discard, which the table tells; no history has it."""
    SUPERVISION = "supervision"
    """What a supervisor did: starts, restarts with their reason, stops, giving up."""
    ACT = "act"
    """What a person did to the stream, or to a backfill of it: resets, backfills, abandonments."""


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that happened, in a sentence that begins with a lower-case letter."""

    at_ms: int
    kind: Kind
    sentence: str


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a stream's past, oldest first."""

    points: tuple[Point, ...] = ()
    """By ten minutes for two weeks, and by one for the last hours. Times without a writer have none."""
    happened: tuple[Happened, ...] = ()
    problem: str | None = None
    """Why some, or all, of it could not be read."""


def beginning(at_ms: int, span_ms: int) -> int:
    """When the span that has a moment began."""
    return at_ms - at_ms % span_ms


def in_ten(points: Iterable[Point]) -> Point:
    """The ten minutes of these points, which are of the same ten and in order; one at least."""
    first, *rest = points
    total = dataclasses.replace(first, at_ms=beginning(first.at_ms, TEN_MS), span_ms=TEN_MS)
    for point in rest:
        total = total.then(point)
    return total


def finished(points: Sequence[Point], now_ms: int) -> Sequence[Point]:
    """Points, oldest first, without the last while a part of it is to come, or not yet written.

    One that another follows is whole: a writer puts all that it knows at once.
    """
    return points[:-1] if points and now_ms < points[-1].end_ms + WRITTEN_MS else points


def _most(one: int | None, other: int | None) -> int | None:
    return max((n for n in (one, other) if n is not None), default=None)


def _last(one: int | None, other: int | None) -> int | None:
    return one if other is None else other
