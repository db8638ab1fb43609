"""Defines one protocol for the two sources of a backfill's records: Kafka and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from pyroaring import BitMap64

from frazil.backfill import plan
from frazil.backfill.request import BackfillRequest
from frazil.commit.marker import Marker
from frazil.errors import SpecError
from frazil.ingest.contract import OffsetRange, StageContext, StageTask
from frazil.kafka.admin import KafkaOffsets
from frazil.kafka.committed_offsets import read_offsets
from frazil.kafka.identity import SourceIdentity
from frazil.offsets import spans as spans_of
from frazil.offsets.spans import Span, Spans, TopicPartition, count_offsets
from frazil.stream.plan import split_ranges
from frazil.table.object_store import FileInfo

SAMPLE_POINTS = 8
"""Number of sample points, spread evenly over the missing offsets of each topic-partition."""
MAX_SAMPLE_OFFSETS = 250
"""Maximum number of offsets that are read at one sample point of a topic-partition."""


class RecordSource(Protocol):
    """The records that a backfill can read, addressed by Kafka coordinates."""

    @property
    def is_whole(self) -> bool:
        """Whether the source only has records of a committed range that became a row or a dead letter."""
        ...

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that are read instead of Kafka; empty for Kafka."""
        ...

    def identity(self, known: SourceIdentity) -> SourceIdentity:
        """Return the identity of the topics to which the offsets belong; `known` if the source does not know it.

        Raises SpecError if the source has changed since the backfill began.
        """
        ...

    def requested(self, request: BackfillRequest, marker: Marker) -> Spans:
        """Return the requested offsets before the stream's position.

        Raises SpecError for topics that the stream does not read.
        """
        ...

    def holding(self, spans: Spans) -> Spans:
        """Return the parts of the spans that may have records."""
        ...

    def max_records(self, spans: Spans) -> int:
        """Return the maximum number of records in the spans."""
        ...

    def records(self, spans: Spans) -> Mapping[TopicPartition, BitMap64]:
        """Return the offsets in these spans at which the source has a record."""
        ...

    def chunks(self, spans: Spans, *, limit: int) -> tuple[Spans, ...]:
        """Divide the spans into chunks of about `limit` records."""
        ...

    def tasks(self, spans: Spans, cores: int) -> list[StageTask]:
        """Return at most `cores` tasks that read the spans."""
        ...

    def sample(self, spans: Spans) -> list[StageTask]:
        """Return tasks that read a few records at several points of the spans."""
        ...

    def context(self, context: StageContext) -> StageContext:
        """Return the context, with the settings that tasks need to read this source."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class KafkaSource:
    """Kafka: the stream's own topics."""

    kafka: KafkaOffsets
    properties: Mapping[str, str]
    is_whole: bool = True
    files: tuple[FileInfo, ...] = ()

    def identity(self, known: SourceIdentity) -> SourceIdentity:  # noqa: ARG002 - Kafka knows itself
        return self.kafka.describe().identity

    def requested(self, request: BackfillRequest, marker: Marker) -> Spans:
        tps = self.kafka.describe().partitions
        start, end = request.offset_bounds("from"), request.offset_bounds("to")
        if unknown := (start.keys() | end.keys()) - set(tps):
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(unknown))
            raise SpecError(f"stream {request.stream!r} does not read {names}: correct from-offsets or to-offsets")
        if request.from_time:
            start = self.kafka.at(request.from_time, tps)
        if request.to_time:
            end = self.kafka.at(request.to_time, tps)
        return plan.requested_spans(start, end, first=self.kafka.earliest(tps), live=marker.offsets)

    def holding(self, spans: Spans) -> Spans:
        return spans

    def max_records(self, spans: Spans) -> int:
        return count_offsets(spans)

    def records(self, spans: Spans) -> dict[TopicPartition, BitMap64]:
        """Return the offsets in these spans at which Kafka has a record. Uses a separate consumer."""
        first = self.kafka.earliest(spans)
        ranges = {tp: (max(of[0][0], first[tp]), of[-1][1]) for tp, of in spans.items()}
        found = read_offsets(self.properties, ranges)
        return spans_of.offsets_within(spans, {tp: tally.seen for tp, tally in found.items()})

    def chunks(self, spans: Spans, *, limit: int) -> tuple[Spans, ...]:
        return plan.chunks(spans, limit=limit)

    def tasks(self, spans: Spans, cores: int) -> list[StageTask]:
        return list(split_ranges(offset_ranges(spans), tasks=cores))

    def sample(self, spans: Spans) -> list[StageTask]:
        places = [{tp: (_sample_span(of, place),) for tp, of in spans.items()} for place in range(SAMPLE_POINTS)]
        return [StageTask(index, offset_ranges(place)) for index, place in enumerate(places)]

    def context(self, context: StageContext) -> StageContext:
        """Return the context unchanged: tasks resolve references in the Kafka properties themselves, as a writer's
        tasks do.
        """
        return context


def offset_ranges(spans: Spans) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*tp, *span) for tp, of in spans.items() for span in of if span[0] < span[1])


def _sample_span(spans: tuple[Span, ...], index: int) -> Span:
    """Return a short span at a sample point. `index` is from 0 to `SAMPLE_POINTS - 1`.

    The spans of different sample points never overlap.
    """
    length = sum(end - start for start, end in spans)
    at, until = length * index // SAMPLE_POINTS, length * (index + 1) // SAMPLE_POINTS
    for start, end in spans:
        if at < end - start:
            return start + at, min(start + at + min(MAX_SAMPLE_OFFSETS, until - at), end)
        at, until = at - (end - start), until - (end - start)
    return 0, 0
