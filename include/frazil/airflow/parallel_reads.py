"""Reads many streams or tables in one task, in parallel. If one read hangs or fails, the other reads continue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

MAX_THREADS = 8
"""Maximum number of parallel reads: several, so that an unresponsive catalog delays the task by only one timeout."""


def read_in_parallel(
    names: Iterable[str], read: Callable[[str], T], *, within_s: float, max_threads: int = MAX_THREADS
) -> dict[str, T | Exception]:
    """Read all names in parallel. Return the result of `read` or its exception, by name.

    A read that takes longer than `within_s` is abandoned, and its entry is a TimeoutError.
    """
    pool = ThreadPoolExecutor(max_threads)
    futures = {name: pool.submit(read, name) for name in names}
    wait(futures.values(), timeout=within_s)
    found: dict[str, T | Exception] = {}
    for name, future in futures.items():
        if not future.done():
            found[name] = TimeoutError(f"{name} could not be read within {within_s:.0f} s")
        elif isinstance(error := future.exception(), Exception):
            found[name] = error
        else:
            found[name] = future.result()
    pool.shutdown(wait=False, cancel_futures=True)
    return found
