"""Caches values read from files until the files may have changed.

Hundreds of supervisors read the files every few seconds.
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
"""Nanoseconds since a file's last change after which its content can be cached.

Two changes within one tick of the file system's clock look the same. The coarsest ticks are 2 s (FAT, some NFS).
"""
MAX_ENTRIES = 10_000
"""Maximum number of cached files; at this number, the cache is emptied."""

Signature = tuple[int, int, int, int] | None
"""Change time, modification time, size and inode of a file; None if the file is missing or inaccessible."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    """The cached result of a read: the value, or the text of its SpecError."""

    signatures: tuple[Signature, ...]
    """Signatures of the file and of the files next to it."""
    value: T | None
    problem: str | None


class FileCache(Generic[T]):
    """Caches the results of a reader by path. A SpecError is cached too, unless an OSError caused it, because that may
    be temporary.
    """

    def __init__(self, read: Callable[[Path], T], *, beside: tuple[str, ...] = ()) -> None:
        """`beside` lists the names of other files in the same folder that the reader also reads. They may be
        missing.
        """
        self._read, self._beside = read, beside
        self._entries: dict[Path, _Entry[T]] = {}

    def get(self, path: Path) -> T:
        """Return the result of `read` for this path, or raise its exception.

        The value is shared and must not be changed.
        """
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
        """Read a file. Returns an entry with the value, or with a SpecError's text. Raises a SpecError that an OSError
        caused.
        """
        try:
            return _Entry(seen, self._read(path), None)
        except SpecError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return _Entry(seen, None, str(error))


def read_signature(path: Path) -> Signature:
    """Return a value that changes when the file changes; None if the file is missing or inaccessible.

    It includes the change time (ctime), which programs cannot set, unlike the modification time.
    """
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ctime_ns, seen.st_mtime_ns, seen.st_size, seen.st_ino
