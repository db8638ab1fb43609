"""A thread pool for calls that may hang. Unlike a ThreadPoolExecutor, it does not delay the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads:
    """Runs calls in at most `count` daemon threads, in the order in which they were submitted."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call, and return its future, which is cancelled if the pool is closed."""
        answer: Future[T] = Future()
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
