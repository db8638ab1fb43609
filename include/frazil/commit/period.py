"""The time range of commits that an audit covers. An audit's cost depends on this range, not on the table's size."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Period:
    """A half-open time range `[from_ms, to_ms)` of commits, in milliseconds since 1970, UTC.

    Raises ValueError for an empty range.
    """

    from_ms: int
    to_ms: int

    def __post_init__(self) -> None:
        if self.to_ms <= self.from_ms:
            raise ValueError("the period ends before it begins")

    def __contains__(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms < self.to_ms


def period_between(begin: datetime, end: datetime) -> Period:
    """Return the period between two timezone-aware times."""
    return Period(_ms(begin), _ms(end))


def last_period(length: timedelta, now: datetime) -> Period:
    """Return the period of this length that ends now. Commits in the current millisecond are included."""
    return Period(_ms(now - length), _ms(now) + 1)


def complete_hours(moment: datetime, hours: int = 1) -> Period:
    """Return the last `hours` full UTC clock hours that ended at or before `moment`."""
    end_ms = _ms(moment) // HOUR_MS * HOUR_MS
    return Period(end_ms - hours * HOUR_MS, end_ms)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
