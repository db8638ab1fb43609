"""Records actions of supervisors and users on a stream, in two objects next to its history. An object is read, extended
and written back, so two concurrent writes may lose an action.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.table import Table

from frazil.history.objects import ActionLog, HistoryStore
from frazil.history.points import EventKind, HistoryEvent, StreamHistory

log = logging.getLogger(__name__)

MAX_PENDING_ACTIONS = 20
"""Maximum number of actions kept in memory while the storage does not respond."""
RETRY_INTERVAL_MS = 60_000
"""Milliseconds between two attempts after a storage error."""


def record_action(table: Table, stream: str, sentence: str, *, at_ms: int) -> None:
    """Record a user's action on a stream, next to the stream's loaded table. Never raises."""
    try:
        action = HistoryEvent(at_ms, EventKind.USER_ACTION, sentence)
        _append_actions(HistoryStore.open(table, stream), [action], ActionLog.USERS, now_ms=at_ms)
    except Exception as error:  # storages raise anything
        log.info("cannot write an action to the history of stream %s: %s (action: %s)", stream, error, sentence)


@dataclass(slots=True)
class SupervisionRecorder:
    """Records one supervisor's actions. A separate thread writes them, so that the supervisor never waits."""

    open: Callable[[], HistoryStore | None]
    """Opens the history next to the table; returns None if the table does not exist. May block or raise."""
    _pending: list[HistoryEvent] = field(default_factory=list)
    _last_subject: str | None = None
    _failed_at_ms: int | None = None
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, what: HistoryEvent | None, *, subject: str, now_ms: int) -> None:
        """Record a supervisor's decision if its subject changed. `what` is None if the history does not show it."""
        with self._lock:
            if subject != self._last_subject and what is not None:
                self._pending = [*self._pending, what][-MAX_PENDING_ACTIONS:]
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
                self._pending = [what for what in self._pending if what not in pending]


def _append_actions(store: HistoryStore, pending: list[HistoryEvent], action_log: ActionLog, *, now_ms: int) -> None:
    past = StreamHistory(happened=store.read_actions(action_log)[0])
    for what in pending:
        past.record(what)
    past.age(now_ms)
    store.put_actions(action_log, past)
