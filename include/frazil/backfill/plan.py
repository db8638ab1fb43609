"""Computes the offsets that a backfill reads: requested ones before the marker that are in no table yet. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyroaring import BitMap64

from frazil.offsets.spans import Span, Spans, TopicPartition, count_offsets, iter_runs, offset_bitmap, offsets_within


def requested_spans(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    *,
    first: Mapping[TopicPartition, int],
    live: Mapping[TopicPartition, int],
) -> Spans:
    """Return the requested offsets that Kafka has (from `first`) and the stream has read (to `live`)."""
    bounds = {
        tp: (max(start.get(tp, 0), first[tp]), min(end.get(tp, live[tp]), live[tp]))
        for tp in sorted(first.keys() & live.keys())
    }
    return {tp: (span,) for tp, span in bounds.items() if span[0] < span[1]}


def missing_spans(wanted: Spans, held: Mapping[TopicPartition, BitMap64]) -> Spans:
    """Return the wanted offsets that are not in `held`, merged into as few spans as possible."""
    left = {
        tp: tuple(piece for span in spans for piece in iter_runs(offset_bitmap(*span) - held.get(tp, BitMap64()), span))
        for tp, spans in wanted.items()
    }
    return {tp: spans for tp, spans in left.items() if spans}


def split_by_offsets(spans: Spans, *, limit: int) -> tuple[Spans, ...]:
    """Divide the spans into chunks of about `limit` offsets, with the same share of every topic-partition."""
    count = math.ceil(count_offsets(spans) / limit)
    pieces = ({tp: piece for tp, of in spans.items() if (piece := _take_share(of, i, count))} for i in range(count))
    return tuple(filter(None, pieces))


def split_by_records(spans: Spans, records: Mapping[TopicPartition, BitMap64], *, limit: int) -> tuple[Spans, ...]:
    """Divide the spans into chunks of about `limit` known records; leave out spans without records."""
    within = offsets_within(spans, records)
    count = math.ceil(sum(map(len, within.values())) / limit)
    pieces = (
        {
            tp: piece
            for tp, offsets in within.items()
            if (piece := _slice_spans(spans[tp], offsets, *_share_bounds(len(offsets), i, count)))
        }
        for i in range(count)
    )
    return tuple(filter(None, pieces))


def select_first_records(spans: Spans, records: Mapping[TopicPartition, BitMap64], *, limit: int) -> Spans:
    """Return the parts of the spans with the first `limit` records of each topic-partition."""
    within = offsets_within(spans, records)
    return {tp: _slice_spans(spans[tp], of, 0, min(limit, len(of))) for tp, of in within.items()}


def _take_share(of: tuple[Span, ...], index: int, count: int) -> tuple[Span, ...]:
    """Lay the spans end to end, divide them into `count` equal parts, and return the part with this index."""
    low, high = _share_bounds(sum(end - start for start, end in of), index, count)
    part, at = [], 0
    for start, end in of:
        a, b = max(low - at, 0), min(high - at, end - start)
        if a < b:
            part.append((start + a, start + b))
        at += end - start
    return tuple(part)


def _share_bounds(length: int, index: int, count: int) -> Span:
    return length * index // count, length * (index + 1) // count


def _slice_spans(spans: tuple[Span, ...], records: BitMap64, low: int, high: int) -> tuple[Span, ...]:
    if low == high:
        return ()
    first, end = records[low], records[high - 1] + 1
    return tuple((max(a, first), min(b, end)) for a, b in spans if a < end and first < b)
