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
            one = self._entries.get(key)
            if one is None:
                one = self._entries[key] = _CacheEntry(self._groups.setdefault(group, _Group()), read)
            one.read, one.requested_s = read, now_s
            keep_s = keep_s if one.problem is None else min(keep_s, FAILURE_KEEP_S)
            fresh = one.answered_s is not None and now_s - one.answered_s < keep_s
            if one.waiting and first:
                one.group.queue.remove(one)
                one.group.queue.appendleft(one)
            if not fresh and not one.waiting and one.began_s is None:
                one.waiting = True
                one.group.queue.insert(0 if first else len(one.group.queue), one)
                if len(one.group.running) < self._threads:
                    following = self._take(one.group)
                    threading.Thread(target=self._run, args=(following,), name="frazil-read", daemon=True).start()
            return PendingAnswer(one)

    def remember(self, group: str, key: Hashable, value: object, *, at_ms: int) -> None:
        """Cache an answer that an earlier process saved, unless the cache has one. The next request refreshes it."""
        with self._changed:
            if key not in self._entries:
                now_s = self._monotonic()
                one = _CacheEntry(self._groups.setdefault(group, _Group()), lambda: value, value, remembered=True)
                age_s = max(self._now_ms() - at_ms, 0) / 1000
                one.answered_s, one.answered_ms, one.requested_s = now_s - age_s, at_ms, now_s
                self._entries[key] = one

    def gather(self, pending: Iterable[PendingAnswer[T]], *, timeout_s: float) -> list[Answer[T]]:
        """Return the answers in order. Wait for missing and stale answers for at most `timeout_s` seconds."""
        entries = [one.entry for one in pending]
        with self._changed:
            deadline_s = self._monotonic() + timeout_s
            while any(self._must_wait_for(one) for one in entries):
                left_s = deadline_s - self._monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, 0.25))
            return [cast("Answer[T]", self._answer(one)) for one in entries]

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
        if one := self._entries.get(key):
            self._entries[key] = _CacheEntry(one.group, one.read, requested_s=one.requested_s)

    def _must_wait_for(self, one: _CacheEntry) -> bool:
        if one.began_s is None and not one.waiting:
            return False
        fresh = one.answered_s is not None and not self._is_old(one)
        return not fresh and self._unresponsive_since_s(one) is None

    def _is_old(self, one: _CacheEntry) -> bool:
        return one.answered_s is not None and self._monotonic() - one.answered_s >= STALE_AFTER_S

    def _answer(self, one: _CacheEntry) -> Answer[object]:
        since_s = self._unresponsive_since_s(one)
        since_ms = None if since_s is None else self._now_ms() - int((self._monotonic() - since_s) * 1000)
        reading = one.waiting or one.began_s is not None
        known = (one.value, one.answered_ms, one.problem, since_ms, one.remembered)
        return Answer(*known, is_refreshing=reading and self._is_old(one), outdated=one.outdated)

    def _unresponsive_since_s(self, one: _CacheEntry) -> float | None:
        """Return when a read became unresponsive. A queued read is unresponsive if every thread of its group is."""
        now_s = self._monotonic()
        if one.began_s is not None:
            return one.began_s if now_s - one.began_s >= UNRESPONSIVE_AFTER_S else None
        running = one.group.running if one.waiting else ()
        begun = [other.began_s for other in running if other.began_s is not None]
        if len(begun) < self._threads or any(now_s - began_s < UNRESPONSIVE_AFTER_S for began_s in begun):
            return None
        return min(begun)

    def _take(self, group: _Group) -> _CacheEntry | None:
        if not group.queue:
            return None
        one = group.queue.popleft()
        one.waiting, one.began_s = False, self._monotonic()
        group.running.add(one)
        return one

    def _run(self, one: _CacheEntry | None) -> None:
        with self._around():
            while one is not None:
                value: object = None
                problem = restart = None
                try:
                    value = one.read()
                except Exception as error:  # any error of a catalog or storage is the answer
                    restart = outdated_code.explain_outdated(error)
                    problem = restart or error_text(error)
                    if restart and problem != one.problem:  # log it once, although the read is repeated
                        log.warning("a read for the operations page failed: %s", problem, exc_info=error)
                one = self._store_result(one, value, problem, outdated=restart is not None)

    def _store_result(
        self, one: _CacheEntry, value: object, problem: str | None, *, outdated: bool
    ) -> _CacheEntry | None:
        with self._changed:
            one.value, one.remembered = (value, False) if problem is None else (one.value, one.remembered)
            one.problem, one.outdated, one.began_s = problem, outdated, None
            one.answered_s = self._monotonic()
            if problem is None or one.value is None:
                one.answered_ms = self._now_ms()
            one.group.running.discard(one)
            following = self._take(one.group)
            self._changed.notify_all()
            return following

    def _drop_unused(self, now_s: float) -> None:
        if now_s - self._swept_s < SWEEP_INTERVAL_S:  # this runs for each of hundreds of requests
            return
        self._swept_s = now_s
        for key in [k for k, one in self._entries.items() if now_s - one.requested_s > RETENTION_S]:
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


def save_statuses(file: Path, known: Iterable[SavedStatus], *, now_ms: int) -> None:
    """Merge these statuses into the file. Raises OSError."""
    streams = {one.stream: one for one in (*load_statuses(file, now_ms=now_ms), *known)}
    replace_json(file, msgspec.to_builtins(list(streams.values())))


def load_statuses(file: Path, *, now_ms: int) -> list[SavedStatus]:
    """Return the saved statuses of the last day; empty if another version wrote the file. Raises OSError."""
    try:
        known = convert(read_json(file) or [], list[SavedStatus])
    except (ValueError, msgspec.ValidationError):
        return []
    return [one for one in known if 0 <= now_ms - one.at_ms < MAX_SAVED_AGE_MS]
