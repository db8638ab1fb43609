"""Runs the same step for several tables in parallel, because most wait for storage and catalogs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

MAX_THREADS = 8


def run_in_parallel(step: Callable[[A], B], items: Sequence[A], *, max_threads: int = MAX_THREADS) -> list[B]:
    """Call `step` for each item, the last one in the calling thread, and return the results in order."""
    if len(items) < 2 or max_threads < 2:
        return [step(item) for item in items]
    *others, last = items
    with ThreadPoolExecutor(min(len(others), max_threads), "tables") as threads:
        steps = [threads.submit(step, item) for item in others]
        done = step(last)
    return [*(one.result() for one in steps), done]
