"""The wall clock, in milliseconds. Decisions take the time as an argument; only edges ask here."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000
