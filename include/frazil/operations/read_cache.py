"""A cache of blocking reads, such as of a catalog, that responds within a deadline.

Fresh answers return at once; stale or missing ones are awaited until the deadline. Reads run in a few threads per
group, so a catalog that hangs never delays others. Without requests, nothing runs. The last states of streams are saved
in a file on this host, so that a restarted API server can show them first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar, cast

import msgspec

from frazil import outdated_code
from frazil.errors import error_text
from frazil.json_files import read_json, replace_json
from frazil.status.state import StreamState
from frazil.typed_json import convert

T = TypeVar("T")

log = logging.getLogger(__name__)

UNRESPONSIVE_AFTER_S = 1.2
"""Seconds after which a running read is reported as unresponsive."""
STALE_AFTER_S = 120.0
"""Age in seconds at which an answer is stale: `gather` then waits for its refresh, unless this takes too long."""
FAILURE_KEEP_S = 5.0
"""Maximum seconds until a failed read is repeated, so that an error disappears soon after its cause."""
RETENTION_S, SWEEP_INTERVAL_S = 12 * 3600.0, 60.0
"""Seconds after which an answer that was not requested again is dropped, and the interval of this check."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The newest result of a read. `problem` is the error of the last read, or None."""

    value: T | None = None
    at_ms: int | None = None
    """When `value` was read, or when the read without a value failed; None before the first read."""
    problem: str | None = None
    silent_since_ms: int | None = None
    remembered: bool = False
    """Whether the value is from an earlier process, and was not refreshed yet."""
    is_refreshing: bool = False
    outdated: bool = False
    """Whether the read failed because frazil was upgraded while this process runs; `problem` has the remedy."""

    @property
    def pending(self) -> bool:
        return (self.at_ms is None or self.is_refreshing) and self.silent_since_ms is None


@dataclass(slots=True, eq=False)
class _CacheEntry:
    """The state of one cached read. Times in seconds are monotonic."""

    group: _Group
    read: Callable[[], object]
    value: object = None
    problem: str | None = None
    outdated: bool = False
    answered_s: float | None = None
    answered_ms: int | None = None
    began_s: float | None = None
    waiting: bool = False
    remembered: bool = False
    requested_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Group:
    """Reads that share threads, such as all reads of one catalog."""

    queue: deque[_CacheEntry] = field(default_factory=deque)
    running: set[_CacheEntry] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class PendingAnswer(Generic[T]):
    entry: _CacheEntry


