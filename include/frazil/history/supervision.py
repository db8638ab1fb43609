"""Actions of supervisors and of users on a stream, stored next to the history of its writers.

Supervisors' actions are one object, users' actions another. An object is read, extended and written back. Two writes
within the same second may lose an entry; nothing depends on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from pyiceberg.table import Table

from frazil.history.objects import HistoryUnreadable, Objects, decode, encoded
from frazil.history.past import Part, Past
from frazil.history.points import Happened, Kind

log = logging.getLogger(__name__)

MAX_WAITING = 20
"""Maximum of unwritten actions, while the storage does not respond."""
AGAIN_MS = 60_000


class ActionLog(StrEnum):
    """Objects for actions that do not come from writers."""

    SUPERVISION = "supervision"
    USERS = "acts"
    """Actions of users on the stream."""


def read_actions(objects: Objects, action_log: ActionLog) -> tuple[list[Happened], list[str]]:
    """Return the actions in such an object, oldest first, and the problems with it. Raises the storage's errors."""
    past = Past()
    data = objects.store.get(_path(objects, action_log))
    try:
        if data is not None:
            decode(data, Part.HAPPENED, past, objects.table_uuid)
    except HistoryUnreadable as error:
        return [], [f"{_path(objects, action_log)}: {error}"]
    return past.happened, []


def record_action(table: Table, stream: str, sentence: str, *, at_ms: int) -> None:
    """Record a user's action on a stream, next to the stream's loaded table.

    Never raises, so that it cannot fail the action.
    """
    try:
        _add(Objects.of(table, stream), [Happened(at_ms, Kind.USER_ACTION, sentence)], ActionLog.USERS, now_ms=at_ms)
    except Exception as error:  # storages raise anything
        log.info(
            "this is not in the history of stream %s, because it cannot be written: %s: %s", stream, sentence, error
        )


@dataclass(slots=True)
class Supervision:
    """Records one supervisor's actions; a separate thread writes them, so the supervisor never waits."""

    open: Callable[[], Objects | None]
    """Opens the history next to the table; None if the table does not exist. The call may block, and raise."""
    _waiting: list[Happened] = field(default_factory=list)
    _said: str | None = None
    _failed_at_ms: int | None = None
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, what: Happened | None, *, subject: str, now_ms: int) -> None:
        """Record a supervisor's decision, if its subject differs from the previous decision's.

        `what` is None for a decision that the history does not need.
        """
        with self._lock:
            if subject != self._said and what is not None:
                self._waiting = [*self._waiting, what][-MAX_WAITING:]
            self._said = subject
            failed_ms = self._failed_at_ms
            if not self._waiting or (failed_ms is not None and abs(now_ms - failed_ms) < AGAIN_MS):
                return
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._write, args=(now_ms,), name="supervision", daemon=True)
                self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until the current write ends."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _write(self, now_ms: int) -> None:
        with self._lock:
            waiting = list(self._waiting)
        try:
            objects = self.open()
            if objects is not None:
                _add(objects, waiting, ActionLog.SUPERVISION, now_ms=now_ms)
        except Exception as error:  # catalogs and storages raise anything
            objects = None
            level = logging.INFO if self._failed_at_ms is None else logging.DEBUG
            log.log(level, "what the supervisor did is not in the stream's history yet: %s", error)
        with self._lock:
            self._failed_at_ms = now_ms if objects is None else None
            if objects is not None:
                self._waiting = [what for what in self._waiting if what not in waiting]


def _add(objects: Objects, waiting: list[Happened], to: ActionLog, *, now_ms: int) -> None:
    past = Past(happened=read_actions(objects, to)[0])
    for what in waiting:
        past.record(what)
    past.age(now_ms)
    objects.store.put(_path(objects, to), encoded(past, Part.HAPPENED, objects.table_uuid))


def _path(objects: Objects, action_log: ActionLog) -> str:
    return f"{objects.location}/{action_log}.json"
