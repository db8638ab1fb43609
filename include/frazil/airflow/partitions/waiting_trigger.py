"""A trigger that polls a table until its task has something to do."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow.triggers.base import BaseTrigger, TaskSkippedEvent, TriggerEvent

from frazil.airflow.deferral import SETTLED_SECONDS
from frazil.airflow.shown_state import ShownState
from frazil.airflow.writers.log_lines import shape
from frazil.errors import FrazilError

THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="frazil-looks")
"""A separate pool: one silent catalog must not block the triggerer's other work."""

QUIET_SECONDS = 3_600.0
"""Minimum time between two lines that differ only in their numbers.

The reason why a window waits contains a watermark, which moves with each commit, and Airflow never rotates the log of a
task that is deferred for weeks. The task itself shows newer information (`frazil.airflow.shown_state`).
"""
MAX_KINDS = 30
"""Kinds of lines in that time."""

FAILED = "the check failed, and is tried again"

Payload = dict[str, Any]
"""The task's input. `problem` is set if polling again would not help; with `removed` the task ends as skipped."""


class WaitingTrigger(BaseTrigger):
    """Calls `poll` every `poll_seconds` in a thread and fires once.

    Logs what it waits for when that is of another kind, and each hour what changed. Its task has polled before it
    deferred, so it begins with a wait of `SETTLED_SECONDS` or more.

    It holds no state: a restarted triggerer creates another from the same arguments. A failed poll is repeated, except
    for an error of frazil's that an operator must correct: that ends the wait.
    """

    def __init__(self, *, poll_seconds: float, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poll_seconds, self.arguments = poll_seconds, arguments

    def serialize(self) -> tuple[str, dict[str, Any]]:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {**self.arguments, "poll_seconds": self.poll_seconds}

    @abstractmethod
    def poll(self) -> tuple[Payload | None, str]:
        """The event to fire, if any, and what the task waits for."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, poll and log until there is an event."""
        shown = ShownState(self.log.info)
        said, wait_s = "", max(self.poll_seconds, SETTLED_SECONDS)
        logged_s: dict[str, float] = {}
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self.poll_seconds
            event, sentence = await asyncio.get_running_loop().run_in_executor(THREADS, self.attempt)
            if event is not None and event.get("removed"):
                # The DAG is about to be removed with its declaration; then no worker could end the task.
                self.log.info("%s", event["removed"])
                yield TaskSkippedEvent()
                return
            if event is not None:
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                return
            fails = sentence.startswith(FAILED)
            shown.show(self.task_instance, "cannot look" if fails else "waits", sentence)
            turned = (fails or said.startswith(FAILED)) and shape(sentence) != shape(said)
            now_s = time.monotonic()
            logged_s = {kind: at_s for kind, at_s in logged_s.items() if now_s - at_s < QUIET_SECONDS}
            if turned or (sentence != said and shape(sentence) not in logged_s and len(logged_s) < MAX_KINDS):
                self.log.info("%s", sentence)
                said, logged_s[shape(sentence)] = sentence, now_s

    def attempt(self) -> tuple[Payload | None, str]:
        """Call `poll`, and turn errors into results."""
        try:
            return self.poll()
        except FrazilError as error:
            if not error.restartable:
                return {"problem": f"{type(error).__name__}: {error}"}, ""
            return None, f"{FAILED}: {error}"
        except Exception as error:  # anything that a catalog, a storage or a network raises
            return None, f"{FAILED}: {error!r}"
