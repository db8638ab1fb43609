"""The resources of a writer's process. Several writers in one process share threads, Kafka clients and slots.

Separate resources would cost a core for a hundred idle writers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

from pyiceberg.catalog import Catalog

from frazil.commit.expiry import Pins
from frazil.commit.journal import JournalStore
from frazil.commit.marker import Marker, read_marker
from frazil.events import CommitRecordsFolded, StreamEvent
from frazil.history.recorder import RecordingThreads
from frazil.kafka.client import AdminClient
from frazil.spec.maintenance import Expiry
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import open_existing_catalog
from frazil.telemetry.telemetry import Telemetry

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5
"""Interval (s) at which the shared threads check which streams are due."""
HEARTBEAT_INTERVAL_S = 3.0
"""Heartbeat interval (s) of a shared thread. A heartbeat is stale after ten seconds."""
MAX_POLLING_S = 5.0
"""Each planner's maximum polling interval if a process has many writers."""
FOLD_INTERVAL_S = 600.0
FOLD_PAUSE_S = 1.0
"""Pause (s) after each folded object, so that folding does not slow batches down."""


class Slots:
    """A semaphore that admits up to `count` threads at a time, in the order of their requests."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[threading.Event] = deque()
        self._holders: set[int] = set()
        self._lock = threading.Lock()

    @contextmanager
    def slot(self, *, cancelled: Callable[[], bool], on_wait: Callable[[], None]) -> Iterator[bool]:
        """Wait for a slot and hold it. Yields False if `cancelled` returns True first. Calls `on_wait` every second."""
        if not self._acquire(cancelled, on_wait):
            yield False
            return
        thread_id = threading.get_ident()
        self._holders.add(thread_id)
        try:
            yield True
        finally:
            if thread_id in self._holders:
                self._holders.remove(thread_id)
                self._release()

    def release_while(
        self, wait: Callable[[], object], *, cancelled: Callable[[], bool], on_wait: Callable[[], None]
    ) -> bool:
        """Release this thread's slot during `wait`, then wait for a slot again. Return True if `cancelled` does."""
        thread_id = threading.get_ident()
        lent = thread_id in self._holders
        if lent:
            self._holders.remove(thread_id)
            self._release()
        wait()
        if cancelled():
            return True
        if lent:
            if not self._acquire(cancelled, on_wait):
                return True
            self._holders.add(thread_id)
        return False

    def _acquire(self, cancelled: Callable[[], bool], on_wait: Callable[[], None]) -> bool:
        event = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            self._waiting.append(event)
        try:
            while not event.wait(1.0):
                on_wait()
                if cancelled() and self._leave_queue(event):
                    return False
        except BaseException:
            if not self._leave_queue(event):
                self._release()
            raise
        return True

    def _leave_queue(self, event: threading.Event) -> bool:
        """Remove a request from the queue. Returns False if the request already has a slot."""
        with self._lock:
            if event.is_set():
                return False
            self._waiting.remove(event)
            return True

    def _release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class HeartbeatSender(Protocol):
    @property
    def is_changed(self) -> bool: ...

    def send_heartbeat(self) -> None: ...


class Heartbeats:
    def __init__(self, *, heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S) -> None:
        self._heartbeat_interval_s = heartbeat_interval_s
        self._sent_s: dict[HeartbeatSender, float] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def __enter__(self) -> Heartbeats:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def add(self, sender: HeartbeatSender) -> None:
        with self._lock:
            self._sent_s[sender] = float("-inf")

    def remove(self, sender: HeartbeatSender) -> None:
        """Stop sending a writer's heartbeat. Waits for a heartbeat in progress."""
        with self._lock:
            self._sent_s.pop(sender, None)

    def _run(self) -> None:
        while not self._over.wait(POLL_INTERVAL_S):
            for sender in list(self._sent_s):
                with self._lock:
                    if sender in self._sent_s and (
                        sender.is_changed or time.monotonic() - self._sent_s[sender] >= self._heartbeat_interval_s
                    ):
                        self._sent_s[sender] = time.monotonic()
                        try:
                            sender.send_heartbeat()
                        except Exception as error:  # a full disk must not end this thread
                            log.warning("cannot write a heartbeat: %r", error)


