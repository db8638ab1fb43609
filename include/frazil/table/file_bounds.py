"""Selects the data files that may contain given Kafka offsets, from the coordinates' bounds in manifests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from frazil.offsets.spans import TopicPartition

OffsetRanges = Mapping[TopicPartition, Sequence[tuple[int, int]]]
"""Ranges `[start, end)`: sorted, not empty, not overlapping."""

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")


class FileBounds:
    """Decides whether a data file may contain a row in the given ranges. Never excludes a file that contains one."""

    def __init__(self, schema: Schema, within: OffsetRanges) -> None:
        fields = [schema.find_field(name) for name in COORDINATES]
        self._columns = [(f.field_id, f.field_type) for f in fields if isinstance(f.field_type, PrimitiveType)]
        self._within = within

    def may_hold(self, file: DataFile) -> bool:
        (topics, partitions, offsets) = (_bounds(file, *column) for column in self._columns)
        return any(
            # The upper bound of a string may be truncated and rounded up; comparisons stay correct.
            _may_overlap(topics, topic, topic)
            and _may_overlap(partitions, partition, partition)
            and any(_may_overlap(offsets, start, end - 1) for start, end in ranges)
            for (topic, partition), ranges in self._within.items()
        )


def topics_filter(topics: Collection[str]) -> str:
    """Return a row filter that selects topics, whose names cannot contain quotes."""
    return f"kafka_topic in ({', '.join(repr(t) for t in sorted(topics))})"


def ranges_filter(within: OffsetRanges) -> str:
    """Return one row filter that covers all ranges, and possibly other rows."""
    ranges = [r for of in within.values() for r in of]
    lowest, end = min(start for start, _ in ranges), max(end for _, end in ranges)
    return f"{topics_filter({topic for topic, _ in within})} and kafka_offset >= {lowest} and kafka_offset < {end}"


def _bounds(file: DataFile, field_id: int, kind: PrimitiveType) -> tuple[Any, Any]:
    both = ((bounds or {}).get(field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    lower, upper = (None if bound is None else from_bytes(kind, bound) for bound in both)
    return lower, upper


def _may_overlap(bounds: tuple[Any, Any], lowest: Any, greatest: Any) -> bool:
    """Return whether bounds overlap a range, ends included. None is unlimited."""
    lower, upper = bounds
    return (lower is None or lower <= greatest) and (upper is None or upper >= lowest)
