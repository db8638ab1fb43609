"""Detects whether frazil's files were replaced after this process started.

Such a process may mix modules of two versions. Its errors are then not caused by tables, catalogs or Kafka.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from frazil.errors import error_text

FOLDER = Path(__file__).parent
CODE_ERRORS = (ImportError, AttributeError, NameError, TypeError)
"""Errors that occur if one process mixes modules of two versions."""
FileVersions = frozenset[tuple[str, int, int]]
"""Path, size and modification time (ns) of each module's file."""


@dataclass(frozen=True, slots=True)
class ProcessStart:
    process: str
    files: FileVersions


_starts: list[ProcessStart] = []


def remember_files(process: str) -> None:
    """Store the state of frazil's files at the start of a long-lived process, whose name in messages is `process`."""
    _starts[:] = [ProcessStart(process, _list_files(FOLDER))]


def explain_outdated(error: BaseException) -> str | None:
    """Return a sentence that advises a restart, if replaced files may be the cause of the error."""
    if not _starts or not isinstance(error, CODE_ERRORS) or _list_files(FOLDER) == _starts[0].files:
        return None
    process = _starts[0].process
    return (
        f"frazil's files were replaced after this {process} started, so it runs a mixture of old and new code. Restart "
        f"it. If the error persists, it has another cause: {error_text(error)}"
    )


def hash_files(folder: Path) -> str:
    """Return a hash that changes when any of a package's files is replaced."""
    return hashlib.sha256(repr(sorted(_list_files(folder))).encode()).hexdigest()


def _list_files(folder: Path) -> FileVersions:
    files = set()
    for file in folder.rglob("*.py"):
        try:
            status = file.stat()
        except OSError:  # it is being replaced
            continue
        files.add((str(file), status.st_size, status.st_mtime_ns))
    return frozenset(files)
