"""Checks whether retention deleted records that a stream has not read yet."""

from __future__ import annotations

from collections.abc import Mapping

from frazil.errors import OffsetGap
from frazil.offsets.spans import TopicPartition


def lost_ranges(wanted: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int]) -> str:
    """Describe the offsets that retention deleted between each position and the first available offset.

    Returns an empty string if no offsets were deleted.
    """
    return "; ".join(
        f"{topic}-{partition} offsets {offset} to {available[topic, partition] - 1}"
        for (topic, partition), offset in sorted(wanted.items())
        if available.get((topic, partition), offset) > offset
    )


def check_no_gap(wanted: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], *, stream: str) -> None:
    """Raise OffsetGap if retention deleted records at or after a position in `wanted`."""
    if lost := lost_ranges(wanted, available):
        raise OffsetGap(
            f"Kafka's retention deleted records that stream {stream!r} had not read: {lost}. `frazil reset {stream} "
            "--to marker` continues at the first remaining offsets, and `source.on-gap: skip` always does"
        )
