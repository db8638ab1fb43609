"""The same step for several tables, side by side: most of its time is spent waiting for storage and catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

THREADS_MOST = 8


def in_parallel(step: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """The results in the items' order. All steps have ended when it returns or raises what the first failed one did."""
    if len(items) < 2:
        return [step(item) for item in items]
    with ThreadPoolExecutor(min(len(items), THREADS_MOST), "tables") as threads:
        steps = [threads.submit(step, item) for item in items]
    return [done.result() for done in steps]
