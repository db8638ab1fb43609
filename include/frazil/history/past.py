"""A stream's history in memory, limited in size even if the clock is wrong or very many events happen.

No I/O; the history is mutable.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from frazil.history.points import (
    MINUTE_MS,
    TEN_MINUTES_MS,
    EventKind,
    HistoryEvent,
    Point,
    merge_ten_minutes,
    span_start,
)

MINUTES_RETENTION_MS = 6 * 3_600_000
"""Milliseconds for which one-minute points are kept; after that they are merged into ten-minute points."""
TENS_RETENTION_MS = 14 * 24 * 3_600_000
"""Milliseconds for which ten-minute points, and events, are kept."""
MAX_STREAM_EVENTS = 60
"""Maximum number of stored events per kind, so that frequent events do not displace the other kinds."""
MAX_TEXT_CHARACTERS = 600
"""Maximum length of an event's text."""


class Part(StrEnum):
    """Parts of a history, each with its own object, in the order in which they are written."""

    TENS = "tens"
    """Ten-minute points; written before the one-minute points that they replace are removed."""
    MINUTES = "minutes"
    HAPPENED = "happened"


@dataclass(slots=True)
class StreamHistory:
    """Measurements of a stream per minute and per ten minutes, and its events. Not thread-safe.

    A minute is either a point in `minutes` or part of a ten-minute point in `tens`, never both.
    """

    minutes: dict[int, Point] = field(default_factory=dict)
    tens: dict[int, Point] = field(default_factory=dict)
    happened: list[HistoryEvent] = field(default_factory=list)
    """Events, oldest first."""

    def add(self, point: Point) -> Part:
        """Merge a point of one minute or of ten minutes into the points of its time. Return the part that changed."""
        ten = span_start(point.at_ms, TEN_MINUTES_MS)
        if ten in self.tens or point.span_ms == TEN_MINUTES_MS:
            known = [self.tens[ten]] if ten in self.tens else self._pop_minutes(ten)
            self.tens[ten] = merge_ten_minutes([*known, point])
            return Part.TENS
        at = span_start(point.at_ms, MINUTE_MS)
        minute = self.minutes.get(at)
        self.minutes[at] = minute.then(point) if minute else dataclasses.replace(point, at_ms=at)
        return Part.MINUTES

    def record(self, what: HistoryEvent) -> Part:
        """Add an event, unless it is already recorded. Return the part that changed."""
        sentence = what.sentence
        if len(sentence) > MAX_TEXT_CHARACTERS:
            what = dataclasses.replace(what, sentence=f"{sentence[: MAX_TEXT_CHARACTERS - 4]} ...")
        if what not in self.happened:
            self.happened.append(what)
        if len(self.happened) > 2 * MAX_STREAM_EVENTS * len(EventKind):  # no `age` while the storage hangs
            self.happened = _newest_events(self.happened, what.at_ms)
        return Part.HAPPENED

    def merge_earlier(self, earlier: StreamHistory) -> None:
        """Merge the history of an earlier writer into this one."""
        own, self.minutes, self.tens = ([*self.tens.values(), *self.minutes.values()], {}, {})
        for point in (*earlier.tens.values(), *earlier.minutes.values(), *own):
            self.add(point)
        own_happened, self.happened = self.happened, []
        for what in (*earlier.happened, *own_happened):
            self.record(what)

    def age(self, now_ms: int) -> set[Part]:
        """Merge old minutes into ten-minute points, and drop what is too old. Return the changed parts.

        A time far in the future comes from a wrong clock, and is treated like a time far in the past.
        """
        changed = set()
        for ten in sorted({span_start(at, TEN_MINUTES_MS) for at in self.minutes}):
            if abs(now_ms - ten) > MINUTES_RETENTION_MS + TEN_MINUTES_MS:
                self.tens[ten] = merge_ten_minutes(self._pop_minutes(ten))
                changed |= {Part.TENS, Part.MINUTES}
        for ten in [ten for ten in self.tens if abs(now_ms - ten) > TENS_RETENTION_MS]:
            del self.tens[ten]
            changed.add(Part.TENS)
        if (kept := _newest_events(self.happened, now_ms)) != self.happened:
            self.happened = kept
            changed.add(Part.HAPPENED)
        return changed

    def copy(self) -> StreamHistory:
        return StreamHistory(dict(self.minutes), dict(self.tens), list(self.happened))

    def points(self) -> tuple[Point, ...]:
        """Return all points, oldest first. A ten-minute point replaces one-minute points of the same time."""
        minutes = (p for at, p in self.minutes.items() if span_start(at, TEN_MINUTES_MS) not in self.tens)
        return tuple(sorted((*self.tens.values(), *minutes), key=lambda point: point.at_ms))

    def _pop_minutes(self, ten: int) -> list[Point]:
        """Remove and return the one-minute points of the ten minutes that begin at `ten`."""
        return [self.minutes.pop(at) for at in range(ten, ten + TEN_MINUTES_MS, MINUTE_MS) if at in self.minutes]


def _newest_events(happened: Iterable[HistoryEvent], now_ms: int) -> list[HistoryEvent]:
    """Return the newest events of each kind, oldest first."""
    seen: Counter[EventKind] = Counter()
    kept = []
    oldest_first = sorted(happened, key=lambda what: what.at_ms)
    for what in oldest_first[::-1]:
        seen[what.kind] += 1
        if seen[what.kind] <= MAX_STREAM_EVENTS and abs(now_ms - what.at_ms) <= TENS_RETENTION_MS:
            kept.append(what)
    return kept[::-1]
