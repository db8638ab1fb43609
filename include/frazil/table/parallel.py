"""Runs the same step for several tables in parallel, because most steps wait for storage and catalogs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

MAX_THREADS = 8
"""Maximum number of steps that run in parallel."""


def run_in_parallel(step: Callable[[A], B], items: Sequence[A], *, at_once: int = MAX_THREADS) -> list[B]:
    """Call `step` for each item in parallel, and return the results in the order of the items.

    Returns or raises only when all steps have ended. The last item's step runs in the calling thread, because the table
    that decides a commit may need it.
    """
    if len(items) < 2 or at_once < 2:
        return [step(item) for item in items]
    *others, last = items
    with ThreadPoolExecutor(min(len(others), at_once), "tables") as threads:
        steps = [threads.submit(step, item) for item in others]
        done = step(last)
    return [*(one.result() for one in steps), done]