class FoldingThread:
    def __init__(self) -> None:
        self._due_s: dict[Callable[[], object], float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fold-records", daemon=True)

    def __enter__(self) -> FoldingThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # a daemon thread: an interruption at any point loses nothing

    def add(self, fold: Callable[[], object]) -> None:
        """Call `fold` every ten minutes, after a first pause."""
        self._due_s[fold] = time.monotonic() + FOLD_INTERVAL_S

    def remove(self, fold: Callable[[], object]) -> None:
        self._due_s.pop(fold, None)

    def _run(self) -> None:
        while not self._over.wait(POLL_INTERVAL_S):
            now_s = time.monotonic()
            if fold := next((candidate for candidate, due_s in list(self._due_s.items()) if due_s <= now_s), None):
                if fold in self._due_s:
                    self._due_s[fold] = now_s + FOLD_INTERVAL_S
                fold()


class ReadPins(Protocol):
    def __call__(self, catalog: Catalog, table: str, expiry: Expiry, *, now_ms: int) -> Pins:
        """Return the snapshots of a table that the table's signals need. Raises catalog errors."""


class KafkaClients:
    def __init__(self) -> None:
        self._clients: WeakValueDictionary[frozenset[tuple[str, str]], AdminClient] = WeakValueDictionary()
        self._lock = threading.Lock()

    def open(self, properties: Mapping[str, str]) -> AdminClient:
        with self._lock:
            key = frozenset(properties.items())
            client = self._clients.get(key)
            if client is None:
                client = self._clients[key] = AdminClient(properties)
            return client


@dataclass(frozen=True, slots=True)
class Hosting:
    """The resources that a process gives each of its writers. The defaults are for one writer."""

    kafka_client: Callable[[Mapping[str, str]], AdminClient] = AdminClient
    heartbeats: Heartbeats | None = None
    foldings: FoldingThread | None = None
    recording_threads: RecordingThreads = field(default_factory=RecordingThreads)
    telemetry: Telemetry = field(default_factory=Telemetry)
    read_pins: ReadPins | None = None
    """Reads which snapshots signals need. Without this function, writers expire no snapshots."""
    slots: Slots = field(default_factory=lambda: Slots(1))
    max_polling_s: float = 1.0
    """Each planner's maximum polling interval (s). If above the default, batches start earlier by the difference."""


@dataclass(slots=True)
class RecordFolding:
    """Folds a stream's old commit records in a thread with its own clients."""

    spec: StreamSpec
    emit: Callable[[StreamEvent], None]
    shared_thread: FoldingThread | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> RecordFolding:
        if self.shared_thread is not None:
            self.shared_thread.add(self._fold_and_log_errors)
        else:  # a daemon thread: an interruption at any point loses nothing
            threading.Thread(target=self._run, name="fold-records", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self.shared_thread is not None:
            self.shared_thread.remove(self._fold_and_log_errors)

    def _fold_and_log_errors(self) -> None:
        try:
            self.fold()
        except Exception as error:  # catalogs and storages raise anything, and the next run tries again
            log.warning(
                "cannot combine old commit records of stream %r: %r; no data is affected, and this is retried later",
                self.spec.name,
                error,
            )

    def _run(self) -> None:
        while True:
            self._fold_and_log_errors()
            if self._over.wait(FOLD_INTERVAL_S):
                return

    def fold(self) -> int:
        """Fold old commit records, and return their number. Raises errors of catalog and storage."""
        table = open_existing_catalog(self.spec.table.catalog).load_table(self.spec.table.identifier)

        def marker_now() -> Marker | None:
            return read_marker(table.refresh().metadata.properties, self.spec.name)

        marker = marker_now()
        if marker is None:
            return 0
        folded = 0
        journals = JournalStore.of_table(table, self.spec.name)
        for count in journals.fold(marker, forgotten=lambda: marker_now() is None):
            folded += count
            if self._over.wait(FOLD_PAUSE_S):
                break
        if folded:
            self.emit(CommitRecordsFolded(folded))
        return folded
