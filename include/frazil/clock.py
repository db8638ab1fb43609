"""The wall clock. Functions that decide take the time as an argument; only their callers read the clock."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the current time in milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000
