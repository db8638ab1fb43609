"""Points and events of a stream's history, in limited number, even if the clock jumps. No I/O."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from frazil.safe_text import shorten

MINUTE_MS = 60_000
TEN_MINUTES_MS = 10 * MINUTE_MS
MAX_STORE_DELAY_MS = 60_000
"""Maximum time (ms) after which a running writer stores a finished point."""
MINUTES_RETENTION_MS = 6 * 3_600_000
"""Age (ms) at which one-minute points are merged into ten-minute points."""
TENS_RETENTION_MS = 14 * 24 * 3_600_000
MAX_EVENTS_PER_KIND = 60
MAX_TEXT_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Point:
    """Sums over the batches of one or ten minutes, and measurements, if any. Times are ms since 1970."""

    at_ms: int
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
    """Maximum age of the last commit while records waited in Kafka; 0 if none waited."""
    backpressure_ms: int | None = None
    """Maximum time by which a batch exceeded the commit interval."""
    stage_ms: int = 0
    commit_ms: int = 0
    """Total time of commits, over all batches, including journal and merge."""
    merge_ms: int = 0
    watermark_ms: int | None = None
    interval_ms: int | None = None
    """The last commit interval, including any extension by `commit.throttle`."""
    cpu_ms: int = 0
    """CPU (ms) of the batches, and requests to storage, as in `frazil.commit.journal.BatchCost`."""
    writes: int = 0
    reads: int = 0

    @property
    def end_ms(self) -> int:
        return self.at_ms + self.span_ms

    def add(self, later: Point) -> Point:
        """Combine this point with a later point; the result has this point's time span."""
        combined: dict[str, Any] = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        for name in (*_MAXIMA, *_LAST):
            values = [n for n in (getattr(self, name), getattr(later, name)) if n is not None]
            combined[name] = (max(values) if name in _MAXIMA else values[-1]) if values else None
        return dataclasses.replace(self, **combined)


_SUMS = tuple(each.name for each in dataclasses.fields(Point) if each.default == 0)
_MAXIMA = ("lag", "freshness_ms", "backpressure_ms")
_LAST = ("watermark_ms", "interval_ms")


class EventKind(StrEnum):
    EPOCH = "epoch"
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
    END = "end"
    DEAD_LETTERS = "dead letters"
    """Dead letters were replayed or discarded. Read from the table, and never stored in the history."""
    SUPERVISION = "supervision"
    USER_ACTION = "action"
    """A user reset the stream, or ran or abandoned a backfill."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event, as a sentence that begins with a lower-case letter."""

    at_ms: int
    kind: EventKind
    sentence: str


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    points: tuple[Point, ...] = ()
    """Points, oldest first. Times without a writer have no points."""
    events: tuple[HistoryEvent, ...] = ()
    problem: str | None = None


def span_start(at_ms: int, span_ms: int) -> int:
    return at_ms - at_ms % span_ms


def merge_ten_minutes(points: Iterable[Point]) -> Point:
    first, *later_points = points
    total = dataclasses.replace(first, at_ms=span_start(first.at_ms, TEN_MINUTES_MS), span_ms=TEN_MINUTES_MS)
    for point in later_points:
        total = total.add(point)
    return total


def drop_unfinished(points: Sequence[Point], now_ms: int) -> Sequence[Point]:
    """Return the points. Omits the last point if its time has not passed, or if it is perhaps not stored yet."""
    return points[:-1] if points and now_ms < points[-1].end_ms + MAX_STORE_DELAY_MS else points


class HistoryPart(StrEnum):
    """Parts of a history, in the order of writing. Each part has its own object."""

    TENS = "tens"
    """Ten-minute points. They are written before the one-minute points in them are removed."""
    MINUTES = "minutes"
    EVENTS = "happened"


