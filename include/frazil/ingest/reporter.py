"""Reports how many records a task has read while the task runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

REPORT_EVERY_S = 1.0


class Reporter:
    """Reports the task's progress. If a report fails, the task continues."""

    def __init__(self, on_progress: Callable[[int], None]) -> None:
        self._on_progress = on_progress
        self._due = time.monotonic() + REPORT_EVERY_S
        self._warned = False

    def now_and_then(self, records: int) -> None:
        if time.monotonic() >= self._due:
            self(records)
            self._due = time.monotonic() + REPORT_EVERY_S

    def __call__(self, records: int) -> None:
        try:
            self._on_progress(records)
        except Exception as error:
            if not self._warned:
                log.warning("cannot report the task's progress; the task continues: %s", error)
            self._warned = True
