"""Combines samples of a writer's offsets and watermark into the history from which stalls are found. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from frazil.host.heartbeat import Phase
from frazil.offsets.spans import TopicPartition
from frazil.spec.model import StreamSpec

INTERVALS = 3
"""Number of commit intervals without progress after which a writer is stalled. Two of them allow a slow commit."""
MIN_STALL_MS = 20_000
"""Minimum time (ms) without progress after which a writer is stalled.

On a busy host, a batch takes many commit intervals of a second. Spark needs up to 10 s to start a Python worker.
"""
GAP_MS = 30_000
"""Maximum time (ms) between two samples. After a longer gap, the machine slept, and the history begins again."""
FIRST_ANSWER_MS = 60_000
"""Time (ms) without the planner's first answer after which a writer is stalled. Starting brokers answer late."""

WORKING = frozenset({Phase.WAITING, Phase.STAGING, Phase.JOURNALING, Phase.COMMITTING})
"""Phases in which a writer can stall. During a start, a take-over and a stop, log ends are not observed."""


class BatchName(NamedTuple):
    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.batch}"


@dataclass(frozen=True, slots=True)
class Limits:
    """A stream's commit interval and idle timeout, in milliseconds. The limits for stalls are derived from them."""

    interval_ms: int
    idle_timeout_ms: int

    @property
    def still_ms(self) -> int:
        """Time (ms) without a change of offsets or watermark after which the writer is stalled."""
        return max(INTERVALS * self.interval_ms, MIN_STALL_MS)

    @property
    def gap_ms(self) -> int:
        return max(GAP_MS, self.interval_ms)

    def stretched(self, stretch: float) -> Limits:
        """Return the limits for a commit interval that throttling has stretched by this factor."""
        return dataclasses.replace(self, interval_ms=round(self.interval_ms * stretch))

    @classmethod
    def for_stream(cls, spec: StreamSpec) -> Limits:
        millisecond = timedelta(milliseconds=1)
        return cls(spec.commit.interval // millisecond, spec.watermark.idle_timeout // millisecond)


@dataclass(frozen=True, slots=True)
class Sample:
    """The writer's state at one moment; times are milliseconds since 1970, UTC."""

    at_ms: int
    phase: Phase
    advanced_at_ms: int
    """When the phase, the batch, or the record count of the current batch last changed."""
    offsets: Mapping[TopicPartition, int]
    """The marker's offsets."""
    unread: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Number of records after the committed offset at the planner's last report, where there are any."""
    in_transactions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Number of offsets that wait for transactions to end, where there are any."""
    transaction: str = ""
    """See `PlannerReport.transaction`."""
    planned_at_ms: int | None = None
    """When Kafka last answered the planner; None before its first answer."""
    batch: BatchName | None = None
    """The current batch; None while the writer waits, and once the batch is committed."""
    batch_records: int = 0
    max_event_times_us: Mapping[TopicPartition, int] = field(default_factory=dict)
    idle: frozenset[TopicPartition] = frozenset()
    watermark_us: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The unread records of a topic-partition after one committed offset, and their progress."""

    offset: int | None
    """The committed offset; None for a new partition, which is in no marker yet."""
    nearer_at_ms: int
    """When the records were first seen, or when the first batch with these records last read further."""
    tried: BatchName | None
    """The first batch that reads these records, if any. Another batch over the same records is not progress."""


@dataclass(frozen=True, slots=True)
class History:
    """A summary of all samples taken until now."""

    began_at_ms: int
    sampled_at_ms: int
    offsets: Mapping[TopicPartition, int]
    watermark_us: int | None
    watermark_since_ms: int
    """When the watermark last moved, or when the stream last had no records to read for a while."""
    advances: int = 0
    """Number of samples after `watermark_since_ms` at which a commit had advanced offsets."""
    read_up_since_ms: int | None = None
    """Since when all records have been committed and no offset has moved; None if records are unread."""
    moved_at_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    waits: Mapping[TopicPartition, Wait] = field(default_factory=dict)
    open_since: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """For open transactions: the offset where the readable part ends, and since when (ms) it ends there."""


def remember(before: History | None, sample: Sample, *, limits: Limits) -> History:
    """Return the history with one more sample. After a gap between samples, the history begins again.

    Samples in other phases than WORKING do not add to it.
    """
    if before is None or not 0 <= sample.at_ms - before.sampled_at_ms <= limits.gap_ms:
        before = History(sample.at_ms, sample.at_ms, sample.offsets, sample.watermark_us, sample.at_ms)
    if sample.phase not in WORKING:
        since_ms = sample.at_ms if _still_starts(before) else before.watermark_since_ms
        return dataclasses.replace(before, sampled_at_ms=sample.at_ms, watermark_since_ms=since_ms)
    moved = [tp for tp, offset in sample.offsets.items() if before.offsets.get(tp) != offset]
    read_up_since_ms = _read_up_since_ms(before, sample, moved=bool(moved))
    quiet = read_up_since_ms is not None and sample.at_ms - read_up_since_ms >= limits.still_ms
    starts = sample.planned_at_ms is None and _still_starts(before)
    fresh = quiet or starts or sample.watermark_us != before.watermark_us
    return History(
        began_at_ms=before.began_at_ms,
        sampled_at_ms=sample.at_ms,
        offsets=sample.offsets,
        watermark_us=sample.watermark_us,
        watermark_since_ms=sample.at_ms if fresh else before.watermark_since_ms,
        advances=0 if fresh else before.advances + bool(moved),
        read_up_since_ms=read_up_since_ms,
        moved_at_ms={**before.moved_at_ms, **dict.fromkeys(moved, sample.at_ms)},
        waits={tp: _wait(before.waits.get(tp), tp, sample) for tp in sample.unread},
        open_since={tp: _open_since(before.open_since.get(tp), tp, sample) for tp in sample.in_transactions},
    )


def _still_starts(before: History) -> bool:
    """Whether no commit has advanced offsets since the watermark last moved, so that no record may have been read."""
    return before.advances == 0


def _read_up_since_ms(before: History, sample: Sample, *, moved: bool) -> int | None:
    if sample.unread:
        return None
    return sample.at_ms if moved or before.read_up_since_ms is None else before.read_up_since_ms


def _open_since(before: tuple[int, int] | None, tp: TopicPartition, sample: Sample) -> tuple[int, int]:
    end = sample.offsets.get(tp, 0) + sample.unread.get(tp, 0)
    return before if before is not None and before[0] == end else (end, sample.at_ms)


def _wait(before: Wait | None, tp: TopicPartition, sample: Sample) -> Wait:
    offset = sample.offsets.get(tp)
    if before is None or before.offset != offset:
        return Wait(offset, sample.at_ms, sample.batch)
    tried = before.tried or sample.batch
    if sample.batch is None or tried != sample.batch:
        return dataclasses.replace(before, tried=tried)
    return Wait(offset, max(before.nearer_at_ms, sample.advanced_at_ms), tried)
