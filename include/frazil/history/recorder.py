"""Records the events of one stream as its history. The writer never waits, whatever the storage does."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable

from frazil.events import (
    BatchCommitted,
    ChangesMerged,
    DistributionChosen,
    EpochBegan,
    Event,
    FutureEventTimes,
    LagMeasured,
    NoticeGiven,
    OutageMet,
    PhaseBegan,
    RecordsSkipped,
    StallBegan,
    StallEnded,
    TableEvolved,
    TablesBehind,
    ThrottleEvaluated,
)
from frazil.history.objects import Found, Objects
from frazil.history.past import Part, Past
from frazil.history.points import Happened, Kind, Point
from frazil.spec.units import counted
from frazil.timetext import ago

log = logging.getLogger(__name__)

EVERY_MS = 50_000
"""Milliseconds between two writes: a crash loses less than a minute."""
AT_ONCE_MS = 30_000
"""Milliseconds between two writes if an event happened."""
AGAIN_MS = 60_000
"""Milliseconds before another attempt after a storage error."""


class Recorder:
    """A sink of events that stores them as history next to the table.

    Only one thread at a time may call `write`.
    """

    def __init__(self, stream: str, *, interval_ms: int) -> None:
        self.stream = stream
        self._declared_ms, self._interval_ms = interval_ms, interval_ms
        self._past = Past()
        self._changed: set[Part] = set()
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._objects: Callable[[], Objects] | None = None
        self._written: int | None = None
        """The epoch that has objects."""
        self._left: list[Found] | None = None
        """Objects of earlier writers; None until this one has taken them over."""
        self._written_ms: int | None = None
        self._failed_ms: int | None = None
        self._merge_ms = 0
        self._outage_ms: int | None = None
        self._behind = frozenset[str]()
        self._aged_ms = 0
        self._shuffled: bool | None = None
        self._throttle = (True, 1.0)
        """Whether nothing is wrong, and how far the interval is stretched."""

    def opens(self, objects: Callable[[], Objects]) -> None:
        """Record that the table exists. `objects` opens the history next to the table, with current credentials."""
        self._objects = objects

    def take(self, event: Event) -> None:
        """Receive one event."""
        with self._lock:
            if point := self._point(event):
                self._changed.add(self._past.add(point))
            if happened := self._happened(event):
                self._changed.add(self._past.record(happened))
            if abs(event.at_ms - self._aged_ms) >= EVERY_MS:  # however long the storage is down
                self._aged_ms = event.at_ms
                self._changed |= self._past.age(event.at_ms)

    def ended(self, error: str, *, at_ms: int) -> None:
        """Record that the writer ended with this error."""
        with self._lock:
            self._changed.add(self._past.record(Happened(at_ms, Kind.END, f"the writer ended: {error}")))

    def is_due(self, now_ms: int) -> bool:
        """Whether `write` should be called now."""
        if self._objects is None or self._epoch is None or not self._changed:
            return False
        if self._failed_ms is not None:
            return abs(now_ms - self._failed_ms) >= AGAIN_MS
        if self._written_ms is None:
            return True
        wait_ms = AT_ONCE_MS if Part.HAPPENED in self._changed else EVERY_MS
        return abs(now_ms - self._written_ms) >= wait_ms

    def write(self, now_ms: int) -> None:
        """Write the changed parts. An error is logged once; the next attempt includes later events."""
        try:
            self._write(now_ms)
        except Exception as error:  # storages raise what their clients raise
            if self._failed_ms is None:
                log.warning(
                    "stream %s: its history cannot be written, and is kept in memory until it can: %s",
                    self.stream, error,
                )  # fmt: skip
            self._failed_ms = now_ms
        else:
            self._failed_ms, self._written_ms = None, now_ms

    def _write(self, now_ms: int) -> None:
        epoch, opens = self._epoch, self._objects
        if epoch is None or opens is None:
            return
        objects, new = opens(), self._written != epoch
        if self._left is None:
            self._left = self._take_over(objects)
        with self._lock:
            self._changed |= self._past.age(now_ms)
            parts = [part for part in Part if new or part in self._changed]
            self._changed, past = set(), self._past.copy()
        try:
            for part in parts:
                objects.put(epoch, past, part)
        except BaseException:
            with self._lock:
                self._changed |= set(parts)
            raise
        self._written = epoch
        if new or Part.TENS in parts:  # now and then again: a replaced writer may have written its own once more
            objects.delete(one for one in objects.found() if one.epoch < epoch or one in self._left)
            self._left = []

    def _take_over(self, objects: Objects) -> list[Found]:
        """Start with the content of earlier writers' objects. Return these objects.

        Objects of a higher epoch are included: they are from before an operator ran `frazil forget`.
        """
        left = [one for one in objects.found() if one.epoch != self._epoch]
        earlier, problems = objects.read(left)
        for problem in problems:
            log.warning("stream %s: a part of its history is lost: %s", self.stream, problem)
        with self._lock:
            self._past.began_with(earlier)
        return left

    def _point(self, event: Event) -> Point | None:
        """Return the numbers that an event adds to its minute; None for other events."""
        match event.what:
            case EpochBegan(epoch=epoch, marker=marker):
                self._epoch, self._merge_ms = epoch, 0  # a merge of the last epoch may have had no result
                return Point(event.at_ms, watermark_ms=marker.watermark_ms, interval_ms=self._interval_ms)
            case ChangesMerged(merge_s=merge_s):
                self._merge_ms += _ms(merge_s)
            case BatchCommitted() as batch:
                return self._batch(event.at_ms, batch)
            case ThrottleEvaluated(stretch=stretch):
                self._interval_ms = round(self._declared_ms * stretch)
            case LagMeasured(lag=lag, freshness_ms=freshness_ms, backpressure_ms=backpressure_ms):
                return Point(
                    event.at_ms,
                    lag=lag,
                    freshness_ms=freshness_ms,
                    backpressure_ms=backpressure_ms,
                    interval_ms=self._interval_ms,
                )
        return None

    def _batch(self, at_ms: int, batch: BatchCommitted) -> Point:
        merge_ms, self._merge_ms = self._merge_ms, 0
        point = Point(at_ms, watermark_ms=batch.marker.watermark_ms, interval_ms=self._interval_ms)
        if not (batch.records or batch.rejected or batch.changes):  # an empty commit
            return point
        return dataclasses.replace(
            point,
            batches=1,
            records=batch.records,
            rejected=batch.rejected,
            files=batch.files,
            bytes=batch.bytes,
            stage_ms=_ms(batch.stage_s),
            commit_ms=_ms(batch.commit_s),
            merge_ms=merge_ms,
        )

    def _happened(self, event: Event) -> Happened | None:  # noqa: PLR0911 - a case for each kind of event
        """Return the history's event for a stream's event; None if it needs none."""
        match event.what:
            case EpochBegan(epoch=epoch, settled=settled):
                return Happened(event.at_ms, Kind.EPOCH, f"epoch {epoch} begins: {settled}")
            case RecordsSkipped(lost=lost):
                sentence = f"Kafka's retention deleted records that were not read, and are skipped: {lost}"
                return Happened(event.at_ms, Kind.SKIP, sentence)
            case StallBegan(stall=stall):
                return Happened(event.at_ms, Kind.STALL, f"stalled ({stall.kind}): {stall.reason}")
            case StallEnded(kind=kind, lasted_ms=lasted_ms):
                return Happened(event.at_ms, Kind.STALL, f"the stall ({kind}) is over after {ago(lasted_ms)}")
            case TableEvolved(key=key, changes=changes, table=table):
                return Happened(event.at_ms, Kind.EVOLUTION, f"{table} evolves for batch {key}: {'; '.join(changes)}")
            case NoticeGiven(sentence=sentence, replaces=""):
                return Happened(event.at_ms, Kind.NOTICE, sentence)
            case FutureEventTimes(key=key, rows=rows, max_future=limit):
                sentence = f"{counted(rows, 'row')} of batch {key} with event times more than {limit} in the future"
                return Happened(event.at_ms, Kind.FUTURE, sentence)
            case DistributionChosen(shuffled=shuffled, reason=reason) if shuffled is not self._shuffled:
                self._shuffled = shuffled
                said = f"rows are {'shuffled' if shuffled else 'not shuffled'} from here on: {reason}"
                return Happened(event.at_ms, Kind.DECISION, said)
            case ThrottleEvaluated(reason=reason, stretch=stretch) if (reason is None, stretch) != self._throttle:
                self._throttle = reason is None, stretch
                over = "the table's metadata no longer grows; commits follow the declared interval"
                return Happened(event.at_ms, Kind.THROTTLE, reason or over)
            case OutageMet(sentence=sentence) if self._outage_ms is None:
                self._outage_ms = event.at_ms
                return Happened(event.at_ms, Kind.OUTAGE, sentence)
            case TablesBehind(names=names, sentence=sentence) if names != self._behind:
                self._behind = names
                return Happened(event.at_ms, Kind.OUTAGE, sentence)
            case PhaseBegan() if self._outage_ms is not None:
                lasted_ms, self._outage_ms = event.at_ms - self._outage_ms, None
                return Happened(event.at_ms, Kind.OUTAGE, f"the outage is over after {ago(lasted_ms)}")
        return None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
