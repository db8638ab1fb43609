"""Warns that a batch waits because the cluster has no executor left for it: Spark itself logs nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 30.0
"""Interval of the checks. A single check may find no executor just before new executors arrive."""


@contextmanager
def report_if_lost(
    executors: Callable[[], int], sentence: str, *, poll_interval_s: float = POLL_INTERVAL_S
) -> Iterator[None]:
    """Log the sentence, during the context, at each check that finds no executor for the second time in a row or more.

    `executors` returns the number of executors. The checks end when `executors` raises.
    """
    over = threading.Event()

    def watch() -> None:
        missing = 0
        while not over.wait(poll_interval_s):
            try:
                found = executors()
            except Exception as error:  # the JVM is gone, which the batch itself tells
                log.debug("executors cannot be counted: %r", error)
                return
            if found:
                if missing > 1:
                    log.warning("the batch has %d executors again", found)
                missing = 0
                continue
            missing += 1
            if missing > 1:
                log.warning("%s", sentence)

    thread = threading.Thread(target=watch, name="executors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
