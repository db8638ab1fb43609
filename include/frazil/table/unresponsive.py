"""Remembers services that did not answer, so that a command waits for each once, and not for each stream or table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from frazil.errors import CommitUnavailable, KafkaUnavailable
from frazil.table.parallel import DaemonThreads

A = TypeVar("A")

SLOW_ERROR_S = 10.0
"""Duration (s) of a call whose error shows that the service does not answer."""


class Unresponsive:
    """Calls services, and remembers for `keep_s` which did not answer. Threads may share it.

    A key is the service with the settings of the call. A service did not answer if all brokers were silent, if the call
    reached its timeout, or if its error took `SLOW_ERROR_S`. No error is remembered if a call with the same key
    succeeded meanwhile.
    """

    def __init__(self, keep_s: float = math.inf) -> None:
        self._keep_s = keep_s
        self._errors: dict[Hashable, tuple[Exception, float]] = {}
        self._answered_s: dict[Hashable, float] = {}

    def call(self, key: Hashable, step: Callable[[], A]) -> A:
        """Return the result of `step`, or raise the remembered error at once."""
        began_s = time.monotonic()
        known, at_s = self._errors.get(key, (None, 0.0))
        if known is not None and began_s - at_s < self._keep_s:
            raise known.with_traceback(None)  # each raise adds frames, which keep their variables
        try:
            result = step()
        except (KafkaUnavailable, CommitUnavailable) as error:
            now_s = time.monotonic()
            is_late = isinstance(error.__cause__, TimeoutError) or now_s - began_s >= SLOW_ERROR_S
            silent = error.all_brokers if isinstance(error, KafkaUnavailable) else is_late
            if silent and self._answered_s.get(key, -math.inf) < began_s:
                self._errors[key] = error, now_s
            raise
        self._answered_s[key] = time.monotonic()
        return result


def run_with_timeout(step: Callable[[], A], timeout_s: float) -> A:
    """Run a step that may hang. Raises TimeoutError after `timeout_s`; the step's thread is then abandoned."""
    thread = DaemonThreads(1, "with_timeout")
    try:
        return thread.submit(partial(copy_context().run, step)).result(timeout_s)
    finally:
        thread.close()
