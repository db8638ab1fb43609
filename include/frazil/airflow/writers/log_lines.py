"""Which lines of a writer's log are copied into its task's log. The whole log is in writer.log.

A deferred task may run for weeks and Airflow never rotates a task's log, so each hour has a limit. Warnings beyond it
are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

WARNINGS_AN_HOUR, OTHERS_AN_HOUR = 200, 30
"""The limit applies to the first lines of an hour, so that a start is shown whole."""
HOUR_S = 3_600.0


@dataclass(slots=True)
class WriterLines:
    """Remembers, from one piece of the log to the next, how many lines it has passed on."""

    _told_s: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    """When warnings, and other lines, were passed on."""
    _left_out: int = 0
    """Of warnings."""

    def telling(self, lines: Iterable[tuple[int, str]], *, now_s: float) -> Iterator[tuple[int, str]]:
        """The lines to pass on, each with its level, after a line that counts the warnings left out before."""
        for level, line in lines:
            warns = level >= logging.WARNING
            told_s = [at_s for at_s in self._told_s[warns] if now_s - at_s < HOUR_S]
            self._told_s[warns] = told_s
            if len(told_s) >= (WARNINGS_AN_HOUR if warns else OTHERS_AN_HOUR):
                self._left_out += warns
                continue
            if warns and self._left_out:
                said = f"{self._left_out} warnings of the writer are not shown here; writer.log has them"
                yield logging.WARNING, said
                self._left_out = 0
            told_s.append(now_s)
            yield level, line
