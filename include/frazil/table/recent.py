"""A thread-safe cache with a maximum number of values."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """A thread-safe cache of up to `limit` values by name. It evicts the value that was stored first; reads do not
    matter.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[str, Value] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> Value | None:
        return self._kept.get(name)

    def keep(self, name: str, value: Value) -> None:
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = value
            while len(self._kept) > self._limit:
                del self._kept[next(iter(self._kept))]

    def forget(self, name: str) -> None:
        with self._lock:
            self._kept.pop(name, None)
