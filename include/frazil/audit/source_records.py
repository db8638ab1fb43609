"""Reads committed records from Kafka again and stages them in a separate folder, to compare them with the tables."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.audit.claims import CommittedRange
from frazil.audit.findings import Finding, FindingKind
from frazil.commit.followers import Followers, missing_journals
from frazil.commit.marker import BatchKey, Marker, read_marker
from frazil.commit.marker_changes import is_ahead
from frazil.commit.stream_tables import StreamTables
from frazil.home import make_folder, run_folder
from frazil.ingest.contract import Destinations, OffsetRange, StageContext, StageResult, StageTask, Target
from frazil.ingest.decode import DecodedChunk, bisect_failures
from frazil.ingest.isolate import IsolatedDecoder
from frazil.ingest.readers import open_reader
from frazil.ingest.stage import stage
from frazil.ingest.target_decoders import open_decoder
from frazil.offsets.spans import OffsetSets, Span, TopicPartition
from frazil.offsets.tally import Tallies
from frazil.spec.model import StreamSpec
from frazil.spec.references import executor_kafka_properties
from frazil.spec.sinks import Sinks
from frazil.stream.stage_context import add_routed_targets, build_stage_context, stage_below
from frazil.table.declared_tables import load_route_tables
from frazil.table.landed_offsets import RowSelection, tally_files, tally_rows


@contextmanager
def scratch_folder(stream: str) -> Iterator[Path]:
    """Yield a new folder in the stream's run folder, and remove it afterwards."""
    folder = run_folder(stream)
    make_folder(folder)
    with TemporaryDirectory(dir=folder, prefix="audit-") as name:
        yield Path(name)


@dataclasses.dataclass(frozen=True, slots=True)
class SourceRecords:
    """Records to read from Kafka again, and the tables for the comparison."""

    spec: StreamSpec
    tables: StreamTables
    sinks: ComparedTables
    topic_ids: Mapping[str, str]
    spans: Mapping[TopicPartition, Sequence[Span]]
    not_read: Sequence[str] = ()
    """Topics that cannot be read again."""
    committed: Mapping[TopicPartition, Sequence[CommittedRange]] = dataclasses.field(default_factory=dict)
    """The ranges that commit records claim."""

    @property
    def topics(self) -> set[str]:
        return {topic for (topic, _), parts in self.spans.items() if parts}

    def stage(self, folder: Path) -> tuple[StageResult, StageContext]:
        """Stage the records in subfolders of `folder`."""
        kafka = executor_kafka_properties(self.spec, os.environ)
        base = build_stage_context(
            self.spec, self.tables, BatchKey(0, 0), kafka_properties=kafka, topic_ids=self.topic_ids
        )
        base = stage_below(self.sinks.add_route(self.spec, base), str(folder))
        selection = RowSelection(self.topics, None, self.topic_ids, self.spec.name)
        dead_letters = tally_rows(self.tables.dead_letters.refresh(), selection)
        existing = {tp: tally.seen.serialize() for tp, tally in dead_letters.items() if tally.seen}
        context = dataclasses.replace(base, existing_dead_letters=existing)
        task = StageTask(0, tuple(OffsetRange(*tp, *span) for tp, parts in self.spans.items() for span in parts))
        return stage(context, task, isolated=self.spec.transform is not None), context


def records_by_table(
    spec: StreamSpec, tables: StreamTables, table: Table, marker: Marker, spans: Mapping[TopicPartition, Span]
) -> Mapping[Target, Tallies]:
    """Return the offsets of the records that belong in each table by the declared route. Raises KafkaUnavailable."""
    sinks = ComparedTables.load(spec, tables, table, marker)
    replay = SourceRecords(spec, tables, sinks, marker.source.topic_ids, {tp: [span] for tp, span in spans.items()})
    paths = defaultdict[Target, list[str]](list)
    with scratch_folder(spec.name) as folder:
        for file in replay.stage(folder)[0].files:
            paths[file.target].append(file.path)
        io = load_file_io({}, location=str(folder))
        return {target: tally_files(io, files) for target, files in paths.items() if target != "dead-letters"}


