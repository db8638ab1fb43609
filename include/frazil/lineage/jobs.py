"""Reports runs of batch jobs to OpenLineage: START, then COMPLETE or FAIL. A thread sends the events, and only the end
of the process waits for it. If the backend is down, START is sent with the run's end event, or both are lost.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from frazil.extras import report_missing_extras
from frazil.lineage.facts import LineageSettings, LineageState, RunFacts
from frazil.lineage.stream import Sender

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
MAX_QUEUED_EVENTS = 4_000
"""Maximum number of queued events; further events are lost. A maintenance run of 500 tables has 1,000."""

Connect = Callable[[LineageSettings, str], Sender]


def connect(settings: LineageSettings, job: str, *, streaming: bool = False) -> Sender:
    """Return a client for one run of a job. Raises MissingExtra without the extra `lineage`."""
    with report_missing_extras():
        from frazil.lineage.client import LineageClient  # needs the extra
    return LineageClient(settings, job, streaming=streaming)


@dataclass(frozen=True, slots=True)
class _Event:
    run: JobRun
    state: LineageState
    at_ms: int
    facts: RunFacts


class JobRun:
    """One run of a batch job. Methods never block or raise."""

    def __init__(self, job: str, put: Callable[[_Event], None]) -> None:
        self.job, self._put = job, put
        self.sender: Sender | None = None
        """The client, used by the sending thread."""

    def started(self, at_ms: int, facts: RunFacts) -> None:
        self._put(_Event(self, LineageState.START, at_ms, facts))

    def ended(self, at_ms: int, facts: RunFacts) -> None:
        self._put(_Event(self, LineageState.COMPLETE if facts.error is None else LineageState.FAIL, at_ms, facts))


class JobReporter:
    def __init__(self, settings: LineageSettings, *, connect: Connect = connect) -> None:
        self._settings, self._connect = settings, connect
        self._events: queue.Queue[_Event | None] = queue.Queue(MAX_QUEUED_EVENTS)
        # The thread is a daemon: a backend that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._send_all, name="openlineage", daemon=True)
        self._unsent: list[_Event] = []
        self._failed = False

    def run(self, job: str) -> JobRun:
        return JobRun(job, self._put)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        ends_at = time.monotonic() + CLOSE_TIMEOUT_S
        try:
            self._events.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(max(ends_at - time.monotonic(), 0))

    def _put(self, event: _Event) -> None:
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._warn(f"{MAX_QUEUED_EVENTS} events wait to be sent")

    def _send_all(self) -> None:
        while (event := self._events.get()) is not None:
            self._unsent.append(event)
            try:
                while self._unsent:
                    self._send(self._unsent[0])
                    self._unsent.pop(0)
            except Exception as error:  # transports raise what their clients raise
                self._warn(repr(error))
                if event.state is not LineageState.START:  # its run is over and sends nothing more
                    self._unsent = [queued for queued in self._unsent if queued.run is not event.run]

    def _send(self, event: _Event) -> None:
        if event.run.sender is None:
            event.run.sender = self._connect(self._settings, event.run.job)
        event.run.sender.send(event.state, event.at_ms, event.facts)
        if event.state is not LineageState.START:
            event.run.sender.close(CLOSE_TIMEOUT_S)

    def _warn(self, reason: str) -> None:
        if not self._failed:
            log.warning("cannot send all events to the OpenLineage backend: %s", reason)
        self._failed = True


@contextmanager
def openlineage_jobs(
    environment: Mapping[str, str] = os.environ, *, connect: Connect = connect
) -> Iterator[JobReporter | None]:
    """Yield the sender for this process's runs; None if no backend is declared."""
    settings = LineageSettings.load(environment)
    for problem in settings.problems:
        log.warning("%s", problem)
    if not settings.on:
        yield None
        return
    jobs = JobReporter(settings, connect=connect)
    jobs.open()
    try:
        yield jobs
    finally:
        jobs.close()
