"""Reads several offset ranges of one topic-partition, in as few passes as possible.

One pass reads at most one range per topic-partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from frazil.ingest.chunk import Chunk
from frazil.ingest.contract import OffsetRange
from frazil.ingest.range_reader import RangeReader
from frazil.offsets.spans import TopicPartition


class MultiPassReader:
    """Reads the records `[start, end)` of each range once, even if several ranges belong to one topic-partition.

    A `RangeReader` can read only one range per topic-partition, so this class uses several readers, one after another.
    One task can thus read many small ranges into one file, for example for a backfill of gaps between dead letters.
    """

    notice: str | None = None
    on_read: Callable[[int, float], None] = staticmethod(lambda *_: None)

    def __init__(
        self, open_ranges: Callable[[Sequence[OffsetRange]], RangeReader], ranges: Sequence[OffsetRange]
    ) -> None:
        self._open_ranges = open_ranges
        self._ranges = ranges

    def __enter__(self) -> MultiPassReader:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: each pass closes its own reader."""

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks of all ranges. Raises the same errors as `RangeReader`."""
        for turn in group_into_passes(self._ranges):
            index = np.array(turn, np.int32)
            with self._open_ranges([self._ranges[i] for i in turn]) as reader:
                reader.on_read = self.on_read
                for chunk in reader:
                    yield replace(chunk, range_index=index[chunk.range_index])


def group_into_passes(ranges: Sequence[OffsetRange]) -> list[list[int]]:
    """Group the indexes of the ranges into passes, each with at most one range per topic-partition."""
    seen: dict[TopicPartition, int] = defaultdict(int)
    found: list[list[int]] = []
    for index, r in enumerate(ranges):
        tp = (r.topic, r.partition)
        if seen[tp] == len(found):
            found.append([])
        found[seen[tp]].append(index)
        seen[tp] += 1
    return found
