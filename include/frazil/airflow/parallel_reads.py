"""Reads many streams or tables in one task, in parallel. If one read hangs or fails, the other reads continue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TypeVar

from frazil.application.daemon_threads import DaemonThreads

T = TypeVar("T")

MAX_THREADS = 8
"""Maximum number of parallel reads of a group: several, so that a slow read does not delay the others."""


def read_in_parallel(
    names: Iterable[str],
    read: Callable[[str], T],
    *,
    within_s: float,
    group: Callable[[str], str] = lambda _: "",
    max_threads: int = MAX_THREADS,
) -> dict[str, T | Exception]:
    """Read all names in parallel. Return the result of `read` or its exception, by name.

    `group` returns what a read depends on, such as its catalog. Groups do not wait for each other. If no read of a
    group ends for `within_s`, the rest of the group is abandoned, and each of its entries is a TimeoutError.
    """
    groups = {name: group(name) for name in names}
    pools = {key: DaemonThreads(max_threads, "reads") for key in groups.values()}
    futures = {name: pools[key].submit(partial(read, name)) for name, key in groups.items()}
    _wait_while_groups_progress({future: groups[name] for name, future in futures.items()}, within_s)
    found: dict[str, T | Exception] = {name: _result(name, future, within_s) for name, future in futures.items()}
    for pool in pools.values():
        pool.close()
    return found


def _wait_while_groups_progress(group_of: Mapping[Future[T], str], within_s: float) -> None:
    """Wait until each read has ended, or no read of its group has ended for `within_s`."""
    now_s = time.monotonic()
    deadlines = dict.fromkeys(group_of.values(), now_s + within_s)
    waiting = set(group_of)
    while waiting := {future for future in waiting if deadlines[group_of[future]] > now_s}:
        soonest_s = min(deadlines[group_of[future]] for future in waiting)
        done, waiting = wait(waiting, timeout=max(soonest_s - now_s, 0), return_when=FIRST_COMPLETED)
        now_s = time.monotonic()
        deadlines |= {group_of[future]: now_s + within_s for future in done}


def _result(name: str, future: Future[T], within_s: float) -> T | Exception:
    if not future.done():
        return TimeoutError(f"{name} could not be read within {within_s:.0f} s")
    error = future.exception()
    return error if isinstance(error, Exception) else future.result()
