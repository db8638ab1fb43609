"""Records the events of one stream as its history. A separate thread per storage service writes the recordings, because
a service may hang. Also records actions of supervisors and users, in two objects next to the history. Two concurrent
writes to such an object may lose an action.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pyiceberg.table import Table

from frazil import clock, events
from frazil.events import BatchCommitted, Event
from frazil.history.objects import ActionLog, HistoryObject, HistoryStore
from frazil.history.points import EventKind, HistoryEvent, HistoryPart, Point, StreamHistory
from frazil.spec.units import format_count
from frazil.timetext import format_elapsed, format_utc

log = logging.getLogger(__name__)

WRITE_INTERVAL_MS = 50_000
"""Time (ms) between two writes. A crash loses less than a minute of history."""
EVENT_WRITE_INTERVAL_MS = 30_000
RETRY_INTERVAL_MS = 60_000


class Recorder:
    """Event sink that stores a stream's history. Only one thread at a time may call `write`."""

    def __init__(self, stream: str, *, interval_ms: int) -> None:
        self.stream = stream
        self._declared_ms, self._interval_ms = interval_ms, interval_ms
        self._past = StreamHistory()
        self._changed: set[HistoryPart] = set()
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._objects: Callable[[], HistoryStore] | None = None
        self._written: int | None = None
        """The epoch of the written objects; None before the first write."""
        self._earlier_objects: list[HistoryObject] | None = None
        """Objects of earlier writers, to be deleted; None until they are loaded."""
        self._written_ms: int | None = None
        self._failed_ms: int | None = None
        self._merge_ms = 0
        self._outage_ms: int | None = None
        self._behind = frozenset[str]()
        self._aged_ms = 0
        self._shuffled: bool | None = None
        self._throttle = (True, 1.0)
        """Whether the commit interval is as declared, and the factor by which it is extended."""

    def opens(self, objects: Callable[[], HistoryStore]) -> None:
        """Start to write, once the table exists. `objects` opens the table's history with current credentials."""
        self._objects = objects

    def take(self, event: Event) -> None:
        with self._lock:
            if point := self._measure_event(event):
                self._changed.add(self._past.add(point))
            if entry := self._describe_event(event):
                self._changed.add(self._past.record(HistoryEvent(event.at_ms, *entry)))
            if abs(event.at_ms - self._aged_ms) >= WRITE_INTERVAL_MS:  # also while the storage is down
                self._aged_ms = event.at_ms
                self._changed |= self._past.age(event.at_ms)

    def ended(self, error: str, *, at_ms: int) -> None:
        with self._lock:
            self._changed.add(self._past.record(HistoryEvent(at_ms, EventKind.END, f"the writer ended: {error}")))

    def is_due(self, now_ms: int) -> bool:
        if self._objects is None or self._epoch is None or not self._changed:
            return False
        if self._failed_ms is not None:
            return abs(now_ms - self._failed_ms) >= RETRY_INTERVAL_MS
        if self._written_ms is None:
            return True
        wait_ms = EVENT_WRITE_INTERVAL_MS if HistoryPart.EVENTS in self._changed else WRITE_INTERVAL_MS
        return abs(now_ms - self._written_ms) >= wait_ms

    def write(self, now_ms: int) -> None:
        try:
            self._write(now_ms)
        except Exception as error:  # storages raise what their clients raise
            if self._failed_ms is None:
                log.warning(
                    "stream %s: cannot write its history; keeping it in memory and retrying: %s", self.stream, error
                )
            self._failed_ms = now_ms
        else:
            self._failed_ms, self._written_ms = None, now_ms

    def _write(self, now_ms: int) -> None:
        epoch, opens = self._epoch, self._objects
        if epoch is None or opens is None:
            return
        objects, new = opens(), self._written != epoch
        if self._earlier_objects is None:
            earlier_objects = [stored for stored in objects.list_objects() if stored.epoch != self._epoch]
            earlier, problems = objects.read(earlier_objects)
            for problem in problems:
                log.warning("stream %s: part of its history is lost: %s", self.stream, problem)
            with self._lock:
                self._past.merge_earlier(earlier)
            self._earlier_objects = earlier_objects
        with self._lock:
            self._changed |= self._past.age(now_ms)
            parts = [part for part in HistoryPart if new or part in self._changed]
            self._changed, past = set(), self._past.copy()
        try:
            for part in parts:
                objects.put(epoch, past, part)
        except BaseException:
            with self._lock:
                self._changed |= set(parts)
            raise
        self._written = epoch
        if new or HistoryPart.TENS in parts:  # also later: a replaced writer may have written its objects again
            objects.delete(
                stored for stored in objects.list_objects() if stored.epoch < epoch or stored in self._earlier_objects
            )
            self._earlier_objects = []

    def _measure_event(self, event: Event) -> Point | None:
        match event.payload:
            case events.EpochBegan(epoch=epoch, marker=marker):
                self._epoch, self._merge_ms = epoch, 0  # a merge of the last epoch may have had no result
                return Point(event.at_ms, watermark_ms=marker.watermark_ms, interval_ms=self._interval_ms)
            case events.ChangesMerged(merge_s=merge_s):
                self._merge_ms += _to_ms(merge_s)
            case BatchCommitted() as batch:
                return self._measure_batch(event.at_ms, batch)
            case events.ThrottleEvaluated(stretch=stretch):
                self._interval_ms = round(self._declared_ms * stretch)
            case events.LagMeasured(lag=lag, freshness_ms=freshness_ms, backpressure_ms=backpressure_ms):
                return Point(
                    event.at_ms,
                    lag=lag,
                    freshness_ms=freshness_ms,
                    backpressure_ms=backpressure_ms,
                    interval_ms=self._interval_ms,
                )
        return None

    def _measure_batch(self, at_ms: int, batch: BatchCommitted) -> Point:
        merge_ms, self._merge_ms = self._merge_ms, 0
        point = Point(
            at_ms,
            watermark_ms=batch.marker.watermark_ms,
            interval_ms=self._interval_ms,
            cpu_ms=batch.cost.cpu_ms,
            writes=batch.cost.writes,
            reads=batch.cost.reads,
        )
        if not (batch.records or batch.rejected or batch.changes):  # an empty commit
            return point
        return dataclasses.replace(
            point,
            batches=1,
            records=batch.records,
            rejected=batch.rejected,
            files=batch.files,
            bytes=batch.bytes,
            stage_ms=_to_ms(batch.stage_s),
            commit_ms=_to_ms(batch.commit_s),
            merge_ms=merge_ms,
        )

    def _describe_event(self, event: Event) -> tuple[EventKind, str] | None:  # noqa: PLR0911 - a case for each kind of event
        match event.payload:
            case events.EpochBegan(epoch=epoch, settled=settled):
                return EventKind.EPOCH, f"a writer took over (epoch {epoch}): {settled}"
            case events.RecordsSkipped(lost=lost):
                return EventKind.SKIP, f"Kafka's retention deleted unread records, which are skipped: {lost}"
            case events.StallBegan(stall=stall):
                return EventKind.STALL, f"stalled ({stall.kind}): {stall.failure}"
            case events.StallEnded(kind=kind, lasted_ms=lasted_ms, is_over=True):
                return EventKind.STALL, f"the stall ({kind}) is over after {format_elapsed(lasted_ms)}"
            case events.TableEvolved(key=key, changes=changes, table=table):
                return EventKind.EVOLUTION, f"{table} evolves for batch {key}: {'; '.join(changes)}"
            case events.NoticeIssued(sentence=sentence, replaces=""):
                return EventKind.NOTICE, sentence
            case events.FutureEventTimes(key=key, rows=rows, max_future=limit, newest_ms=newest_ms):
                sentence = f"{format_count(rows, 'row')} of batch {key} had event times more than {limit} in the future"
                return EventKind.FUTURE, f"{sentence}, the newest {format_utc(newest_ms)}"
            case events.DistributionChosen(shuffled=shuffled, reason=reason) if shuffled is not self._shuffled:
                self._shuffled = shuffled
                sentence = f"rows are {'shuffled' if shuffled else 'no longer shuffled'} from now on: {reason}"
                return EventKind.DECISION, sentence
            case events.ThrottleEvaluated() as it if (it.reason is None, it.stretch) != self._throttle:
                self._throttle = it.reason is None, it.stretch
                over = "the table's metadata no longer grows; commits follow the declared interval"
                return EventKind.THROTTLE, it.reason or over
            case events.OutageReported(sentence=sentence) if self._outage_ms is None:
                self._outage_ms = event.at_ms
                return EventKind.OUTAGE, sentence
            case events.TablesBehind(names=names, sentence=sentence) if names != self._behind:
                self._behind = names
                return EventKind.OUTAGE, sentence
            case events.PhaseBegan() if self._outage_ms is not None:
                lasted_ms, self._outage_ms = event.at_ms - self._outage_ms, None
                return EventKind.OUTAGE, f"the outage is over after {format_elapsed(lasted_ms)}"
        return None


