"""Selects the lines of a writer's log that are copied to its task's log, which Airflow never rotates.

Lines that differ only in their numbers have the same shape. The first lines of each shape are copied. Then only the
newest line of the shape is copied, once an hour, with the number of omitted lines. The number of lines per hour is also
limited.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MAX_WARNINGS_PER_HOUR, MAX_OTHERS_PER_HOUR = 200, 30
MAX_ALIKE_WARNINGS, MAX_ALIKE_OTHERS = 10, 1
"""Maximum number of warnings, and of other lines, of one shape that are copied one by one."""
HOUR_S = 3_600.0
_NUMBERS = re.compile(r"\d[\d.,:]*")


def mask_numbers(line: str) -> str:
    """Return a line's shape: the line with # in place of each number."""
    return _NUMBERS.sub("#", line)


@dataclass(slots=True)
class ShapeCount:
    level: int
    since_s: float
    logged: int = 0
    omitted_lines: int = 0
    newest: str = ""


@dataclass(slots=True)
class LineSelector:
    _logged_s: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    """Times of copied warnings (True), and of other copied lines (False)."""
    _shape_counts: dict[str, ShapeCount] = field(default_factory=dict)
    _omitted: int = 0

    def begin(self) -> None:
        """Begin the log of a new writer: all its lines count as new."""
        self._shape_counts.clear()

    def lines_to_copy(self, lines: Iterable[tuple[int, str]], *, now_s: float) -> Iterator[tuple[int, str]]:
        """Yield the lines to copy, each with its level. Lines with counts of omitted lines come first."""
        yield from self._hourly_lines(now_s)
        for level, line in lines:
            warns, kind = level >= logging.WARNING, mask_numbers(line)
            alike = self._shape_counts.get(kind)
            if alike is not None and alike.logged >= (MAX_ALIKE_WARNINGS if warns else MAX_ALIKE_OTHERS):
                alike.omitted_lines, alike.newest = alike.omitted_lines + 1, line
                continue
            logged_s = [at_s for at_s in self._logged_s[warns] if now_s - at_s < HOUR_S]
            self._logged_s[warns] = logged_s
            if len(logged_s) >= (MAX_WARNINGS_PER_HOUR if warns else MAX_OTHERS_PER_HOUR):
                self._omitted += warns
                continue
            if warns and self._omitted:
                yield logging.WARNING, f"{self._omitted} warnings of the writer are omitted; writer.log has them"
                self._omitted = 0
            logged_s.append(now_s)
            alike = self._shape_counts.setdefault(kind, ShapeCount(level, now_s))
            alike.logged += 1
            yield level, line

    def _hourly_lines(self, now_s: float) -> Iterator[tuple[int, str]]:
        for kind, alike in list(self._shape_counts.items()):
            if now_s - alike.since_s < HOUR_S:
                continue
            if not alike.omitted_lines:
                del self._shape_counts[kind]
                continue
            yield alike.level, f"{alike.newest} (the last of {alike.omitted_lines} such lines; writer.log has all)"
            alike.since_s, alike.omitted_lines = now_s, 0
