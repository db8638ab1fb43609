"""Waiting without a fixed time: a condition is looked at again and again until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

POLL_S = 0.05
OF_AIRFLOW_S = 0.5
"""An answer costs Airflow tens of milliseconds of CPU: asked twenty times a second, it would take a core."""


def eventually(check: Callable[[], Any], *, within_s: float = 120, every_s: float = POLL_S) -> Any:
    """Poll until `check()` is true, and return its result."""
    deadline = time.monotonic() + within_s
    while not (seen := check()):
        assert time.monotonic() < deadline, f"not true within {within_s:.0f} s"
        time.sleep(every_s)
    return seen


def throughout(check: Callable[[], Any], *, for_s: float) -> None:
    """Assert that `check()` stays true."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert check(), f"not true for {for_s:.0f} s"
        time.sleep(POLL_S)
