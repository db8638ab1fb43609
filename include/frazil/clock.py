"""The wall clock. Functions that decide take the time as an argument; only their callers read the clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_EPOCH, _MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def now_ms() -> int:
    """Return the current time in milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def epoch_ms(moment: datetime) -> int:
    """Return the milliseconds since 1970, rounded down. Products of floats are 1 ms less for some times."""
    return ((moment if moment.tzinfo else moment.astimezone()) - _EPOCH) // _MS
