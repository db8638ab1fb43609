"""Plans batches: when a batch starts, where it ends, and how its ranges are divided among tasks.

Times are seconds of a monotonic clock, not producers' timestamps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path

from frazil.commit.journal import Journal
from frazil.commit.marker import NO_TRANSACTION, LastTransaction, Marker
from frazil.errors import Failure, StaleBatch
from frazil.ingest.contract import OffsetRange, RangeProgress, StageTask
from frazil.json_files import read_json, replace_json
from frazil.offsets.spans import Offsets, TopicPartition
from frazil.spec.units import format_count

_RATES = "rates.json"


@dataclass(frozen=True, slots=True)
class Position:
    offsets: Offsets
    idle: frozenset[TopicPartition] = frozenset()
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The leader epoch of the last record before each offset, if known."""
    transaction: LastTransaction = NO_TRANSACTION
    """The last complete source transaction before these offsets, if batches have whole transactions."""

    @classmethod
    def from_marker(cls, marker: Marker) -> Position:
        return cls(marker.offsets, marker.idle, marker.leader_epochs, marker.transaction)


@dataclass(frozen=True, slots=True)
class PlannerReport:
    ends: Offsets
    """The offsets up to which records may be read. For a partition without a leader, the last known offset."""
    first_offsets: Offsets = field(default_factory=dict)
    """The first offsets of new partitions that are not in the marker yet."""
    in_transactions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets that wait for transactions to end, if any."""
    transaction: str = ""
    """The source transaction for which records wait, and what to do; "" if none. Not a transaction of Kafka."""
    observed_at_ms: int = 0
    """Time of the last poll that Kafka answered; 0 before the first answer."""
    silent_since_ms: int | None = None
    """Time of the first poll since `observed_at_ms` without an answer or topic, if any."""
    missing: Failure | None = None
    """The error of the last poll, if Kafka answers but has no topic of the stream."""
    leaderless: frozenset[TopicPartition] = frozenset()
    """Topic-partitions that have no leader now, so they cannot be read."""

    @property
    def is_complete(self) -> bool:
        """Whether the end of each topic-partition is known. The last known end counts."""
        return self.leaderless <= self.ends.keys()

    def unread(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the number of records from these offsets on, by partition. Omits zeros."""
        starts = {**self.first_offsets, **offsets}
        lags = {tp: end - starts.get(tp, 0) for tp, end in self.ends.items()}
        return {tp: lag for tp, lag in lags.items() if lag > 0}


@dataclass(frozen=True, slots=True)
class Rates:
    bytes_per_record: float = 40.0
    task_seconds_per_record: float = 6e-6
    """Wall time of a task per record. On a busy host, this exceeds the CPU time."""
    overhead_s: float = 1.0
    """The part of a batch's duration that does not depend on its size."""
    stretch: float = 1.0
    """Factor of the commit interval (`frazil.stream.throttle`)."""


def write_rates(folder: Path, rates: Rates) -> None:
    replace_json(folder / _RATES, asdict(rates))


