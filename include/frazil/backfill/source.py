"""Where a backfill's records come from: what its plan, its staging and its audit ask of Kafka, or of files."""

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
from frazil.offsets.spans import Span, Spans, TopicPartition, offsets
from frazil.stream.plan import spread
from frazil.table.object_store import FileInfo

PLACES = 8
"""How many places a sample is taken from, spread evenly over what is missing of each topic-partition."""
AT_A_PLACE = 250


class RecordSource(Protocol):
    """What a backfill reads, Kafka or files, by Kafka coordinates."""

    @property
    def is_whole(self) -> bool:
        """Whether every record it has of a committed range became a row or a dead letter."""
        ...

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """What is read instead of Kafka, if anything."""
        ...

    def identity(self, known: SourceIdentity) -> SourceIdentity:
        """Whose offsets these are, as far as the source can tell; otherwise `known`.

        Raises SpecError if the source itself changed under the backfill.
        """
        ...

    def asked(self, request: BackfillRequest, marker: Marker) -> Spans:
        """The requested offsets below the marker. Raises SpecError for topics that the stream does not know."""
        ...

    def holding(self, spans: Spans) -> Spans:
        """The spans that may hold records."""
        ...

    def at_most(self, spans: Spans) -> int:
        """How many records the spans may hold."""
        ...

    def records(self, spans: Spans) -> Mapping[TopicPartition, BitMap64]:
        """The records that the source has of the spans."""
        ...

    def chunks(self, spans: Spans, *, most: int) -> tuple[Spans, ...]:
        """The spans cut into chunks of about `most` records."""
        ...

    def tasks(self, spans: Spans, cores: int) -> list[StageTask]:
        """As many tasks as cores, at most."""
        ...

    def sample(self, spans: Spans) -> list[StageTask]:
        """A few records at several places of the spans."""
        ...

    def context(self, context: StageContext) -> StageContext:
        """The context with what tasks need to read this source."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class KafkaSource:
    """The stream's own topics."""

    kafka: KafkaOffsets
    properties: Mapping[str, str]
    is_whole: bool = True
    files: tuple[FileInfo, ...] = ()

    def identity(self, known: SourceIdentity) -> SourceIdentity:  # noqa: ARG002 - Kafka knows itself
        return self.kafka.describe().identity

    def asked(self, request: BackfillRequest, marker: Marker) -> Spans:
        tps = self.kafka.describe().partitions
        start, end = request.offset_bounds("from"), request.offset_bounds("to")
        if unknown := (start.keys() | end.keys()) - set(tps):
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(unknown))
            raise SpecError(f"stream {request.stream!r} reads no {names}: fix from-offsets or to-offsets")
        if request.from_time:
            start = self.kafka.at(request.from_time, tps)
        if request.to_time:
            end = self.kafka.at(request.to_time, tps)
        return plan.asked(start, end, first=self.kafka.earliest(tps), live=marker.offsets)

    def holding(self, spans: Spans) -> Spans:
        return spans

    def at_most(self, spans: Spans) -> int:
        return offsets(spans)

    def records(self, spans: Spans) -> dict[TopicPartition, BitMap64]:
        """Read by a consumer of its own."""
        first = self.kafka.earliest(spans)
        ranges = {tp: (max(of[0][0], first[tp]), of[-1][1]) for tp, of in spans.items()}
        found = read_offsets(self.properties, ranges)
        return spans_of.within(spans, {tp: tally.seen for tp, tally in found.items()})

    def chunks(self, spans: Spans, *, most: int) -> tuple[Spans, ...]:
        return plan.chunks(spans, most=most)

    def tasks(self, spans: Spans, cores: int) -> list[StageTask]:
        return list(spread(ranges(spans), tasks=cores))

    def sample(self, spans: Spans) -> list[StageTask]:
        places = [{tp: (_piece(of, place),) for tp, of in spans.items()} for place in range(PLACES)]
        return [StageTask(index, ranges(place)) for index, place in enumerate(places)]

    def context(self, context: StageContext) -> StageContext:
        """As it is, with references: tasks resolve them where they run, as a writer's do."""
        return context


def ranges(spans: Spans) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*tp, *span) for tp, of in spans.items() for span in of if span[0] < span[1])


def _piece(of: tuple[Span, ...], place: int) -> Span:
    """A few offsets at one of the places, never two of them twice."""
    length = sum(end - start for start, end in of)
    at, until = length * place // PLACES, length * (place + 1) // PLACES
    for start, end in of:
        if at < end - start:
            return start + at, min(start + at + min(AT_A_PLACE, until - at), end)
        at, until = at - (end - start), until - (end - start)
    return 0, 0
