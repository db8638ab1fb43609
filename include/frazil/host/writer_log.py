"""The writer's log: rotated at each launch and when it is full, read in whole lines, searched for the last error.

The writer, its JVM and Spark's workers have the file open, so a full log is copied and truncated, like logrotate's
`copytruncate`. Lines written in the microseconds between the last copy and the truncation are lost.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from frazil.host.launcher import LogChunk, LogPosition

LOG_FILE = "writer.log"
LOGS_KEPT = 5
FULL_BYTES = 64 * 1024**2
CONTINUES = f"... what was logged before this is in {LOG_FILE}.1"
"""The first line of a log that was truncated."""
ERROR_LINES = 5
ERROR_CHARACTERS = 2000
_LEVELS = {"WARN": logging.WARNING, "FATAL": logging.CRITICAL, "TRACE": logging.DEBUG, **logging.getLevelNamesMapping()}
_LEVEL = re.compile(r"\S+ \S+ (" + "|".join(_LEVELS) + r") ")
"""Matches the start of a line of our log or Spark's: date, time and level."""
_CUT = "... "
_COPIED_AT_ONCE = 1024**2


def rotate(folder: Path) -> None:
    """Rename the last launch's log to `writer.log.1`, and the older logs to higher numbers; keep five."""
    _shift(folder, LOG_FILE)


def _shift(folder: Path, newest: str) -> None:
    names = [newest, *(f"{LOG_FILE}.{n}" for n in range(1, LOGS_KEPT + 1))]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        with suppress(FileNotFoundError):
            (folder / newer).replace(folder / older)


def rotate_full(folder: Path, *, full_bytes: int = FULL_BYTES) -> bool:
    """Copy a full log to `writer.log.1` and truncate it, while other processes write to it. Return whether it was full.

    Only lines written in the microseconds before the truncation are lost or incomplete. If this process is killed
    halfway, a line may be in both files. Raises OSError, usually because the disk is full, and then leaves the log
    unchanged.
    """
    log, copy = folder / LOG_FILE, folder / f"{LOG_FILE}.copy"
    try:
        if log.stat().st_size < full_bytes:
            return False
    except FileNotFoundError:
        return False
    with log.open("r+b", buffering=0) as full, copy.open("w+b", buffering=0) as to:
        try:
            _copy_rest(full, to)
        except OSError:
            copy.unlink(missing_ok=True)
            raise
        _shift(folder, copy.name)
        _copy_rest(full, to)
        full.truncate(0)
        to.seek(max(to.tell() - 1, 0))
        if to.read(1) not in (b"", b"\n"):  # a line was cut off, and must not run into the next
            to.write(b"\n")
    with log.open("a") as emptied:
        emptied.write(f"{CONTINUES}\n")
    return True


def _copy_rest(source: FileIO, to: FileIO) -> None:
    while data := source.read(_COPIED_AT_ONCE):
        to.write(data)


def redirect(log: Path) -> None:
    """Send the output of this process and its children to the log. A pipe would break when its reader dies."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def read_lines(path: Path, *, launch_id: str, since: LogPosition | None, limit_bytes: int) -> LogChunk | None:
    """Return whole lines after a position. Beyond the limit, only the last lines, after a line on the omitted bytes.

    A log that is shorter than the position was truncated. Readers are never so far behind that a second truncation is
    missed.
    """
    start = since.offset_bytes if since is not None and since.launch_id == launch_id else 0
    try:
        rest: tuple[str, ...] = ()
        if path.stat().st_size < start:  # it was truncated, and its unread rest is in writer.log.1
            with suppress(FileNotFoundError):  # unless a user emptied it
                rest, _ = _lines(path.with_name(f"{path.name}.1"), start, limit_bytes)
            start = 0
        lines, end = _lines(path, start, limit_bytes)
    except FileNotFoundError:
        return None
    return LogChunk((*rest, *lines), LogPosition(launch_id, end))


def _lines(path: Path, start: int, limit_bytes: int) -> tuple[tuple[str, ...], int]:
    """Return whole lines from an offset on, and the offset after them. Beyond the limit, only the last lines."""
    with path.open("rb") as log:
        size = log.seek(0, 2)
        skipped = max(0, size - start - limit_bytes)
        log.seek(start + skipped)
        data = log.read(limit_bytes)
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) == limit_bytes:
        whole = data
    lines = whole.decode(errors="replace").splitlines()
    if skipped:
        lines = [f"{_CUT}{skipped} bytes are not shown here; the whole log is {path}", *lines[1:]]
    return tuple(lines), start + skipped + len(whole)


def leveled(lines: Iterable[str], *, level: int = logging.INFO) -> Iterator[tuple[int, str]]:
    """Yield each line with its `logging` level.

    A line without a level, as in a traceback, has the level of the line before.

    `level` is the level of the first lines, if they have none.
    """
    for line in lines:
        if found := _LEVEL.match(line):
            level = _LEVELS[found[1]]
        yield level, line


def last_error(folder: Path, *, min_level: int = logging.NOTSET) -> str | None:
    """Return the end of the log, where a process that died usually gives the reason; None if it is empty.

    `least` is the minimum level of returned lines.
    """
    lines = _last_lines(folder / LOG_FILE)
    if CONTINUES in lines[:ERROR_LINES]:  # few lines since it was truncated
        lines = [*_last_lines(folder / f"{LOG_FILE}.1"), *(line for line in lines if line != CONTINUES)]
    # What was cut off in the middle may be a traceback; a log begins with what Java and Spark greet with.
    cut = bool(lines) and lines[0].startswith(_CUT)
    first = logging.CRITICAL if cut else logging.INFO
    lines = [line for level, line in leveled(lines[cut:], level=first) if level >= min_level]
    return "\n".join(lines[-ERROR_LINES:])[-ERROR_CHARACTERS:] or None


def _last_lines(log: Path) -> list[str]:
    chunk = read_lines(log, launch_id="", since=None, limit_bytes=16_384)
    return [line for line in chunk.lines if line.strip()] if chunk else []
