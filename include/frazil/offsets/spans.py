"""Computes with offsets of topic-partitions as spans `[start, end)` and as bitmaps. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from pyroaring import BitMap64

TopicPartition = tuple[str, int]
Span = tuple[int, int]
"""Offsets from `start` to before `end`: `(start, end)`."""
Spans = Mapping[TopicPartition, tuple[Span, ...]]
"""Spans by topic-partition: sorted, non-empty and without overlaps."""


def count_unread(
    position: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> int:
    """Return the number of offsets between a position and the ends. A partition without a position starts at
    `first`.
    """
    starts = {**first, **position}
    return sum(max(end - starts[tp], 0) for tp, end in ends.items())


def offset_bitmap(start: int, end: int) -> BitMap64:
    """Return a bitmap of all offsets in `[start, end)`."""
    whole = BitMap64()
    if end > start:
        whole.add_range(start, end)
    return whole


def offset_runs(found: BitMap64, within: Span) -> Iterator[Span]:
    """Yield the runs of consecutive offsets of a bitmap. The cost grows with the number of runs, not of offsets."""
    end = within[1]
    others = offset_bitmap(*within) - found
    for offsets_of in (found, others):
        offsets_of.add(end)  # a sentinel, at which every search ends
    start = found.min()
    while start < end:
        after = others.next_set_bit(start)
        yield start, after
        start = found.next_set_bit(after)


def offsets_within(spans: Spans, records: Mapping[TopicPartition, BitMap64]) -> dict[TopicPartition, BitMap64]:
    """Return the record offsets that lie inside the spans. Topic-partitions without such records are left out."""
    found = {tp: records[tp] & of for tp, of in to_bitmaps(spans).items()}
    return {tp: offsets_of for tp, offsets_of in found.items() if offsets_of}


def spans_with_records(spans: Spans, records: Mapping[TopicPartition, BitMap64]) -> Spans:
    """Return only the spans that contain at least one of the record offsets."""
    kept = {tp: tuple(s for s in of if records[tp].range_cardinality(*s)) for tp, of in spans.items()}
    return {tp: of for tp, of in kept.items() if of}


def count_offsets(spans: Spans) -> int:
    """Return the number of offsets in the spans. Kafka's logs have gaps, so the spans may contain fewer records."""
    return sum(end - start for of in spans.values() for start, end in of)


def merge_spans(pieces: Iterable[tuple[TopicPartition, Span]]) -> Spans:
    """Merge `[start, end)` pieces, given in any order, into spans. Empty pieces are dropped; touching or overlapping
    pieces are joined.
    """
    whole: dict[TopicPartition, list[Span]] = {}
    for tp, (start, end) in sorted(pieces):
        of = whole.setdefault(tp, [])
        if of and start <= of[-1][1]:
            of[-1] = (of[-1][0], max(of[-1][1], end))
        elif start < end:
            of.append((start, end))
    return {tp: tuple(of) for tp, of in whole.items() if of}


def to_bitmaps(spans: Spans) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of the spans."""
    found = {tp: BitMap64() for tp in spans}
    for tp, of in spans.items():
        for start, end in of:
            found[tp].add_range(start, end)
    return found


def union(found: Iterable[Mapping[TopicPartition, BitMap64]]) -> dict[TopicPartition, BitMap64]:
    """Return the union of the offsets of several mappings, by topic-partition."""
    whole: dict[TopicPartition, BitMap64] = defaultdict(BitMap64)
    for each in found:
        for tp, offsets_of in each.items():
            whole[tp] |= offsets_of
    return dict(whole)


def spans_overlap(some: Spans, others: Spans) -> bool:
    """Whether any offset is in both."""
    return any(a < d and c < b for tp, of in some.items() for a, b in of for c, d in others.get(tp, ()))
