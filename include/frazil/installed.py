"""Whether frazil's files are still those that this process began with.

A process that goes on while they are replaced loads some of the new ones next to the old ones. What then fails says
nothing about a table, a catalog or Kafka.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
OF_CODE = (ImportError, AttributeError, NameError, TypeError)
"""What one module raises that meets another version of the next."""
Files = frozenset[tuple[str, int, int]]
"""Each module's path, size and time of change."""


@dataclass(frozen=True, slots=True)
class Began:
    """The files that a process started with. `process` is its name in a sentence."""

    process: str
    files: Files


_began: list[Began] = []


def remember(process: str) -> None:
    """Remember the files; call it when a long-lived process starts."""
    _began[:] = [Began(process, _files(FOLDER))]


def outdated(error: BaseException) -> str | None:
    """What to do about an error that may come of files that were replaced, with the error; None for any other error."""
    if not _began or not isinstance(error, OF_CODE) or _files(FOLDER) == _began[0].files:
        return None
    process = _began[0].process
    return (
        f"frazil was changed under this {process} since it began, and only parts of it are loaded again: restart it. "
        f"If it fails again after that, the change is not the cause: {type(error).__name__}: "
        f"{' '.join(str(error).split())}"
    )


def fingerprint(folder: Path) -> str:
    """Digest a package's files: it changes once any of them is replaced."""
    return hashlib.sha256(repr(sorted(_files(folder))).encode()).hexdigest()


def _files(folder: Path) -> Files:
    found = set()
    for file in folder.rglob("*.py"):
        try:
            status = file.stat()
        except OSError:  # it is being replaced just now
            continue
        found.add((str(file), status.st_size, status.st_mtime_ns))
    return frozenset(found)
