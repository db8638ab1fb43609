"""The writer's log: rotated when a launch begins, read in whole lines, searched for the last error."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from frazil.host.launcher import LogChunk, LogPosition

LOG_FILE = "writer.log"
LOGS_KEPT = 5
ERROR_LINES = 5
ERROR_CHARACTERS = 2000
_LEVELS = {"WARN": logging.WARNING, "FATAL": logging.CRITICAL, "TRACE": logging.DEBUG, **logging.getLevelNamesMapping()}
_LEVEL = re.compile(r"\S+ \S+ (" + "|".join(_LEVELS) + r") ")
"""Of our own lines and of Spark's: date, time, level."""


def rotate(folder: Path) -> None:
    """Move the last launch's log out of the way; the latest five are kept as `writer.log.1` and on."""
    names = [LOG_FILE, *(f"{LOG_FILE}.{n}" for n in range(1, LOGS_KEPT + 1))]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        if (folder / newer).exists():
            (folder / newer).replace(folder / older)


def redirect(log: Path) -> None:
    """All that this process and its children say goes to the log: a pipe would break when its reader dies."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def read_lines(path: Path, *, launch_id: str, since: LogPosition | None, limit_bytes: int) -> LogChunk | None:
    """Whole lines after a position; where more than the limit is new, its end, and a line that says how much is not."""
    start = since.offset_bytes if since is not None and since.launch_id == launch_id else 0
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            skipped = max(0, size - start - limit_bytes)
            log.seek(start + skipped)
            data = log.read(limit_bytes)
    except FileNotFoundError:
        return None
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) == limit_bytes:
        whole = data
    lines = whole.decode(errors="replace").splitlines()
    if skipped:
        lines = [f"... {skipped} bytes are not shown here; the whole log is {path}", *lines[1:]]
    return LogChunk(tuple(lines), LogPosition(launch_id, start + skipped + len(whole)))


def leveled(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Each line with its level as `logging` counts; one without a level, as of a trace, has that of the line before."""
    level = logging.INFO
    for line in lines:
        if found := _LEVEL.match(line):
            level = _LEVELS[found[1]]
        yield level, line


def last_error(folder: Path) -> str | None:
    """The end of the log, which is where a process that died says why; None where it says nothing."""
    chunk = read_lines(folder / LOG_FILE, launch_id="", since=None, limit_bytes=16_384)
    said = [line for line in chunk.lines if line.strip()] if chunk else []
    return "\n".join(said[-ERROR_LINES:])[-ERROR_CHARACTERS:] or None
