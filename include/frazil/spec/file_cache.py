"""Caches values read from files until the files may have changed, because hundreds of supervisors read them every few
seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from frazil.errors import SpecError

T = TypeVar("T")

MIN_SETTLED_AGE_NS = 3_000_000_000
"""Age of a file's last change from which its content is cached: two changes within one tick of the file system's clock
look the same, and the coarsest ticks are 2 s (FAT, some NFS).
"""
MAX_ENTRIES = 10_000
"""At this number of files, the cache is emptied."""

Signature = tuple[int, int, int, int] | None
"""Change time, modification time, size and inode; None if the file is missing or inaccessible."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    """The value, or the text of the reader's SpecError."""

    signatures: tuple[Signature, ...]
    value: T | None
    problem: str | None


class FileCache(Generic[T]):
    """Caches a reader's results by path, also a SpecError, unless a (perhaps temporary) OSError caused it."""

    def __init__(self, read: Callable[[Path], T], *, beside: tuple[str, ...] = ()) -> None:
        """`beside` names other files of the folder that the reader also reads, if they exist."""
        self._read, self._beside = read, beside
        self._entries: dict[Path, _Entry[T]] = {}

    def get(self, path: Path) -> T:
        """Return the reader's result, or raise its exception. The value is shared and must not be changed."""
        files = (path, *(path.parent / name for name in self._beside))
        now_ns, seen = time.time_ns(), tuple(map(read_signature, files))
        entry = self._entries.get(path)
        if entry is None or entry.signatures != seen:
            entry = self._read_entry(path, seen)
            # A file that has just changed may change again with the same signature, so it is read until it has settled.
            if all(one is None or one[0] < now_ns - MIN_SETTLED_AGE_NS for one in seen):
                if len(self._entries) >= MAX_ENTRIES:
                    self._entries.clear()
                self._entries[path] = entry
        if entry.problem is not None:
            raise SpecError(entry.problem)
        return entry.value  # type: ignore[return-value]  # set if there is no problem

    def _read_entry(self, path: Path, seen: tuple[Signature, ...]) -> _Entry[T]:
        """Raises a SpecError that an OSError caused."""
        try:
            return _Entry(seen, self._read(path), None)
        except SpecError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return _Entry(seen, None, str(error))


def read_signature(path: Path) -> Signature:
    """Return a value that changes with the file. It has the ctime, which, unlike the mtime, programs cannot set."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ctime_ns, seen.st_mtime_ns, seen.st_size, seen.st_ino
