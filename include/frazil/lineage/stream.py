"""Reports a writer as a streaming run: START when it takes over, RUNNING at intervals, COMPLETE or FAIL at its end. A
thread of `frazil.history.recorder` sends the events. If the backend is down, START and the newest totals are
sent once it is up again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from pyiceberg.table import Table

from frazil.events import BatchCommitted, EpochBegan, Event, TableEvolved
from frazil.lineage.facts import Dataset, LineageSettings, LineageState, RunFacts, Totals, table_dataset, topic_datasets

log = logging.getLogger(__name__)

RETRY_INTERVAL_MS = 60_000
CLOSE_TIMEOUT_S = 2.0


class Sender(Protocol):
    def send(self, state: LineageState, at_ms: int, facts: RunFacts) -> None: ...

    def close(self, timeout_s: float) -> None: ...


class StreamLineage:
    """Event sink that reports a stream's writer; `connect` creates the client in the sending thread."""

    def __init__(
        self,
        stream: str,
        *,
        settings: LineageSettings,
        bootstrap: str,
        topics: Iterable[str],
        connect: Callable[[], Sender],
    ) -> None:
        """Prepare the run. `topics` are the declared topics; the marker adds topics that match a pattern."""
        self._stream, self._settings, self._bootstrap, self._connect = stream, settings, bootstrap, connect
        self._lock = threading.Lock()
        self._topics = frozenset(topics)
        self._totals = Totals()
        self._load: Callable[[], Table] | None = None
        self._output: Dataset | None = None
        """The table; None before it is loaded, and after a schema change until it is loaded again."""
        self._began_ms: int | None = None
        self._ended: tuple[LineageState, int, str | None] | None = None
        self._sender: Sender | None = None
        self._sent: LineageState | None = None
        self._sent_ms = 0
        self._sent_totals = Totals()
        self._failed_ms: int | None = None

    def opens(self, load: Callable[[], Table]) -> None:
        """Start sending, now that the table exists. The sending thread calls `load` to load it."""
        self._load = load

    def take(self, event: Event) -> None:
        with self._lock:
            match event.payload:
                case EpochBegan(marker=marker):
                    self._began_ms = self._began_ms or event.at_ms
                    self._topics |= {topic for topic, _ in marker.offsets}
                case TableEvolved():
                    self._output = None
                case BatchCommitted() as batch:
                    total, newest = self._totals, batch.marker.snapshot_id
                    records, size = total.records + batch.records, total.bytes + batch.bytes
                    changes = {**total.changes, **{k: total.changes.get(k, 0) + n for k, n in batch.changes.items()}}
                    self._totals = Totals(records, size, total.files + batch.files, newest, changes)

    def ended(self, error: str | None, *, at_ms: int) -> None:
        with self._lock:
            self._ended = (LineageState.COMPLETE if error is None else LineageState.FAIL, at_ms, error)

    def is_due(self, now_ms: int) -> bool:
        if self._began_ms is None or self._load is None:
            return False
        if self._failed_ms is not None and abs(now_ms - self._failed_ms) < RETRY_INTERVAL_MS:
            return False
        if self._sent is None:
            return True
        return self._totals != self._sent_totals and abs(now_ms - self._sent_ms) >= self._settings.every_ms

    def write(self, now_ms: int) -> None:
        try:
            self._write(now_ms)
        except Exception as error:  # transports raise what their clients raise
            if self._failed_ms is None:
                log.warning(
                    "stream %s: cannot send its events to the OpenLineage backend; will retry: %s", self._stream, error
                )
            self._failed_ms = now_ms
        else:
            self._failed_ms = None

    def _write(self, now_ms: int) -> None:
        with self._lock:
            began_ms, output, totals, ended = self._began_ms, self._output, self._totals, self._ended
            inputs = topic_datasets(self._bootstrap, self._topics)
        if began_ms is None or self._load is None:
            return  # the writer never took over
        if output is None:
            output = self._output = table_dataset(self._load())
        if self._sender is None:
            self._sender = self._connect()
        facts = RunFacts(inputs, output, totals)
        if self._sent is None:
            self._send(LineageState.START, began_ms, replace(facts, totals=Totals(snapshot_id=totals.snapshot_id)))
        if ended is not None:
            state, at_ms, error = ended
            self._send(state, at_ms, replace(facts, error=error))
            self._sender.close(CLOSE_TIMEOUT_S)
        elif totals != self._sent_totals and abs(now_ms - self._sent_ms) >= self._settings.every_ms:
            self._send(LineageState.RUNNING, now_ms, facts)
            self._sent_ms = now_ms

    def _send(self, state: LineageState, at_ms: int, facts: RunFacts) -> None:
        if self._sender is None:
            return
        self._sender.send(state, at_ms, facts)
        self._sent, self._sent_totals = state, facts.totals or Totals()
        if state is LineageState.START:
            self._sent_ms = at_ms
