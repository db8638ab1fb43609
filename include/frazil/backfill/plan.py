"""Computes the offsets that a backfill reads: the requested offsets before the marker, except those in the tables.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyroaring import BitMap64

from frazil.offsets.spans import Span, Spans, TopicPartition, count_offsets, offset_bitmap, offset_runs, offsets_within


def requested_spans(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    *,
    first: Mapping[TopicPartition, int],
    live: Mapping[TopicPartition, int],
) -> Spans:
    """Return the requested offsets, limited to offsets that Kafka has and the stream has already read.

    `first` has Kafka's first available offsets, and `live` the stream's position. They are also the default bounds. The
    live stream itself reads later offsets, and topic-partitions that are not in the marker yet, so a backfill never
    competes with the stream.
    """
    bounds = {
        tp: (max(start.get(tp, 0), first[tp]), min(end.get(tp, live[tp]), live[tp]))
        for tp in sorted(first.keys() & live.keys())
    }
    return {tp: (span,) for tp, span in bounds.items() if span[0] < span[1]}


def missing_spans(wanted: Spans, held: Mapping[TopicPartition, BitMap64]) -> Spans:
    """Return the wanted offsets that are not in `held`, merged into as few spans as possible."""
    left = {
        tp: tuple(
            piece for span in spans for piece in offset_runs(offset_bitmap(*span) - held.get(tp, BitMap64()), span)
        )
        for tp, spans in wanted.items()
    }
    return {tp: spans for tp, spans in left.items() if spans}


def chunks(spans: Spans, *, limit: int) -> tuple[Spans, ...]:
    """Divide the spans into chunks of about `limit` offsets. Each chunk has the same share of every topic-partition.

    With equal shares, all topic-partitions advance in time together, so a chunk's files belong to few table partitions.
    A chunk may exceed `limit` by one offset per topic-partition.
    """
    count = math.ceil(count_offsets(spans) / limit)
    cut = ({tp: piece for tp, of in spans.items() if (piece := _share(of, i, count))} for i in range(count))
    return tuple(filter(None, cut))


def chunks_of_records(spans: Spans, records: Mapping[TopicPartition, BitMap64], *, limit: int) -> tuple[Spans, ...]:
    """Divide the spans as `chunks` does, but by the number of known records. Spans without records are left out."""
    there = offsets_within(spans, records)
    count = math.ceil(sum(map(len, there.values())) / limit)
    cut = (
        {
            tp: piece
            for tp, found in there.items()
            if (piece := _between_ranks(spans[tp], found, *_shares(len(found), i, count)))
        }
        for i in range(count)
    )
    return tuple(filter(None, cut))


def first_records(spans: Spans, records: Mapping[TopicPartition, BitMap64], *, limit: int) -> Spans:
    """Return the parts of the spans with the first `limit` records of each topic-partition."""
    there = offsets_within(spans, records)
    return {tp: _between_ranks(spans[tp], found, 0, min(limit, len(found))) for tp, found in there.items()}


def _share(of: tuple[Span, ...], index: int, count: int) -> tuple[Span, ...]:
    """Divide the spans, joined together, into `count` equal parts, and return the part with this index."""
    low, high = _shares(sum(end - start for start, end in of), index, count)
    found, at = [], 0
    for start, end in of:
        a, b = max(low - at, 0), min(high - at, end - start)
        if a < b:
            found.append((start + a, start + b))
        at += end - start
    return tuple(found)


def _shares(length: int, index: int, count: int) -> Span:
    return length * index // count, length * (index + 1) // count


def _between_ranks(of: tuple[Span, ...], found: BitMap64, low: int, high: int) -> tuple[Span, ...]:
    """Return the parts of the spans from the record with index `low` up to, but not including, the one with index
    `high`.
    """
    if low == high:
        return ()
    first, end = found[low], found[high - 1] + 1
    return tuple((max(a, first), min(b, end)) for a, b in of if a < end and first < b)
