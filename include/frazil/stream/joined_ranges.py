"""Joins the ranges of a batch that several tasks read."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise

from frazil.errors import StaleBatch
from frazil.ingest.contract import RangeProgress


def join_ranges(pieces: Iterable[RangeProgress]) -> tuple[RangeProgress, ...]:
    """Join the pieces that several tasks read into one range per topic-partition.

    Raises `StaleBatch` for a gap between two pieces, which would be a bug, so that such a batch is never journaled.
    """
    whole = []
    for (topic, partition), group in groupby(sorted(pieces, key=_by_offset), key=lambda p: p.topic_partition):
        parts = list(group)
        if any(a.end != b.start for a, b in pairwise(parts)):
            raise StaleBatch(f"the ranges of {topic}-{partition} do not join: {[(p.start, p.end) for p in parts]}")
        times = [p.max_event_time_us for p in parts if p.max_event_time_us is not None]
        whole.append(
            RangeProgress(
                topic,
                partition,
                parts[0].start,
                parts[-1].end,
                records=sum(p.records for p in parts),
                rejected=sum(p.rejected for p in parts),
                max_event_time_us=max(times, default=None),
                future=sum(p.future for p in parts),
            )
        )
    return tuple(whole)


def _by_offset(piece: RangeProgress) -> tuple[str, int, int]:
    return (piece.topic, piece.partition, piece.start)
