"""When a batch is due, how far it reads, and how it is spread over tasks: pure decisions of the planner.

Seconds are of a monotonic clock; producers' timestamps play no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from frazil.ingest.contract import OffsetRange, StageTask
from frazil.offsets.spans import TopicPartition


@dataclass(frozen=True, slots=True)
class Rates:
    """What earlier batches taught: the defaults are those of small JSON records on a slow core."""

    bytes_per_record: float = 40.0
    """Parquet bytes that one record becomes."""
    task_seconds_per_record: float = 6e-6
    """Wall time: what else runs on the host's cores counts, as it does for freshness."""
    overhead_s: float = 1.0
    """What a batch costs whatever its size: scheduling, journal, commit."""
    stretch: float = 1.0
    """How many times longer than declared the commit interval is (`frazil.stream.throttle`)."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """A stream's commit settings, in the planner's units."""

    interval_s: float
    size_bytes: int
    max_records: int
    target_file_bytes: int
    parallelism: int
    longest_interval_s: float = 0.0
    """What the interval is stretched to at most; below it, it never is."""
    drain: bool = False
    """Whatever is unread is due at once: the writer is to catch up and end."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """A decision, with the reason that the log shows."""

    now: bool
    reason: str


def predicted_stage_s(records: int, *, tasks: int, rates: Rates) -> float:
    return rates.overhead_s + records * rates.task_seconds_per_record / max(tasks, 1)


def batch_due(*, unread: int, oldest_age_s: float | None, rates: Rates, policy: BatchPolicy) -> BatchDecision:
    """Whether to start a batch: by size, or so early that its oldest record is committed within the interval.

    `oldest_age_s` is how long ago the oldest unread record was first seen; None means that nobody knows (the writer
    has just started), and then there is nothing to wait for.
    """
    if unread <= 0:
        return BatchDecision(False, "nothing is unread")
    if policy.drain:
        return BatchDecision(True, f"{unread} records are unread, and the writer is to catch up")
    if oldest_age_s is None:
        return BatchDecision(True, f"{unread} records were waiting when the writer started")
    size = unread * rates.bytes_per_record
    if size >= policy.size_bytes:
        return BatchDecision(True, f"about {size:.0f} bytes reach commit.size {policy.size_bytes}")
    records = min(unread, policy.max_records)
    stage_s = predicted_stage_s(records, tasks=task_count(records, rates=rates, policy=policy), rates=rates)
    interval_s = max(policy.interval_s, min(policy.interval_s * rates.stretch, policy.longest_interval_s))
    deadline_s = max(interval_s - stage_s, 0.0)
    oldest = f"the oldest record is {oldest_age_s:.1f} s old"
    if oldest_age_s >= deadline_s:
        return BatchDecision(True, f"{oldest}, the batch will take about {stage_s:.1f} s")
    return BatchDecision(False, f"{oldest}, due at {deadline_s:.1f} s")


def bounded_ends(
    position: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], *, max_records: int
) -> dict[TopicPartition, int]:
    """How far a batch reads: everything, or each partition's share of `max_records` by its lag.

    Shares by lag keep partitions of a backlog abreast, so that the watermark moves with it. Ends never go back.
    """
    lags = {tp: max(ends.get(tp, start) - start, 0) for tp, start in position.items()}
    total = sum(lags.values())
    if total <= max_records:
        return {tp: start + lags[tp] for tp, start in position.items()}
    share = max_records / total
    return {tp: start + min(lags[tp], math.ceil(lags[tp] * share)) for tp, start in position.items()}


def task_count(records: int, *, rates: Rates, policy: BatchPolicy) -> int:
    """As many tasks as the bytes need files; more only where one core a file would miss the interval."""
    files = math.ceil(records * rates.bytes_per_record / policy.target_file_bytes)
    in_time = math.ceil(records * rates.task_seconds_per_record / max(policy.interval_s - rates.overhead_s, 1.0))
    return max(1, files, min(in_time, policy.parallelism))


def assign(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], *, tasks: int
) -> tuple[StageTask, ...]:
    """The unread ranges, laid end to end and cut into `tasks` lengths that differ by one record at most.

    So no task is slower than another however the lag is spread, and a topic-partition is in one task at most once:
    a consumer can read only one position of it.
    """
    return spread(
        [OffsetRange(*tp, start[tp], end[tp]) for tp in sorted(start) if end.get(tp, start[tp]) > start[tp]],
        tasks=tasks,
    )


def spread(ranges: Sequence[OffsetRange], *, tasks: int) -> tuple[StageTask, ...]:
    """Ranges laid end to end and cut into `tasks` lengths that differ by one offset at most."""
    total = sum(r.end - r.start for r in ranges)
    edges = [total * i // tasks for i in range(tasks + 1)]
    lengths = [list(_between(ranges, a, b)) for a, b in pairwise(edges)]
    return tuple(StageTask(index, tuple(held)) for index, held in enumerate(filter(None, lengths)))


def _between(ranges: Sequence[OffsetRange], low: int, high: int) -> Iterator[OffsetRange]:
    """What lies in `[low, high)` of the ranges laid end to end."""
    at = 0
    for r in ranges:
        length = r.end - r.start
        a, b = max(low - at, 0), min(high - at, length)
        if a < b:
            yield OffsetRange(r.topic, r.partition, r.start + a, r.start + b)
        at += length


def learned(old: Rates, *, records: int, written_bytes: int, task_s: float, overhead_s: float) -> Rates:
    """Rates after one more batch: a moving average in which a large batch weighs more than a small one."""
    if records <= 0:
        return old
    weight = min(0.5, records / 100_000 + 0.1)

    def mix(before: float, now: float) -> float:
        return before + weight * (now - before)

    return replace(
        old,
        bytes_per_record=mix(old.bytes_per_record, written_bytes / records),
        task_seconds_per_record=mix(old.task_seconds_per_record, max(task_s, 0.0) / records),
        overhead_s=mix(old.overhead_s, max(overhead_s, 0.0)),
    )