def _to_ms(seconds: float) -> int:
    return round(seconds * 1000)


POLL_INTERVAL_S = 1.0
END_TIMEOUT_S = 3.0


class Recording(Protocol):
    def is_due(self, now_ms: int) -> bool: ...

    def write(self, now_ms: int) -> None:
        """Store or send the recording. Never raises."""


class RecordingThreads:
    """Writes the recordings of one process's streams, in one thread per storage. Thread-safe."""

    def __init__(self, *, clock_ms: Callable[[], int] = clock.now_ms, poll_interval_s: float = POLL_INTERVAL_S) -> None:
        self._clock_ms, self._poll_interval_s = clock_ms, poll_interval_s
        self._threads: dict[str, _RecordingThread] = {}
        self._lock = threading.Lock()

    def add(self, recording: Recording, *, storage: str) -> None:
        with self._lock:
            thread = self._threads.get(storage)
            if thread is None or not thread.add(recording):
                self._threads[storage] = thread = _RecordingThread(self._clock_ms, self._poll_interval_s)
                thread.add(recording)

    def remove(self, recording: Recording, *, wait_s: float = END_TIMEOUT_S) -> None:
        with self._lock:
            recording_threads = list(self._threads.values())
        for thread in recording_threads:
            thread.remove(recording, wait_s=wait_s)


