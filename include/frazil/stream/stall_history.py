"""Samples of a writer's offsets and watermark, folded into the history by which a stall is judged. Pure."""

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
"""Commit intervals after which standing still is no hiccup: by then a healthy writer has committed twice at least."""
STILL_LEAST_MS = 20_000
"""However short the commit interval is: on a busy host a batch takes many intervals of a second or two, and one Python
worker of Spark alone up to 10 s to come up."""
GAP_MS = 30_000
"""A longer time between two samples proves nothing about the writer: the machine slept, or its clock was set."""
FIRST_ANSWER_MS = 60_000
"""How long Spark may take to start the source's process, however short the commit interval is."""

WORKING = frozenset({Phase.WAITING, Phase.STAGING, Phase.JOURNALING, Phase.COMMITTING})
"""Phases in which a stall may be judged. A start, a take-over and a stop have limits of their own, and see no ends."""


class BatchName(NamedTuple):
    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.batch}"


@dataclass(frozen=True, slots=True)
class Limits:
    """A stream's own measure of patience, in milliseconds."""

    interval_ms: int
    idle_timeout_ms: int

    @property
    def still_ms(self) -> int:
        """How long may pass without offsets, or the watermark, moving."""
        return max(INTERVALS * self.interval_ms, STILL_LEAST_MS)

    @property
    def gap_ms(self) -> int:
        return max(GAP_MS, self.interval_ms)

    def stretched(self, stretch: float) -> Limits:
        """While the commits are throttled."""
        return dataclasses.replace(self, interval_ms=round(self.interval_ms * stretch))

    @classmethod
    def for_stream(cls, spec: StreamSpec) -> Limits:
        millisecond = timedelta(milliseconds=1)
        return cls(spec.commit.interval // millisecond, spec.watermark.idle_timeout // millisecond)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the writer knows of itself at one moment; times are milliseconds since the epoch, UTC."""

    at_ms: int
    phase: Phase
    advanced_at_ms: int
    """When something last moved: the phase, the batch, or the records of the batch at hand."""
    offsets: Mapping[TopicPartition, int]
    """The marker's: the next to commit."""
    unread: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Records beyond the committed offsets as the planner last saw them, where there are any."""
    in_transactions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets that wait for transactions to end, where there are any."""
    planned_at_ms: int | None = None
    """When the planner last heard from Kafka; None where it never did since the query was opened."""
    batch: BatchName | None = None
    """The batch at hand; None while the writer waits, and once the batch has landed."""
    batch_records: int = 0
    max_event_times_us: Mapping[TopicPartition, int] = field(default_factory=dict)
    idle: frozenset[TopicPartition] = frozenset()
    watermark_us: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A topic-partition with unread records at one committed offset."""

    offset: int | None
    """None for a partition that appeared since, and is in no marker yet."""
    nearer_at_ms: int
    """When its records last came nearer to a commit: seen first, or read on by the first batch that tries them."""
    tried: BatchName | None
    """The first batch at hand while they wait. Another reads the same records again, and brings them no nearer."""


@dataclass(frozen=True, slots=True)
class History:
    """All samples so far, in as little as a judgement needs."""

    began_at_ms: int
    sampled_at_ms: int
    offsets: Mapping[TopicPartition, int]
    watermark_us: int | None
    watermark_since_ms: int
    """Since when the watermark stands while the stream has something to read; a quiet topic begins it anew."""
    advances: int = 0
    """Samples since then that found offsets moved on by a commit."""
    read_up_since_ms: int | None = None
    """Since when nothing has been unread and no offset has moved."""
    moved_at_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    waits: Mapping[TopicPartition, Wait] = field(default_factory=dict)


def remember(before: History | None, sample: Sample, *, limits: Limits) -> History:
    """The history with one more sample. Phases without a judgement only pass the time; a gap forgets what was."""
    if before is None or not 0 <= sample.at_ms - before.sampled_at_ms <= limits.gap_ms:
        before = History(sample.at_ms, sample.at_ms, sample.offsets, sample.watermark_us, sample.at_ms)
    if sample.phase not in WORKING:
        since_ms = sample.at_ms if _still_starts(before) else before.watermark_since_ms
        return dataclasses.replace(before, sampled_at_ms=sample.at_ms, watermark_since_ms=since_ms)
    moved = [tp for tp, offset in sample.offsets.items() if before.offsets.get(tp) != offset]
    read_up_since_ms = _read_up_since_ms(before, sample, moved=bool(moved))
    quiet = read_up_since_ms is not None and sample.at_ms - read_up_since_ms >= limits.still_ms
    starts = sample.planned_at_ms is None and _still_starts(before)
    anew = quiet or starts or sample.watermark_us != before.watermark_us
    return History(
        began_at_ms=before.began_at_ms,
        sampled_at_ms=sample.at_ms,
        offsets=sample.offsets,
        watermark_us=sample.watermark_us,
        watermark_since_ms=sample.at_ms if anew else before.watermark_since_ms,
        advances=0 if anew else before.advances + bool(moved),
        read_up_since_ms=read_up_since_ms,
        moved_at_ms={**before.moved_at_ms, **dict.fromkeys(moved, sample.at_ms)},
        waits={tp: _wait(before.waits.get(tp), tp, sample) for tp in sample.unread},
    )


def _still_starts(before: History) -> bool:
    """Until a commit has left the watermark where it is, it may stand because nothing has been read yet."""
    return before.advances == 0


def _read_up_since_ms(before: History, sample: Sample, *, moved: bool) -> int | None:
    if sample.unread:
        return None
    return sample.at_ms if moved or before.read_up_since_ms is None else before.read_up_since_ms


def _wait(before: Wait | None, tp: TopicPartition, sample: Sample) -> Wait:
    offset = sample.offsets.get(tp)
    if before is None or before.offset != offset:
        return Wait(offset, sample.at_ms, sample.batch)
    tried = before.tried or sample.batch
    if sample.batch is None or tried != sample.batch:
        return dataclasses.replace(before, tried=tried)
    return Wait(offset, max(before.nearer_at_ms, sample.advanced_at_ms), tried)
