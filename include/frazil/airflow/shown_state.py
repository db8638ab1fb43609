"""Shows the state of a deferred task's writer, or what the task waits for, as an XCom of the task. A trigger can write
nothing else that the UI of Airflow 3.3 shows.

Also selects the lines of a writer's log that are copied to the task's log, which Airflow never rotates. Lines that
differ only in their numbers have the same shape. The first lines of each shape are copied. Then only the newest line of
the shape is copied, once an hour, with the number of omitted lines. The number of lines per hour is also limited.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import SetXCom

from frazil import clock
from frazil.spec.units import mask_numbers
from frazil.timetext import format_utc

MIN_DEFERRAL_S = 15.0
"""Minimum number of seconds before a trigger fires. If it fires before the executor has reported the end of the task's
first half, Airflow 3.3 may kill the second half, and retry a task that has failed for good.
"""
XCOM_KEY = "frazil_state"
"""The XCom's key, by which Airflow's list of XComs shows every writer."""
RENEW_INTERVAL_S = 900.0
"""Seconds after which an unchanged state is written again with current numbers."""
MAX_BURST, REFILL_INTERVAL_S = 6, 360.0
"""Limit on writes: 6 in a burst, and one more every 360 seconds."""
RETRY_INTERVAL_S = 60.0
WRITE_TIMEOUT_S = 20.0


class Instance(Protocol):
    dag_id: str
    run_id: str
    task_id: str


@dataclass(slots=True)
class WriteLimit:
    """Decides when to write: immediately (within a limit) if the state changed, otherwise at intervals."""

    _published: str | None = None
    _tried_s: float = -RETRY_INTERVAL_S
    _left: float = MAX_BURST
    _failed: bool = False

    def is_due(self, state: str, *, now_s: float) -> bool:
        since_s = now_s - self._tried_s
        if self._failed and since_s < RETRY_INTERVAL_S:
            return False
        credit = min(self._left + since_s / REFILL_INTERVAL_S, MAX_BURST)
        return (state != self._published or since_s >= RENEW_INTERVAL_S) and credit >= 1

    def is_shown(self, state: str) -> bool:
        return state == self._published and not self._failed

    def record_attempt(self, *, now_s: float) -> None:
        self._left = min(self._left + (now_s - self._tried_s) / REFILL_INTERVAL_S, MAX_BURST) - 1
        self._tried_s = now_s

    def record_result(self, state: str | None) -> None:
        self._failed = state is None
        self._published = state or self._published


@dataclass(slots=True)
class ShownState:
    """Writes the state of one deferred task. A failed write is reported once by `warn`, and tried again."""

    warn: Callable[..., object]
    _limit: WriteLimit = field(default_factory=WriteLimit)
    _state: str | None = None
    _since: str = ""
    _has_warned: bool = False
    _writing: asyncio.Task[None] | None = None

    def show(self, instance: Instance | None, state: str, sentence: str) -> None:
        """Write the state if a write is due, without blocking. Call this from the event loop that runs the trigger."""
        now_s = time.monotonic()
        self._note_state(state)
        is_writing = self._writing is not None and not self._writing.done()
        if instance is None or is_writing or not self._limit.is_due(state, now_s=now_s):
            return
        self._limit.record_attempt(now_s=now_s)
        self._writing = asyncio.create_task(self._write(instance, state, sentence))

    async def write_final_state(self, instance: Instance | None, state: str, sentence: str) -> None:
        """Write the final state after any write in progress, so that no earlier state replaces it."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        self._note_state(state)
        if instance is not None and not self._limit.is_shown(state):
            await self._write(instance, state, sentence)

    def _note_state(self, state: str) -> None:
        if state != self._state:
            self._state, self._since = state, format_utc(clock.now_ms())

    async def _write(self, instance: Instance, state: str, sentence: str) -> None:
        try:
            await asyncio.wait_for(self._set_xcom(instance, state, sentence), WRITE_TIMEOUT_S)
        except Exception as error:  # any error of Airflow, its database or the network
            self._limit.record_result(None)
            if not self._has_warned:
                self.warn("Cannot show the writer's state on its task; will retry: %r", error)
            self._has_warned = True
        else:
            self._limit.record_result(state)
            self._has_warned = False

    async def _set_xcom(self, instance: Instance, state: str, sentence: str) -> None:
        value = {"state": state, "since": self._since, "as_of": format_utc(clock.now_ms()), "says": sentence[:1_000]}
        task_ids = {"dag_id": instance.dag_id, "run_id": instance.run_id, "task_id": instance.task_id}
        # Awaited, not sent from a thread: a slow Airflow would exhaust the threads.
        await task_runner.SUPERVISOR_COMMS.asend(SetXCom(key=XCOM_KEY, value=value, **task_ids))


MAX_WARNINGS_PER_HOUR, MAX_OTHERS_PER_HOUR = 200, 30
MAX_ALIKE_WARNINGS, MAX_ALIKE_OTHERS = 10, 1
"""Maximum number of warnings, and of other lines, of one shape that are copied one by one."""
HOUR_S = 3_600.0


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