class _RecordingThread:
    """A thread that writes recordings, and ends when it has none left."""

    def __init__(self, clock_ms: Callable[[], int], poll_interval_s: float) -> None:
        self._clock_ms, self._poll_interval_s = clock_ms, poll_interval_s
        self._recordings: list[Recording] = []
        self._leaving: dict[Recording, threading.Event] = {}
        self._over = False
        self._lock, self._wake = threading.Lock(), threading.Event()
        # The thread is a daemon: a storage request that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def add(self, recording: Recording) -> bool:
        """Add a recording. Return False if the thread has ended."""
        with self._lock:
            if self._over:
                return False
            self._recordings.append(recording)
            if self._thread.ident is None:
                self._thread.start()
            return True

    def remove(self, recording: Recording, *, wait_s: float) -> None:
        with self._lock:
            if recording not in self._recordings:
                return
            stored = self._leaving[recording] = threading.Event()
        self._wake.set()
        stored.wait(wait_s)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._poll_interval_s)
            self._wake.clear()
            with self._lock:
                recordings, leaving = list(self._recordings), dict(self._leaving)
            now_ms = self._clock_ms()
            for recording in sorted(recordings, key=lambda candidate: candidate not in leaving):
                if recording in leaving or recording.is_due(now_ms):
                    recording.write(now_ms)
                if recording in leaving:
                    with self._lock:
                        self._recordings.remove(recording)
                        del self._leaving[recording]
                    leaving[recording].set()
            with self._lock:
                if not self._recordings:
                    self._over = True
                    return


MAX_PENDING_ACTIONS = 20


def record_action(table: Table, stream: str, sentence: str, *, at_ms: int) -> None:
    """Record a user's action on a stream, in the storage of the loaded table. Never raises."""
    try:
        action = HistoryEvent(at_ms, EventKind.USER_ACTION, sentence)
        _append_actions(HistoryStore.open(table, stream), [action], ActionLog.USERS, now_ms=at_ms)
    except Exception as error:  # storages raise anything
        log.info("cannot write an action to the history of stream %s: %s (action: %s)", stream, error, sentence)


@dataclass(slots=True)
class SupervisionRecorder:
    """Records one supervisor's actions in a separate thread. The supervisor never waits."""

    open: Callable[[], HistoryStore | None]
    """Opens the table's history; returns None without a table. May block or raise."""
    _pending: list[HistoryEvent] = field(default_factory=list)
    _last_subject: str | None = None
    _failed_at_ms: int | None = None
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, event: HistoryEvent | None, *, subject: str, now_ms: int) -> None:
        """Record a supervisor's decision if its subject changed. If `event` is None, the history does not show it."""
        with self._lock:
            if subject != self._last_subject and event is not None:
                self._pending = [*self._pending, event][-MAX_PENDING_ACTIONS:]
            self._last_subject = subject
            failed_ms = self._failed_at_ms
            if not self._pending or (failed_ms is not None and abs(now_ms - failed_ms) < RETRY_INTERVAL_MS):
                return
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._write, args=(now_ms,), name="supervision", daemon=True)
                self._thread.start()

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _write(self, now_ms: int) -> None:
        with self._lock:
            pending = list(self._pending)
        try:
            objects = self.open()
            if objects is not None:
                _append_actions(objects, pending, ActionLog.SUPERVISION, now_ms=now_ms)
        except Exception as error:  # catalogs and storages raise anything
            objects = None
            level = logging.INFO if self._failed_at_ms is None else logging.DEBUG
            log.log(level, "cannot write the supervisor's actions to the stream's history yet; will retry: %s", error)
        with self._lock:
            self._failed_at_ms = now_ms if objects is None else None
            if objects is not None:
                self._pending = [event for event in self._pending if event not in pending]


def _append_actions(store: HistoryStore, pending: list[HistoryEvent], action_log: ActionLog, *, now_ms: int) -> None:
    past = StreamHistory(events=store.read_actions(action_log)[0])
    for event in pending:
        past.record(event)
    past.age(now_ms)
    store.put_actions(action_log, past)