def read_rates(folder: Path) -> Rates:
    try:
        return Rates(**dict(read_json(folder / _RATES)))
    except (ValueError, TypeError):
        return Rates()


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    interval_s: float
    size_bytes: int
    max_records: int
    target_file_bytes: int
    parallelism: int
    longest_interval_s: float = 0.0
    """Maximum commit interval (s) under throttling."""
    drain: bool = False
    """Whether the writer catches up and then ends. In this mode, any unread record starts a batch."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    now: bool
    reason: str


def decide_batch(*, unread: int, oldest_age_s: float | None, rates: Rates, policy: BatchPolicy) -> BatchDecision:
    """Decide whether to start a batch: if it is large enough, or must start now to be committed within the interval.

    `oldest_age_s` is the time since the oldest record was first seen. None means that this record was unread when the
    writer started; the batch then starts at once.
    """
    if unread <= 0:
        return BatchDecision(False, "no records are unread")
    if policy.drain:
        return BatchDecision(True, f"{format_count(unread, 'record', 'is|are')} unread, and the writer has to catch up")
    if oldest_age_s is None:
        return BatchDecision(True, f"{format_count(unread, 'record', 'was|were')} waiting when the writer started")
    size = unread * rates.bytes_per_record
    if size >= policy.size_bytes:
        return BatchDecision(True, f"about {size:.0f} bytes are unread, and commit.size is {policy.size_bytes}")
    records = min(unread, policy.max_records)
    tasks = choose_task_count(records, rates=rates, policy=policy)
    stage_s = rates.overhead_s + records * rates.task_seconds_per_record / tasks
    interval_s = max(policy.interval_s, min(policy.interval_s * rates.stretch, policy.longest_interval_s))
    deadline_s = max(interval_s - stage_s, 0.0)
    oldest = f"the oldest record is {oldest_age_s:.1f} s old"
    if oldest_age_s >= deadline_s:
        return BatchDecision(True, f"{oldest}, and the batch will take about {stage_s:.1f} s")
    return BatchDecision(False, f"{oldest}, due at {deadline_s:.1f} s")


def limit_ends(position: Offsets, ends: Offsets, *, max_records: int) -> dict[TopicPartition, int]:
    """Return a batch's end offsets: `ends`, or shares of `max_records` in proportion to each partition's lag."""
    lags = {tp: max(ends.get(tp, start) - start, 0) for tp, start in position.items()}
    total = sum(lags.values())
    if total <= max_records:
        return {tp: start + lags[tp] for tp, start in position.items()}
    share = max_records / total
    return {tp: start + min(lags[tp], math.ceil(lags[tp] * share)) for tp, start in position.items()}


def choose_task_count(records: int, *, rates: Rates, policy: BatchPolicy) -> int:
    """Return the number of tasks: one per file of the target size, or more to finish within the interval."""
    files = math.ceil(records * rates.bytes_per_record / policy.target_file_bytes)
    in_time = math.ceil(records * rates.task_seconds_per_record / max(policy.interval_s - rates.overhead_s, 1.0))
    return max(1, files, min(in_time, policy.parallelism))


def assign_tasks(start: Offsets, end: Offsets, *, tasks: int) -> tuple[StageTask, ...]:
    """Split the unread offsets into tasks of equal size, with at most one range per partition."""
    return split_ranges(
        [OffsetRange(*tp, start[tp], end[tp]) for tp in sorted(start) if end.get(tp, start[tp]) > start[tp]],
        tasks=tasks,
    )


def split_ranges(ranges: Sequence[OffsetRange], *, tasks: int) -> tuple[StageTask, ...]:
    """Split the ranges into `tasks` tasks whose lengths differ by at most one offset."""
    total = sum(r.end - r.start for r in ranges)
    edges = [total * i // tasks for i in range(tasks + 1)]
    pieces = [list(_part_of_ranges(ranges, a, b)) for a, b in pairwise(edges)]
    return tuple(StageTask(index, tuple(piece)) for index, piece in enumerate(filter(None, pieces)))


def _part_of_ranges(ranges: Sequence[OffsetRange], low: int, high: int) -> Iterator[OffsetRange]:
    position = 0
    for r in ranges:
        length = r.end - r.start
        a, b = max(low - position, 0), min(high - position, length)
        if a < b:
            yield OffsetRange(r.topic, r.partition, r.start + a, r.start + b)
        position += length


def average_rates(old: Rates, *, records: int, written_bytes: int, task_s: float, overhead_s: float) -> Rates:
    """Return the moving average of rates after another batch. Large batches weigh more."""
    if records <= 0:
        return old
    weight = min(0.5, records / 100_000 + 0.1)

    def mix(average: float, current: float) -> float:
        return average + weight * (current - average)

    return replace(
        old,
        bytes_per_record=mix(old.bytes_per_record, written_bytes / records),
        task_seconds_per_record=mix(old.task_seconds_per_record, max(task_s, 0.0) / records),
        overhead_s=mix(old.overhead_s, max(overhead_s, 0.0)),
    )


def update_rates(
    folder: Path, journal: Journal, task_s: Sequence[float], *, batch_s: float, stretch: float | None = None
) -> None:
    """Record a batch's rates and, unless `stretch` is None, the factor of the commit interval."""
    rates = average_rates(
        read_rates(folder),
        records=journal.records,
        written_bytes=sum(f.bytes for f in journal.staged_for("main")),
        task_s=sum(task_s),
        overhead_s=batch_s - max(task_s, default=0.0),
    )
    write_rates(folder, rates if stretch is None else replace(rates, stretch=stretch))


def join_ranges(pieces: Iterable[RangeProgress]) -> tuple[RangeProgress, ...]:
    """Join the ranges that several tasks have read: one range per partition. Raises `StaleBatch` for a gap."""
    joined = []
    in_order = sorted(pieces, key=lambda p: (p.topic, p.partition, p.start))
    for (topic, partition), group in groupby(in_order, key=lambda p: p.topic_partition):
        parts = list(group)
        if any(a.end != b.start for a, b in pairwise(parts)):
            raise StaleBatch(f"ranges of {topic}-{partition} are not contiguous: {[(p.start, p.end) for p in parts]}")
        joined.append(
            RangeProgress(
                topic,
                partition,
                parts[0].start,
                parts[-1].end,
                records=sum(p.records for p in parts),
                rejected=sum(p.rejected for p in parts),
                dropped=sum(p.dropped for p in parts),
                max_event_time_us=_newest(p.max_event_time_us for p in parts),
                future=sum(p.future for p in parts),
                newest_future_us=_newest(p.newest_future_us for p in parts),
            )
        )
    return tuple(joined)


def _newest(times_us: Iterable[int | None]) -> int | None:
    return max((time for time in times_us if time is not None), default=None)
