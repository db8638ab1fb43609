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


class Unresponsive:
    """Calls services, and remembers for `keep_s` which did not answer. Threads may share it.

    A key is the service with the settings of the call. A service did not answer if all brokers were silent, or if its
    error took `slow_s`. No error is remembered if a call with the same key succeeded meanwhile.
    """

    def __init__(self, keep_s: float = math.inf) -> None:
        self._keep_s = keep_s
        self._errors: dict[Hashable, tuple[Exception, float]] = {}
        self._answered_s: dict[Hashable, float] = {}

    def call(self, key: Hashable, step: Callable[[], A], *, slow_s: float = SLOW_ERROR_S) -> A:
        """Return the result of `step`, or raise the remembered error at once."""
        began_s = time.monotonic()
        known, at_s = self._errors.get(key, (None, 0.0))
        if known is not None and began_s - at_s < self._keep_s:
            raise known.with_traceback(None)  # each raise adds frames, which keep their variables
        try:
            result = step()
        except (KafkaUnavailable, CommitUnavailable) as error:
            now_s = time.monotonic()
            silent = error.all_brokers if isinstance(error, KafkaUnavailable) else now_s - began_s >= slow_s
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
