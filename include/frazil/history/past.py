"""A stream's past in memory, limited in size whatever the clock does and however many events happen.

Pure, but mutable.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from frazil.history.points import MINUTE_MS, TEN_MS, Happened, Kind, Point, beginning, in_ten

MINUTES_MS = 6 * 3_600_000
"""Milliseconds for which one-minute points are kept; after that they are merged into ten-minute points."""
TENS_MS = 14 * 24 * 3_600_000
"""Milliseconds for which ten-minute points, and events, are kept."""
MAX_STREAM_EVENTS = 60
"""Maximum of events of one kind, so that many events of one kind do not displace the others."""
MAX_SENTENCE_CHARACTERS = 600
"""Maximum of characters of a sentence."""


class Part(StrEnum):
    """Parts of a history, each with its own object, in the order in which they are written."""

    TENS = "tens"
    """Ten-minute points; written before the one-minute points that they replace are removed."""
    MINUTES = "minutes"
    HAPPENED = "happened"


@dataclass(slots=True)
class Past:
    """A stream's past. Not thread-safe.

    A minute is either a point in `minutes` or part of a ten-minute point in `tens`, never both.
    """

    minutes: dict[int, Point] = field(default_factory=dict)
    tens: dict[int, Point] = field(default_factory=dict)
    happened: list[Happened] = field(default_factory=list)
    """Events, oldest first."""

    def add(self, point: Point) -> Part:
        """Add a point of one minute or of ten minutes to the existing points. Return the part that changed."""
        ten = beginning(point.at_ms, TEN_MS)
        if ten in self.tens or point.span_ms == TEN_MS:
            known = [self.tens[ten]] if ten in self.tens else self._taken(ten)
            self.tens[ten] = in_ten([*known, point])
            return Part.TENS
        at = beginning(point.at_ms, MINUTE_MS)
        known_minute = self.minutes.get(at)
        self.minutes[at] = known_minute.then(point) if known_minute else dataclasses.replace(point, at_ms=at)
        return Part.MINUTES

    def record(self, what: Happened) -> Part:
        sentence = what.sentence
        if len(sentence) > MAX_SENTENCE_CHARACTERS:
            what = dataclasses.replace(what, sentence=f"{sentence[: MAX_SENTENCE_CHARACTERS - 4]} ...")
        if what not in self.happened:
            self.happened.append(what)
        if len(self.happened) > 2 * MAX_STREAM_EVENTS * len(Kind):  # nothing is aged while the storage hangs
            self.happened = _kept(self.happened, what.at_ms)
        return Part.HAPPENED

    def began_with(self, earlier: Past) -> None:
        """Merge the past of an earlier writer into this one."""
        own, self.minutes, self.tens = ([*self.tens.values(), *self.minutes.values()], {}, {})
        for point in (*earlier.tens.values(), *earlier.minutes.values(), *own):
            self.add(point)
        own_happened, self.happened = self.happened, []
        for what in (*earlier.happened, *own_happened):
            self.record(what)

    def age(self, now_ms: int) -> set[Part]:
        """Merge old minutes into ten-minute points, and drop points and events that are too old.

        Return the changed parts.

        A time far in the future comes from a wrong clock, and is treated like a time far in the past.
        """
        changed = set()
        for ten in sorted({beginning(at, TEN_MS) for at in self.minutes}):
            if abs(now_ms - ten) > MINUTES_MS + TEN_MS:
                self.tens[ten] = in_ten(self._taken(ten))
                changed |= {Part.TENS, Part.MINUTES}
        for ten in [ten for ten in self.tens if abs(now_ms - ten) > TENS_MS]:
            del self.tens[ten]
            changed.add(Part.TENS)
        if (kept := _kept(self.happened, now_ms)) != self.happened:
            self.happened = kept
            changed.add(Part.HAPPENED)
        return changed

    def copy(self) -> Past:
        return Past(dict(self.minutes), dict(self.tens), list(self.happened))

    def points(self) -> tuple[Point, ...]:
        """Return all points. Where sources overlap, such as objects of two times, ten-minute points replace minutes."""
        minutes = (p for at, p in self.minutes.items() if beginning(at, TEN_MS) not in self.tens)
        return tuple(sorted((*self.tens.values(), *minutes), key=lambda point: point.at_ms))

    def _taken(self, ten: int) -> list[Point]:
        """Remove and return the one-minute points of these ten minutes."""
        return [self.minutes.pop(at) for at in range(ten, ten + TEN_MS, MINUTE_MS) if at in self.minutes]


def _kept(happened: Iterable[Happened], now_ms: int) -> list[Happened]:
    """Return the newest events of each kind, oldest first."""
    seen: Counter[Kind] = Counter()
    kept = []
    oldest_first = sorted(happened, key=lambda what: what.at_ms)
    for what in oldest_first[::-1]:
        seen[what.kind] += 1
        if seen[what.kind] <= MAX_STREAM_EVENTS and abs(now_ms - what.at_ms) <= TENS_MS:
            kept.append(what)
    return kept[::-1]