@dataclass(slots=True)
class StreamHistory:
    """Points per minute, or merged per ten minutes, and events. Not thread-safe."""

    minutes: dict[int, Point] = field(default_factory=dict)
    tens: dict[int, Point] = field(default_factory=dict)
    events: list[HistoryEvent] = field(default_factory=list)

    def add(self, point: Point) -> HistoryPart:
        """Merge a point into the stored point of its minute or ten minutes. Return the changed part."""
        ten = span_start(point.at_ms, TEN_MINUTES_MS)
        if ten in self.tens or point.span_ms == TEN_MINUTES_MS:
            earlier = [self.tens[ten]] if ten in self.tens else self._pop_one_minute_points(ten)
            self.tens[ten] = merge_ten_minutes([*earlier, point])
            return HistoryPart.TENS
        minute_ms = span_start(point.at_ms, MINUTE_MS)
        minute = self.minutes.get(minute_ms)
        self.minutes[minute_ms] = minute.add(point) if minute else dataclasses.replace(point, at_ms=minute_ms)
        return HistoryPart.MINUTES

    def record(self, event: HistoryEvent) -> HistoryPart:
        """Add an event, unless it is already recorded. Return the changed part."""
        event = dataclasses.replace(event, sentence=shorten(event.sentence, MAX_TEXT_CHARACTERS))
        if event not in self.events:
            self.events.append(event)
        if len(self.events) > 2 * MAX_EVENTS_PER_KIND * len(EventKind):  # no `age` while the storage hangs
            self.events = _newest_events(self.events, event.at_ms)
        return HistoryPart.EVENTS

    def merge_earlier(self, earlier: StreamHistory) -> None:
        points, self.minutes, self.tens = [*self.tens.values(), *self.minutes.values()], {}, {}
        for point in (*earlier.tens.values(), *earlier.minutes.values(), *points):
            self.add(point)
        own_events, self.events = self.events, []
        for event in (*earlier.events, *own_events):
            self.record(event)

    def age(self, now_ms: int) -> set[HistoryPart]:
        """Merge old one-minute points. Drop what is too old, or too far in the future. Return the changed parts."""
        changed = set()
        for ten in sorted({span_start(minute_ms, TEN_MINUTES_MS) for minute_ms in self.minutes}):
            if abs(now_ms - ten) > MINUTES_RETENTION_MS + TEN_MINUTES_MS:
                self.tens[ten] = merge_ten_minutes(self._pop_one_minute_points(ten))
                changed |= {HistoryPart.TENS, HistoryPart.MINUTES}
        for ten in [ten for ten in self.tens if abs(now_ms - ten) > TENS_RETENTION_MS]:
            del self.tens[ten]
            changed.add(HistoryPart.TENS)
        if (recent := _newest_events(self.events, now_ms)) != self.events:
            self.events = recent
            changed.add(HistoryPart.EVENTS)
        return changed

    def copy(self) -> StreamHistory:
        return StreamHistory(dict(self.minutes), dict(self.tens), list(self.events))

    def points(self) -> tuple[Point, ...]:
        """Return all points, oldest first. A ten-minute point replaces one-minute points of the same time."""
        minutes = (p for minute_ms, p in self.minutes.items() if span_start(minute_ms, TEN_MINUTES_MS) not in self.tens)
        return tuple(sorted((*self.tens.values(), *minutes), key=lambda point: point.at_ms))

    def _pop_one_minute_points(self, span_start_ms: int) -> list[Point]:
        return [
            self.minutes.pop(minute_ms)
            for minute_ms in range(span_start_ms, span_start_ms + TEN_MINUTES_MS, MINUTE_MS)
            if minute_ms in self.minutes
        ]


def _newest_events(events: Iterable[HistoryEvent], now_ms: int) -> list[HistoryEvent]:
    counts: Counter[EventKind] = Counter()
    newest = []
    oldest_first = sorted(events, key=lambda event: event.at_ms)
    for event in oldest_first[::-1]:
        counts[event.kind] += 1
        if counts[event.kind] <= MAX_EVENTS_PER_KIND and abs(now_ms - event.at_ms) <= TENS_RETENTION_MS:
            newest.append(event)
    return newest[::-1]
