"""Computes the watermark of a stream: the minimum over its topic-partitions of the newest event time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from frazil.offsets.spans import TopicPartition


def watermark_us(
    max_event_times_us: Mapping[TopicPartition, int],
    *,
    partitions: Collection[TopicPartition],
    idle: Collection[TopicPartition],
    previous_us: int | None,
) -> int | None:
    """Return the stream's watermark in microseconds since the epoch; None while it is unknown.

    Idle topic-partitions are skipped. While an active topic-partition has no record yet, the watermark does not change.
    If all topic-partitions are idle, the watermark is the newest event time seen, because no older record is unread.
    The watermark never goes back.
    """
    active = [tp for tp in partitions if tp not in idle]
    if any(tp not in max_event_times_us for tp in active):
        return previous_us
    if active:
        candidate: int | None = min(max_event_times_us[tp] for tp in active)
    else:
        candidate = max((max_event_times_us[tp] for tp in partitions if tp in max_event_times_us), default=None)
    if candidate is None:
        return previous_us
    return candidate if previous_us is None else max(candidate, previous_us)


def slowest_partition(
    max_event_times_us: Mapping[TopicPartition, int],
    *,
    partitions: Collection[TopicPartition],
    idle: Collection[TopicPartition],
) -> TopicPartition | None:
    """Return the topic-partition for which the watermark waits: one without a record, else the one furthest behind.

    Returns None if all topic-partitions are idle: then only new records move the watermark.
    """
    active = sorted(tp for tp in partitions if tp not in idle)
    silent = [tp for tp in active if tp not in max_event_times_us]
    if silent:
        return silent[0]
    return min(active, key=lambda tp: max_event_times_us[tp], default=None)
