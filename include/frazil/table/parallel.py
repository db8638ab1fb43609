"""Runs the same step for several streams or tables in parallel. Most steps wait for storage and catalogs.
The threads of `DaemonThreads` run calls that may hang.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from frazil.errors import FrazilError

log = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")

MAX_THREADS = 8
kept_in_thread: ContextVar[dict[Any, Any] | None] = ContextVar("kept in thread", default=None)
"""What a step keeps for the next steps of its thread, such as an opened catalog; None if it keeps nothing."""


def run_in_parallel(step: Callable[[A], B], items: Sequence[A], *, max_threads: int = MAX_THREADS) -> list[B]:
    """Call `step` for each item, and return the results in order. The calling thread handles the last item.

    The steps of each other thread share what is in `kept_in_thread`.
    """
    if len(items) < 2 or max_threads < 2:
        return [step(item) for item in items]
    *first_items, last = items
    with ThreadPoolExecutor(min(len(first_items), max_threads), "tables", _keep_in_thread) as threads:
        steps = [threads.submit(step, item) for item in first_items]
        last_result = step(last)
    return [*(step.result() for step in steps), last_result]


def _keep_in_thread() -> None:
    kept_in_thread.set({})


def read_in_parallel(
    names: Iterable[str],
    read: Callable[[str], A],
    *,
    timeout_s: float,
    group: Callable[[str], str] = lambda _: "",
    max_threads: int = MAX_THREADS,
) -> dict[str, A | Exception]:
    """Read all names in parallel, and return the result of `read` or its exception, by name.

    `group` returns what a read depends on, such as its catalog. Groups do not wait for each other. If no read of a
    group ends for `timeout_s`, the group's unfinished reads are abandoned, and each of their entries is a TimeoutError.
    Abandoned reads do not keep the process from ending. The reads of a thread share what is in `kept_in_thread`.
    """

    def read_and_keep(name: str) -> A:
        if kept_in_thread.get() is None:
            _keep_in_thread()
        return read(name)

    groups = {name: group(name) for name in names}
    pools = {key: DaemonThreads(max_threads, f"read_{key}") for key in groups.values()}
    futures = {name: pools[key].submit(partial(read_and_keep, name)) for name, key in groups.items()}
    _wait_while_groups_progress({future: groups[name] for name, future in futures.items()}, timeout_s)
    for pool in pools.values():
        pool.close()
    return {name: _result(name, future, timeout_s) for name, future in futures.items()}


def _wait_while_groups_progress(group_of: Mapping[Future[A], str], timeout_s: float) -> None:
    """Wait until each read has ended, or no read of its group has ended for `timeout_s`."""
    now_s = time.monotonic()
    deadlines = dict.fromkeys(group_of.values(), now_s + timeout_s)
    waiting = set(group_of)
    while waiting := {future for future in waiting if deadlines[group_of[future]] > now_s}:
        soonest_s = min(deadlines[group_of[future]] for future in waiting)
        done, waiting = wait(waiting, timeout=max(soonest_s - now_s, 0), return_when=FIRST_COMPLETED)
        now_s = time.monotonic()
        deadlines |= {group_of[future]: now_s + timeout_s for future in done}


def _result(name: str, future: Future[Any], timeout_s: float) -> Any:
    """Return a read's result or error, or a TimeoutError if the read has not ended."""
    if future.cancelled() or not future.done():
        return TimeoutError(f"{name} could not be read within {timeout_s:.0f} s")
    error = future.exception()
    return error if isinstance(error, Exception) else future.result()


def find_failures(results: Mapping[str, object], failure: str, all_failed: str) -> list[str]:
    """Return the names whose read failed, and log each error with the text `failure`. Raises FrazilError if there are
    several reads and all failed, because a common cause is likely. `all_failed` is its text, with {} for their number.
    """
    failed = {name: error for name, error in results.items() if isinstance(error, Exception)}
    for name, error in failed.items():
        log.error("%s: %s: %r", name, failure, error)
    if len(failed) == len(results) > 1:
        name, error = next(iter(failed.items()))
        raise FrazilError(f"{all_failed.format(len(failed))}; {name}: {error!r}") from error
    return list(failed)


class DaemonThreads:
    """Runs calls in at most `count` daemon threads, in the order in which they were submitted."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, call: Callable[[], A]) -> Future[A]:
        """Queue a call, and return its future, which is cancelled if the pool is closed."""
        answer: Future[A] = Future()
        with self._lock:
            if self._closed:
                answer.cancel()
                return answer
            self._calls.put((answer, call))
            if len(self._threads) < self._count:
                number = len(self._threads)
                self._threads.append(threading.Thread(target=self._run, name=f"{self._name}_{number}", daemon=True))
                self._threads[-1].start()
        return answer

    def close(self) -> None:
        """Cancel queued calls, and let each thread end after its current call. Does not wait. Call it only once."""
        with self._lock:
            self._closed = True
        while True:
            try:
                waiting = self._calls.get_nowait()
            except Empty:
                break
            if waiting is not None:
                waiting[0].cancel()
        for _ in self._threads:
            self._calls.put(None)

    def _run(self) -> None:
        while (waiting := self._calls.get()) is not None:
            answer, call = waiting
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)