class AnswerCache:
    """Cached answers of one process. At most `threads` daemon threads read a group's answers, each inside `around`."""

    def __init__(
        self,
        *,
        threads: int = 4,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._threads, self._around, self._monotonic, self._now_ms = threads, around, monotonic, now_ms
        self._groups: dict[str, _Group] = {}
        self._entries: dict[Hashable, _CacheEntry] = {}
        self._swept_s = monotonic()
        self._changed = threading.Condition()

    def request(
        self, group: str, key: Hashable, read: Callable[[], T], *, keep_s: float, first: bool = False
    ) -> PendingAnswer[T]:
        """Start a read unless the cached answer is younger than `keep_s`; `first` puts it first in its queue."""
        with self._changed:
            now_s = self._monotonic()
            self._drop_unused(now_s)
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _CacheEntry(self._groups.setdefault(group, _Group()), read)
            entry.read, entry.requested_s = read, now_s
            keep_s = keep_s if entry.problem is None else min(keep_s, FAILURE_KEEP_S)
            fresh = entry.answered_s is not None and now_s - entry.answered_s < keep_s
            if entry.waiting and first:
                entry.group.queue.remove(entry)
                entry.group.queue.appendleft(entry)
            if not fresh and not entry.waiting and entry.began_s is None:
                entry.waiting = True
                entry.group.queue.insert(0 if first else len(entry.group.queue), entry)
                if len(entry.group.running) < self._threads:
                    following = self._take(entry.group)
                    threading.Thread(target=self._run, args=(following,), name="frazil-read", daemon=True).start()
            return PendingAnswer(entry)

    def remember(self, group: str, key: Hashable, value: object, *, at_ms: int) -> None:
        """Cache an answer that an earlier process saved, unless the cache has one. The next request refreshes it."""
        with self._changed:
            if key not in self._entries:
                now_s = self._monotonic()
                entry = _CacheEntry(self._groups.setdefault(group, _Group()), lambda: value, value, remembered=True)
                age_s = max(self._now_ms() - at_ms, 0) / 1000
                entry.answered_s, entry.answered_ms, entry.requested_s = now_s - age_s, at_ms, now_s
                self._entries[key] = entry

    def gather(self, pending: Iterable[PendingAnswer[T]], *, timeout_s: float) -> list[Answer[T]]:
        """Return the answers in order. Wait for missing and stale answers for at most `timeout_s` seconds."""
        entries = [answer.entry for answer in pending]
        with self._changed:
            deadline_s = self._monotonic() + timeout_s
            while any(self._must_wait_for(entry) for entry in entries):
                left_s = deadline_s - self._monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, 0.25))
            return [cast("Answer[T]", self._answer(entry)) for entry in entries]

    def fetch_one(
        self, group: str, key: Hashable, read: Callable[[], T], *, keep_s: float, timeout_s: float
    ) -> Answer[T]:
        return self.gather([self.request(group, key, read, keep_s=keep_s)], timeout_s=timeout_s)[0]

    def forget(self, key: Hashable) -> None:
        with self._changed:
            self._forget(key)

    def forget_all(self, mark: Hashable) -> None:
        with self._changed:
            for key in [key for key in self._entries if _key_contains(key, mark)]:
                self._forget(key)

    def _forget(self, key: Hashable) -> None:
        """Replace the cache entry, so that the result of a running read is discarded."""
        if entry := self._entries.get(key):
            self._entries[key] = _CacheEntry(entry.group, entry.read, requested_s=entry.requested_s)

    def _must_wait_for(self, entry: _CacheEntry) -> bool:
        if entry.began_s is None and not entry.waiting:
            return False
        fresh = entry.answered_s is not None and not self._is_old(entry)
        return not fresh and self._unresponsive_since_s(entry) is None

    def _is_old(self, entry: _CacheEntry) -> bool:
        return entry.answered_s is not None and self._monotonic() - entry.answered_s >= STALE_AFTER_S

    def _answer(self, entry: _CacheEntry) -> Answer[object]:
        since_s = self._unresponsive_since_s(entry)
        since_ms = None if since_s is None else self._now_ms() - int((self._monotonic() - since_s) * 1000)
        reading = entry.waiting or entry.began_s is not None
        fields = (entry.value, entry.answered_ms, entry.problem, since_ms, entry.remembered)
        return Answer(*fields, is_refreshing=reading and self._is_old(entry), outdated=entry.outdated)

    def _unresponsive_since_s(self, entry: _CacheEntry) -> float | None:
        """Return when a read became unresponsive. A queued read is unresponsive if every thread of its group is."""
        now_s = self._monotonic()
        if entry.began_s is not None:
            return entry.began_s if now_s - entry.began_s >= UNRESPONSIVE_AFTER_S else None
        running = entry.group.running if entry.waiting else ()
        begun = [other.began_s for other in running if other.began_s is not None]
        if len(begun) < self._threads or any(now_s - began_s < UNRESPONSIVE_AFTER_S for began_s in begun):
            return None
        return min(begun)

    def _take(self, group: _Group) -> _CacheEntry | None:
        if not group.queue:
            return None
        entry = group.queue.popleft()
        entry.waiting, entry.began_s = False, self._monotonic()
        group.running.add(entry)
        return entry

    def _run(self, entry: _CacheEntry | None) -> None:
        with self._around():
            while entry is not None:
                value: object = None
                problem = restart = None
                try:
                    value = entry.read()
                except Exception as error:  # any error of a catalog or storage is the answer
                    restart = outdated_code.explain_outdated(error)
                    problem = restart or error_text(error)
                    if restart and problem != entry.problem:  # log it once, although the read is repeated
                        log.warning("a read for the operations page failed: %s", problem, exc_info=error)
                entry = self._store_result(entry, value, problem, outdated=restart is not None)

    def _store_result(
        self, entry: _CacheEntry, value: object, problem: str | None, *, outdated: bool
    ) -> _CacheEntry | None:
        with self._changed:
            entry.value, entry.remembered = (value, False) if problem is None else (entry.value, entry.remembered)
            entry.problem, entry.outdated, entry.began_s = problem, outdated, None
            entry.answered_s = self._monotonic()
            if problem is None or entry.value is None:
                entry.answered_ms = self._now_ms()
            entry.group.running.discard(entry)
            following = self._take(entry.group)
            self._changed.notify_all()
            return following

    def _drop_unused(self, now_s: float) -> None:
        if now_s - self._swept_s < SWEEP_INTERVAL_S:  # this runs for each of hundreds of requests
            return
        self._swept_s = now_s
        for key in [k for k, entry in self._entries.items() if now_s - entry.requested_s > RETENTION_S]:
            if self._entries[key].began_s is None and not self._entries[key].waiting:
                del self._entries[key]


def _key_contains(key: Hashable, mark: Hashable) -> bool:
    return key == mark or (isinstance(key, tuple) and any(_key_contains(part, mark) for part in key))


MAX_SAVED_AGE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class SavedStatus:
    stream: str
    fingerprint: str
    at_ms: int
    status: StreamState


def save_statuses(file: Path, statuses: Iterable[SavedStatus], *, now_ms: int) -> None:
    """Merge these statuses into the file. Raises OSError."""
    streams = {status.stream: status for status in (*load_statuses(file, now_ms=now_ms), *statuses)}
    replace_json(file, msgspec.to_builtins(list(streams.values())))


def load_statuses(file: Path, *, now_ms: int) -> list[SavedStatus]:
    """Return the saved statuses of the last day; empty if another version wrote the file. Raises OSError."""
    try:
        statuses = convert(read_json(file) or [], list[SavedStatus])
    except (ValueError, msgspec.ValidationError):
        return []
    return [status for status in statuses if 0 <= now_ms - status.at_ms < MAX_SAVED_AGE_MS]
