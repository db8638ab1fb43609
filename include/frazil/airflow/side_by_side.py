"""Polls many streams or tables in one task, in parallel; a hanging or failing one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 8
"""Threads, so that a silent catalog costs its timeout once."""


def side_by_side(
    names: Iterable[str], read: Callable[[str], T], *, within_s: float, at_once: int = AT_ONCE
) -> dict[str, T | Exception]:
    """The result of `read` for each name, or its exception; a TimeoutError if it takes more than `within_s` seconds.

    `read` runs in threads, where a task cannot talk to Airflow. One that hangs keeps its thread until the task's
    process ends, which does not wait for it.
    """
    pool = ThreadPoolExecutor(at_once)
    futures = {name: pool.submit(read, name) for name in names}
    wait(futures.values(), timeout=within_s)
    found: dict[str, T | Exception] = {}
    for name, future in futures.items():
        if not future.done():
            found[name] = TimeoutError(f"{name} was not looked at within {within_s:.0f} s")
        elif isinstance(error := future.exception(), Exception):
            found[name] = error
        else:
            found[name] = future.result()
    pool.shutdown(wait=False, cancel_futures=True)
    return found
