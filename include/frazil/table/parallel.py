"""Runs the same step for several streams or tables in parallel, because most wait for storage and catalogs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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


def read_in_parallel(
    names: Iterable[str], read: Callable[[str], A], *, timeout_s: float, max_threads: int = MAX_THREADS
) -> dict[str, A | Exception]:
    """Read all names in parallel. Return the result of `read` or its exception, by name.

    A read that takes longer than `timeout_s` is abandoned, and its entry is a TimeoutError.
    """
    pool = ThreadPoolExecutor(max_threads)
    futures = {name: pool.submit(read, name) for name in names}
    wait(futures.values(), timeout=timeout_s)
    found: dict[str, A | Exception] = {}
    for name, future in futures.items():
        if not future.done():
            found[name] = TimeoutError(f"{name} could not be read within {timeout_s:.0f} s")
        elif isinstance(error := future.exception(), Exception):
            found[name] = error
        else:
            found[name] = future.result()
    pool.shutdown(wait=False, cancel_futures=True)
    return found