@dataclass(frozen=True, slots=True)
class ComparedTables:
    """The tables that the audit compares with Kafka's records."""

    tables: Mapping[Target, Table]
    by_value: Mapping[str, Target]
    """The table of each route value, even if it is not compared."""
    findings: Sequence[Finding] = ()
    """Why some tables are not compared."""

    @classmethod
    def load(cls, spec: StreamSpec, tables: StreamTables, main: Table, marker: Marker) -> ComparedTables:
        """Load the routed tables, after `main` and its `marker` have been loaded."""
        if not (sinks := spec.sinks).has_routed_tables:
            return cls({"main": main}, {})
        routed = load_route_tables(main.catalog, sinks)
        tables_by_value = {sinks.find_value(name, table.properties): name for name, table in routed.items()}
        by_value = {**{value: name for value, name in tables_by_value.items() if value is not None}, **sinks.by_value}
        notes = dict(_not_comparable(sinks, tables, routed, marker))
        compared = {name: table for name, table in routed.items() if name not in notes}
        findings = [Finding(FindingKind.NOT_COMPARED, 1, reason, name) for name, reason in sorted(notes.items())]
        return cls({"main": main, **compared}, by_value, findings)

    def add_route(self, spec: StreamSpec, context: StageContext) -> StageContext:
        if (route := spec.route) is None:
            return context
        return add_routed_targets(context, spec, self.tables, Destinations.of(route, self.by_value))


def _not_comparable(
    sinks: Sinks, tables: StreamTables, routed: Mapping[Target, Table], marker: Marker
) -> Iterator[tuple[Target, str]]:
    """Yield the tables that cannot be compared, with reasons."""
    waiting = Followers.load(tables, marker).waiting
    for target in sorted({*sinks.named_tables} - routed.keys()):
        yield target, f"the table is not in the catalog; `frazil route {tables.stream}` shows the remedy"
    for target, table in routed.items():
        own_marker = read_marker(table.properties, tables.stream)
        if own_marker is None:
            yield target, f"the table has no marker of stream {tables.stream!r}, so it has no rows of the stream"
        elif missing_journals(tables, table, waiting.get(target, ())):
            yield target, f"the table does not have all rows yet. If this persists, run `frazil route {tables.stream}`"
        elif is_ahead(own_marker, marker):
            yield target, "the writer committed to the table during the audit: run the audit again"


def dropped_offsets(spec: StreamSpec, tables: StreamTables, ranges: Mapping[TopicPartition, Span]) -> OffsetSets:
    """Return the offsets in these ranges with records that the current transform drops."""
    kafka = executor_kafka_properties(spec, os.environ)
    context = build_stage_context(spec, tables, BatchKey(0, 0), kafka_properties=kafka, topic_ids={})
    missing_ranges = tuple(OffsetRange(*tp, *span) for tp, span in sorted(ranges.items()) if span[0] < span[1])
    dropped = defaultdict[TopicPartition, BitMap64](BitMap64)
    if not missing_ranges:
        return dropped
    make = partial(open_decoder, context, context.main.schema)
    with open_reader(context, StageTask(0, missing_ranges)) as reader, closing(IsolatedDecoder(make)) as decode:
        for chunk in reader:
            attempts = bisect_failures(len(chunk), lambda start, end: decode(chunk.slice(start, end)))  # noqa: B023 - called here
            # A record that raises is a dead letter.
            parts = [part.dropped + start for start, _, part in attempts if isinstance(part, DecodedChunk)]
            rows = np.concatenate(parts) if parts else np.arange(0)
            of_range, offsets = chunk.range_index[rows], chunk.offsets[rows]
            for index in np.unique(of_range).tolist():
                tp = (missing_ranges[index].topic, missing_ranges[index].partition)
                dropped[tp] |= BitMap64(offsets[of_range == index].tolist())
    return dropped
