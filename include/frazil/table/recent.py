"""A thread-safe cache with a maximum number of values."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """A thread-safe cache that evicts the oldest values, up to a number or a weight of `limit`."""

    def __init__(self, limit: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._limit, self._weigh, self._weight = limit, weigh, 0
        self._kept: dict[str, Value] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> Value | None:
        return self._kept.get(name)

    def keep(self, name: str, value: Value) -> None:
        with self._lock:
            self._remove(name)
            self._kept[name] = value
            self._weight += self._weigh(value)
            while self._weight > self._limit:
                self._remove(next(iter(self._kept)))

    def forget(self, name: str) -> None:
        with self._lock:
            self._remove(name)

    def _remove(self, name: str) -> None:
        if name in self._kept:
            self._weight -= self._weigh(self._kept.pop(name))
