"""Counts a topic-partition's offsets, and finds repeated ones, with a few bits of memory per offset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from frazil.offsets.spans import Span, TopicPartition, iter_runs

MIN_OFFSETS_PER_RANGE = 8
"""Minimum average length of runs that are added as ranges. Shorter runs are added offset by offset."""


class OffsetTally:
    """Counts offsets in any order. A billion take a few hundred MB of memory."""

    def __init__(self, offsets: npt.ArrayLike = ()) -> None:
        self.seen = BitMap64()
        self.repeated = BitMap64()
        self.rows = 0
        self.add(offsets)

    def add(self, offsets: npt.ArrayLike) -> None:
        """Count more offsets, none of them negative."""
        values = np.sort(np.asarray(offsets, dtype=np.uint64))
        steps = np.diff(values)
        piece = _to_bitmap(values, np.flatnonzero(steps != 1) + 1)
        if repeated := values[1:][steps == 0].tolist():
            self.repeated |= BitMap64(repeated)
        self.repeated |= self.seen & piece
        self.seen |= piece
        self.rows += len(values)

    def merge(self, other: OffsetTally) -> None:
        self.repeated |= other.repeated | (self.seen & other.seen)
        self.seen |= other.seen
        self.rows += other.rows

    @property
    def copies(self) -> int:
        """Number of surplus rows: all rows minus distinct offsets."""
        return self.rows - len(self.seen)


Tallies = Mapping[TopicPartition, OffsetTally]


def get_offsets(tallies: Tallies, tp: TopicPartition) -> BitMap64:
    return tallies[tp].seen if tp in tallies else BitMap64()


def seen_offsets(tallies: Tallies) -> dict[TopicPartition, BitMap64]:
    return {tp: tally.seen for tp, tally in tallies.items()}


def merge_tallies(tallies: Iterable[Tallies]) -> dict[TopicPartition, OffsetTally]:
    """Return the sum of the tallies. An offset that is in two tallies counts as repeated."""
    merged: dict[TopicPartition, OffsetTally] = defaultdict(OffsetTally)
    for each in tallies:
        for tp, tally in each.items():
            merged[tp].merge(tally)
    return dict(merged)


def first_spans(offsets: BitMap64, *, limit: int) -> Iterator[Span]:
    """Yield the first `limit` runs of consecutive offsets."""
    if offsets:
        yield from islice(iter_runs(offsets.copy(), (offsets.min(), offsets.max() + 1)), limit)


def _to_bitmap(values: npt.NDArray[np.uint64], breaks: npt.NDArray[np.int64]) -> BitMap64:
    """Build a bitmap from sorted offsets, and from the indexes at which new runs start."""
    if len(breaks) * MIN_OFFSETS_PER_RANGE > len(values):
        return BitMap64(values)
    bitmap = BitMap64()
    if len(values):
        firsts, lasts = values[[0, *breaks]].tolist(), values[[*(breaks - 1), -1]].tolist()
        for first, last in zip(firsts, lasts, strict=True):
            bitmap.add_range(first, last + 1)
    return bitmap
