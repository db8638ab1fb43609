"""Says in the log that a batch waits for a cluster that has no executor left for it: Spark waits in silence."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

LOOK_S = 30.0
"""Between two looks. One without executors may come just before new ones do."""


@contextmanager
def told_if_lost(executors: Callable[[], int], sentence: str, *, look_s: float = LOOK_S) -> Iterator[None]:
    """While the context lasts, warn with the sentence at each look that finds no executor, as the one before did.

    `executors` counts them. When it raises, there are no more looks.
    """
    over = threading.Event()

    def look() -> None:
        missing = 0
        while not over.wait(look_s):
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

    thread = threading.Thread(target=look, name="executors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
