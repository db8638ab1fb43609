"""What of a writer's own log goes into its task's log: a share of it; all of it stays in writer.log.

A deferred task may run for weeks, and Airflow never rotates a task's log: each hour has a limit, and warnings beyond it
are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

WARNINGS_AN_HOUR, OTHERS_AN_HOUR = 200, 30
"""The first lines of an hour, so that a start is told whole."""
HOUR_S = 3_600.0


@dataclass(slots=True)
class WriterLines:
    """Goes on from one piece of the log to the next."""

    _told_s: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    """When warnings were told, and others."""
    _left_out: int = 0
    """Of warnings."""

    def telling(self, lines: Iterable[tuple[int, str]], *, now_s: float) -> Iterator[tuple[int, str]]:
        """The lines to tell, each with its level, and how many warnings were left out before."""
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
