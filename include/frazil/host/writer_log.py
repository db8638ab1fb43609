"""Rotates the writer's log, at each launch and when it is full, and reads it. The writer, its JVM and Spark's workers
have the file open, so a full log is copied and truncated, as with logrotate's `copytruncate`. Lines written in the
microseconds in between are lost.
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
MAX_LOGS = 5
MAX_LOG_BYTES = 64 * 1024**2
TRUNCATED_LINE = f"... earlier lines are in {LOG_FILE}.1"
MAX_ERROR_LINES = 5
MAX_ERROR_CHARACTERS = 2000
_LEVELS = {"WARN": logging.WARNING, "FATAL": logging.CRITICAL, "TRACE": logging.DEBUG, **logging.getLevelNamesMapping()}
_LEVEL_PATTERN = re.compile(r"\S+ \S+ (" + "|".join(_LEVELS) + r") ")
_LIBRDKAFKA = re.compile(r"%\d\|\d+\.\d+\|")
"""Matches a line of librdkafka, which retries by itself. What it cannot fix, it raises, and frazil logs the error."""
_STACK_FRAME = re.compile(r"\s*(at [\w.$<>/]+\(|\.\.\. \d+ more)")
"""Matches a line of a Java stack trace, which is useless without its beginning."""
_OMITTED = "... "
_COPY_BLOCK_BYTES = 1024**2


def rotate_log(folder: Path) -> None:
    _shift_logs(folder, LOG_FILE)


def _shift_logs(folder: Path, newest: str) -> None:
    names = [newest, *(f"{LOG_FILE}.{n}" for n in range(1, MAX_LOGS + 1))]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        with suppress(FileNotFoundError):
            (folder / newer).replace(folder / older)


def rotate_full_log(folder: Path, *, full_bytes: int = MAX_LOG_BYTES) -> bool:
    """Copy a full log to `writer.log.1`, truncate it, and return True. After an OSError, the log is unchanged.
    If this process is killed halfway, a line may be in both files.
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
        _shift_logs(folder, copy.name)
        _copy_rest(full, to)
        full.truncate(0)
        to.seek(max(to.tell() - 1, 0))
        if to.read(1) not in (b"", b"\n"):  # end the incomplete last line
            to.write(b"\n")
    with log.open("a") as emptied:
        emptied.write(f"{TRUNCATED_LINE}\n")
    return True


def _copy_rest(source: FileIO, to: FileIO) -> None:
    while data := source.read(_COPY_BLOCK_BYTES):
        to.write(data)


def redirect_output(log: Path) -> None:
    """Redirect the output of this process and its children to the log file, and their input to an empty file."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def read_lines(path: Path, *, launch_id: str, since: LogPosition | None, limit_bytes: int) -> LogChunk | None:
    """Return the complete lines after a position. Lines before a truncation are read from `writer.log.1`."""
    start = since.offset_bytes if since is not None and since.launch_id == launch_id else 0
    try:
        earlier_lines: tuple[str, ...] = ()
        if path.stat().st_size < start:  # it was truncated, and its unread rest is in writer.log.1
            with suppress(FileNotFoundError):  # unless a user emptied it
                earlier_lines, _ = _read_whole_lines(path.with_name(f"{path.name}.1"), start, limit_bytes)
            start = 0
        lines, end = _read_whole_lines(path, start, limit_bytes)
    except FileNotFoundError:
        return None
    return LogChunk((*earlier_lines, *lines), LogPosition(launch_id, end))


def _read_whole_lines(path: Path, start: int, limit_bytes: int) -> tuple[tuple[str, ...], int]:
    """Return the complete lines from an offset on (only the last ones if they exceed the limit), and the end offset."""
    with path.open("rb") as log:
        size = log.seek(0, 2)
        skipped = max(0, size - start - limit_bytes)
        log.seek(start + skipped)
        data = log.read(limit_bytes)
    text = data[: data.rfind(b"\n") + 1]
    if not text and len(data) == limit_bytes:
        text = data
    lines = text.decode(errors="replace").splitlines()
    if skipped:
        lines = [f"{_OMITTED}{skipped} bytes are omitted; the complete log is {path}", *lines[1:]]
    return tuple(lines), start + skipped + len(text)


def parse_levels(lines: Iterable[str], *, level: int = logging.INFO) -> Iterator[tuple[int, str]]:
    """Yield each line with its level. A line without a level gets the previous line's level, the first one `level`."""
    for line in lines:
        if match := _LEVEL_PATTERN.match(line):
            level = _LEVELS[match[1]]
        yield logging.INFO if _LIBRDKAFKA.match(line) else level, line


def first_error(folder: Path) -> str | None:
    """Return the first error in the last part of the log, or None. It usually caused the later errors."""
    lines = _last_lines_of_level(folder, min_level=logging.ERROR)
    return "\n".join(lines[:MAX_ERROR_LINES])[:MAX_ERROR_CHARACTERS] or None


def last_error(folder: Path, *, min_level: int = logging.NOTSET) -> str | None:
    """Return the log's last lines of `min_level` or above, or None. They usually explain a crash."""
    return (
        "\n".join(_last_lines_of_level(folder, min_level=min_level)[-MAX_ERROR_LINES:])[-MAX_ERROR_CHARACTERS:] or None
    )


def _last_lines_of_level(folder: Path, *, min_level: int) -> list[str]:
    """Return the last lines of `min_level` or above. Omits stack traces and lines that every Spark session logs."""
    lines = _last_lines(folder / LOG_FILE)
    if TRUNCATED_LINE in lines[:MAX_ERROR_LINES]:  # few lines since it was truncated
        lines = [*_last_lines(folder / f"{LOG_FILE}.1"), *(line for line in lines if line != TRUNCATED_LINE)]
    # A shortened log may begin within a traceback; a complete log begins with messages of Java and Spark.
    is_shortened = bool(lines) and lines[0].startswith(_OMITTED)
    first = logging.CRITICAL if is_shortened else logging.INFO
    pairs = parse_levels(lines[is_shortened:], level=first)
    lines = [line for level, line in pairs if level >= min_level and "Unable to load native-hadoop library" not in line]
    return [line for line in lines if not (min_level and _STACK_FRAME.match(line))]


def _last_lines(log: Path) -> list[str]:
    chunk = read_lines(log, launch_id="", since=None, limit_bytes=16_384)
    return [line for line in chunk.lines if line.strip()] if chunk else []
