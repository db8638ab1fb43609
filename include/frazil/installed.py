"""Detects whether frazil's files were replaced after this process started.

A process that keeps running while its files are replaced may load new modules next to old ones. The resulting errors do
not mean that a table, a catalog or Kafka has a problem.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
CODE_ERRORS = (ImportError, AttributeError, NameError, TypeError)
"""Errors that occur when modules of different versions are loaded in one process."""
FileVersions = frozenset[tuple[str, int, int]]
"""Path, size and modification time (ns) of each module's file."""


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """The files with which a process started. `process` is its name in messages."""

    process: str
    files: FileVersions


_starts: list[ProcessStart] = []


def remember_files(process: str) -> None:
    """Store the current state of frazil's files. Called when a long-lived process starts; `process` is its name in
    messages.
    """
    _starts[:] = [ProcessStart(process, _list_files(FOLDER))]


def explain_outdated(error: BaseException) -> str | None:
    """Return a sentence that advises a restart, if replaced files may be the cause of the error; None for any other
    error.
    """
    if not _starts or not isinstance(error, CODE_ERRORS) or _list_files(FOLDER) == _starts[0].files:
        return None
    process = _starts[0].process
    return (
        f"frazil's files were replaced after this {process} started, and it loaded some of the new ones: restart it. "
        f"If it fails again, the replacement is not the cause: {type(error).__name__}: {' '.join(str(error).split())}"
    )


def hash_files(folder: Path) -> str:
    """Return a hash of a package's files; it changes when any of them is replaced."""
    return hashlib.sha256(repr(sorted(_list_files(folder))).encode()).hexdigest()


def _list_files(folder: Path) -> FileVersions:
    found = set()
    for file in folder.rglob("*.py"):
        try:
            status = file.stat()
        except OSError:  # it is being replaced
            continue
        found.add((str(file), status.st_size, status.st_mtime_ns))
    return frozenset(found)
