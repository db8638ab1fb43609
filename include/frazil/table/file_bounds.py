"""Selects the data files that may contain given Kafka offsets, from the bounds of the coordinates in manifests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from frazil.offsets.spans import TopicPartition

OffsetRanges = Mapping[TopicPartition, Sequence[tuple[int, int]]]
"""Offset ranges `[start, end)` by topic-partition: sorted, not empty, not overlapping."""

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")
"""The columns that identify the Kafka record of a row."""


class FileBounds:
    """Decides whether a data file may contain a row whose Kafka coordinates are in the given ranges.

    A file is skipped only if its bounds prove that it has no such row, so every copy of a record is found. A file has
    one minimum and maximum for the offsets of all its topic-partitions. If these offsets are far apart, the file may be
    read unnecessarily.
    """

    def __init__(self, schema: Schema, within: OffsetRanges) -> None:
        fields = [schema.find_field(name) for name in COORDINATES]
        self._columns = [(f.field_id, f.field_type) for f in fields if isinstance(f.field_type, PrimitiveType)]
        self._within = within

    def may_hold(self, file: DataFile) -> bool:
        """Return whether the file may contain a row in the ranges."""
        (topics, partitions, offsets) = (_bounds(file, *column) for column in self._columns)
        return any(
            # The upper bound of a string may be truncated and rounded up; comparisons stay correct.
            _may_overlap(topics, topic, topic)
            and _may_overlap(partitions, partition, partition)
            and any(_may_overlap(offsets, start, end - 1) for start, end in ranges)
            for (topic, partition), ranges in self._within.items()
        )


def topics_filter(topics: Collection[str]) -> str:
    """Return a row filter that selects topics. Topic names cannot contain quotes."""
    return f"kafka_topic in ({', '.join(repr(t) for t in sorted(topics))})"


def ranges_filter(within: OffsetRanges) -> str:
    """Return one row filter that covers all ranges, and possibly more rows. It selects the files to scan."""
    ranges = [r for of in within.values() for r in of]
    lowest, end = min(start for start, _ in ranges), max(end for _, end in ranges)
    return f"{topics_filter({topic for topic, _ in within})} and kafka_offset >= {lowest} and kafka_offset < {end}"


def _bounds(file: DataFile, field_id: int, kind: PrimitiveType) -> tuple[Any, Any]:
    """Return the minimum and maximum of a column in a file. Each is None if the manifest does not have it."""
    both = ((bounds or {}).get(field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    lower, upper = (None if bound is None else from_bytes(kind, bound) for bound in both)
    return lower, upper


def _may_overlap(bounds: tuple[Any, Any], lowest: Any, greatest: Any) -> bool:
    """Return whether a column's bounds overlap a range, both ends included. A bound that is None is unlimited."""
    lower, upper = bounds
    return (lower is None or lower <= greatest) and (upper is None or upper >= lowest)
