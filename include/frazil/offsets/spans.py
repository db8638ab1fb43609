"""Calculations on the offsets of topic-partitions, as spans `[start, end)` and as bitmaps. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyroaring import BitMap64


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Ids of a Kafka cluster and its topics. Offsets are valid only within the same ids."""

    cluster_id: str
    topic_ids: Mapping[str, str]


TopicPartition = tuple[str, int]
Offsets = Mapping[TopicPartition, int]
OffsetSets = Mapping[TopicPartition, BitMap64]
Span = tuple[int, int]
"""A range of offsets, `[start, end)`."""
Spans = Mapping[TopicPartition, tuple[Span, ...]]
"""The spans of each topic-partition: sorted, non-empty and without overlaps."""


def format_span(start: int, end: int) -> str:
    """Return the first and the last offset of `[start, end)`, such as `0 to 658`; `none` if it is empty."""
    return "none" if start >= end else f"{start:,}" if start == end - 1 else f"{start:,} to {end - 1:,}"


def count_unread(position: Offsets, first: Offsets, ends: Offsets) -> int:
    """Return the number of offsets from the position to the ends. A missing position begins at `first`."""
    starts = {**first, **position}
    return sum(max(end - starts[tp], 0) for tp, end in ends.items())


def offset_bitmap(start: int, end: int) -> BitMap64:
    bitmap = BitMap64()
    if end > start:
        bitmap.add_range(start, end)
    return bitmap


def iter_runs(bitmap: BitMap64, within: Span) -> Iterator[Span]:
    """Yield the runs of consecutive offsets in `bitmap`; all must be in `within`. Changes `bitmap`, so pass a copy."""
    end = within[1]
    absent = offset_bitmap(*within) - bitmap
    for offsets in (bitmap, absent):
        offsets.add(end)  # a sentinel, at which every search ends
    start = bitmap.min()
    while start < end:
        after = absent.next_set_bit(start)
        yield start, after
        start = bitmap.next_set_bit(after)


def offsets_within(spans: Spans, records: OffsetSets) -> dict[TopicPartition, BitMap64]:
    """Return the record offsets that are in the spans. Omits topic-partitions without such records."""
    inside = {tp: records[tp] & offsets for tp, offsets in to_bitmaps(spans).items()}
    return {tp: offsets for tp, offsets in inside.items() if offsets}


def spans_with_records(spans: Spans, records: OffsetSets) -> Spans:
    """Return only the spans that contain at least one of the record offsets."""
    filled = {tp: tuple(s for s in parts if records[tp].range_cardinality(*s)) for tp, parts in spans.items()}
    return {tp: parts for tp, parts in filled.items() if parts}


def merge_spans(pieces: Iterable[tuple[TopicPartition, Span]]) -> Spans:
    """Join the pieces of each topic-partition that touch or overlap. Omits empty pieces."""
    by_tp: dict[TopicPartition, list[Span]] = defaultdict(list)
    for tp, piece in pieces:
        by_tp[tp].append(piece)
    joined = {tp: tuple(join_spans(parts)) for tp, parts in sorted(by_tp.items())}
    return {tp: parts for tp, parts in joined.items() if parts}


def join_spans(pieces: Iterable[Span]) -> list[Span]:
    """Join the pieces that touch or overlap, and return them in order. Omits empty pieces."""
    joined: list[Span] = []
    for start, end in sorted(pieces):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif start < end:
            joined.append((start, end))
    return joined


def to_bitmaps(spans: Spans) -> dict[TopicPartition, BitMap64]:
    return {tp: covered_offsets(parts) for tp, parts in spans.items()}


def covered_offsets(spans: Iterable[Span]) -> BitMap64:
    """Return all offsets of the spans. No span may be empty."""
    bitmap = BitMap64()
    for start, end in spans:
        bitmap.add_range(start, end)
    return bitmap


def union_offsets(offset_sets: Iterable[OffsetSets]) -> dict[TopicPartition, BitMap64]:
    union: dict[TopicPartition, BitMap64] = defaultdict(BitMap64)
    for each in offset_sets:
        for tp, offsets in each.items():
            union[tp] |= offsets
    return dict(union)


def spans_overlap(first: Spans, second: Spans) -> bool:
    """Return whether the spans have an offset in common."""
    return any(a < d and c < b for tp, parts in first.items() for a, b in parts for c, d in second.get(tp, ()))
