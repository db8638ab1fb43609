"""Waits for conditions by polling until a deadline, instead of sleeping for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

POLL_S = 0.05
OF_AIRFLOW_S = 0.5
"""Polling interval. A response costs Airflow tens of ms of CPU, so 20 polls per second would take a core."""


def eventually(check: Callable[[], Any], *, within_s: float = 120, every_s: float = POLL_S) -> Any:
    """Poll until `check()` is true, and return its result."""
    deadline = time.monotonic() + within_s
    while not (seen := check()):
        assert time.monotonic() < deadline, f"not true within {within_s:.0f} s"
        time.sleep(every_s)
    return seen


def throughout(check: Callable[[], Any], *, for_s: float) -> None:
    """Assert that `check()` stays true for `for_s` seconds."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert check(), f"not true for {for_s:.0f} s"
        time.sleep(POLL_S)
