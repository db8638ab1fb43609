"""Reads Kafka as a backfill's source, and computes the offsets that a backfill reads.

These are the requested offsets that precede the marker and whose records are in no table. `frazil.backfill.files` is
the source for files, with the same methods.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import chain

from pyroaring import BitMap64

from frazil.backfill.request import BackfillRequest
from frazil.commit.marker import Marker
from frazil.errors import SpecError
from frazil.ingest.contract import OffsetRange, StageContext, StageTask
from frazil.kafka.admin import KafkaAdmin
from frazil.kafka.fetch import read_offsets
from frazil.offsets.spans import (
    Offsets,
    OffsetSets,
    SourceIdentity,
    Span,
    Spans,
    TopicPartition,
    iter_runs,
    offset_bitmap,
    offsets_within,
    to_bitmaps,
)
from frazil.offsets.tally import seen_offsets
from frazil.stream.plan import split_ranges
from frazil.table.object_store import FileInfo

MAX_SAMPLE_POINTS = 8
"""Maximum number of sample points, spread evenly over the missing offsets of each topic-partition."""
MAX_SAMPLE_OFFSETS = 250
"""Maximum number of offsets that are read at one sample point of a topic-partition."""


def requested_spans(start: Offsets, end: Offsets, *, first: Offsets, live: Offsets) -> Spans:
    """Return the requested offsets that Kafka has (from `first`) and the stream has read (to `live`)."""
    bounds = {
        tp: (max(start.get(tp, 0), first[tp]), min(end.get(tp, live[tp]), live[tp]))
        for tp in sorted(first.keys() & live.keys())
    }
    return {tp: (span,) for tp, span in bounds.items() if span[0] < span[1]}


def missing_spans(requested: Spans, held: OffsetSets) -> Spans:
    """Return the requested offsets that are not in `held`, merged into as few spans as possible."""
    missing = {
        tp: tuple(piece for span in spans for piece in iter_runs(offset_bitmap(*span) - held.get(tp, BitMap64()), span))
        for tp, spans in requested.items()
    }
    return {tp: spans for tp, spans in missing.items() if spans}


def split_by_records(spans: Spans, records: OffsetSets, *, limit: int) -> tuple[Spans, ...]:
    """Divide the spans into chunks of about `limit` records, with the same share of every topic-partition.

    Omits spans without records.
    """
    within = offsets_within(spans, records)
    count = math.ceil(sum(map(len, within.values())) / limit)
    pieces = (
        {tp: _slice_spans(spans[tp], offsets, *_share_bounds(len(offsets), i, count)) for tp, offsets in within.items()}
        for i in range(count)
    )
    present = ({tp: piece for tp, piece in pieces_by_tp.items() if piece} for pieces_by_tp in pieces)
    return tuple(filter(None, present))


def sample_records(spans: Spans, records: OffsetSets) -> Spans:
    """Return the parts of the spans with a few records at several points of each topic-partition."""
    within = offsets_within(spans, records)
    count = min(math.ceil(max(map(len, within.values()), default=0) / MAX_SAMPLE_OFFSETS), MAX_SAMPLE_POINTS)
    points = {tp: [_share_bounds(len(offsets), i, count) for i in range(count)] for tp, offsets in within.items()}
    parts = {
        tp: [_slice_spans(spans[tp], within[tp], low, min(high, low + MAX_SAMPLE_OFFSETS)) for low, high in bounds]
        for tp, bounds in points.items()
    }
    return {tp: tuple(chain.from_iterable(pieces)) for tp, pieces in parts.items()}


def _share_bounds(length: int, index: int, count: int) -> Span:
    return length * index // count, length * (index + 1) // count


def _slice_spans(spans: tuple[Span, ...], records: BitMap64, low: int, high: int) -> tuple[Span, ...]:
    if low == high:
        return ()
    first, end = records[low], records[high - 1] + 1
    return tuple((max(a, first), min(b, end)) for a, b in spans if a < end and first < b)


class RecordSource(ABC):
    """Divides spans by the records that a source may have in them."""

    __slots__ = ()

    @abstractmethod
    def possible_records(self, spans: Spans) -> OffsetSets:
        """Return the offsets in these spans at which the source may have a record."""

    def max_records(self, spans: Spans) -> int:
        return sum(map(len, self.possible_records(spans).values()))

    def chunks(self, spans: Spans, *, limit: int) -> tuple[Spans, ...]:
        return split_by_records(spans, self.possible_records(spans), limit=limit)

    def sample(self, spans: Spans) -> Spans:
        return sample_records(spans, self.possible_records(spans))


@dataclasses.dataclass(frozen=True, slots=True)
class KafkaSource(RecordSource):
    """Reads the stream's own topics."""

    kafka: KafkaAdmin
    properties: Mapping[str, str]
    is_whole: bool = True
    """Whether every record that the source has in a committed range has become a row or a dead letter."""
    files: tuple[FileInfo, ...] = ()
    """The files that are read instead of Kafka."""

    def identity(self, current: SourceIdentity) -> SourceIdentity:  # noqa: ARG002 - Kafka knows itself
        return self.kafka.describe().identity

    def find_requested_spans(self, request: BackfillRequest, marker: Marker) -> Spans:
        """Return the requested offsets that the stream has read. Raises SpecError for other partitions."""
        tps = self.kafka.describe().partitions
        start, end = request.offset_bounds("from"), request.offset_bounds("to")
        if unknown := (start.keys() | end.keys()) - set(tps):
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(unknown))
            raise SpecError(f"stream {request.stream!r} does not read {names}: correct the requested offsets")
        if request.from_time:
            start = self.kafka.offsets_at(request.from_time, tps)
        if request.to_time:
            end = self.kafka.offsets_at(request.to_time, tps)
        return requested_spans(start, end, first=self.kafka.earliest(tps), live=marker.offsets)

    def select_with_records(self, spans: Spans) -> Spans:
        """Return the parts of the spans that may have records."""
        return spans

    def possible_records(self, spans: Spans) -> OffsetSets:
        return to_bitmaps(spans)

    def records(self, spans: Spans) -> dict[TopicPartition, BitMap64]:
        """Return the offsets in these spans at which the source has a record. Uses a separate consumer."""
        first = self.kafka.earliest(spans)
        ranges = {tp: (max(parts[0][0], first[tp]), parts[-1][1]) for tp, parts in spans.items()}
        return offsets_within(spans, seen_offsets(read_offsets(self.properties, ranges)))

    def tasks(self, spans: Spans, cores: int) -> list[StageTask]:
        return list(split_ranges(offset_ranges(spans), tasks=cores))

    def context(self, context: StageContext) -> StageContext:
        """Return the context unchanged, because tasks resolve the references in Kafka's properties themselves."""
        return context


def offset_ranges(spans: Spans) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*tp, *span) for tp, parts in spans.items() for span in parts if span[0] < span[1])
