"""Reads files as a backfill's source. Files are scanned before anything is staged, and then read like topics."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.backfill.request import BackfillRequest
from frazil.backfill.source import RecordSource, offset_ranges
from frazil.commit.marker import Marker
from frazil.errors import SpecError, StaleBatch
from frazil.ingest.contract import OffsetRange, RecordFile, StageContext, StageTask
from frazil.ingest.coordinates import record_schema
from frazil.ingest.record_files import (
    JSON_LINES_SUFFIXES,
    PARQUET_SUFFIXES,
    FileColumns,
    is_record_file,
    read_coordinates,
)
from frazil.offsets.spans import OffsetSets, SourceIdentity, Spans, TopicPartition, offsets_within, spans_with_records
from frazil.offsets.tally import OffsetTally
from frazil.spec.iceberg import parse_former_columns, records_schema
from frazil.spec.model import StreamSpec
from frazil.stream.stage_context import current_units
from frazil.table.landed_offsets import COORDINATES, split_by_partition
from frazil.table.object_store import FileInfo
from frazil.table.renamed_columns import find_aliases
from frazil.table.storage import open_store


@dataclass(frozen=True, slots=True)
class FileIndex:
    files: tuple[RecordFile, ...]
    records: OffsetSets

    def describe_files_at(self, tp: TopicPartition, offset: int) -> str:
        ranges = ((f.path, r) for f in self.files for r in f.ranges)
        around = (path for path, r in ranges if (r.topic, r.partition) == tp and r.start <= offset < r.end)
        return ", ".join(islice(around, 3))


@dataclass(frozen=True)
class FileSource(RecordSource):
    """The files under a path. `columns` are those that are decoded from a record's bytes."""

    location: str
    files: tuple[FileInfo, ...]
    io_properties: Mapping[str, str]
    columns: FileColumns
    is_whole: bool = False
    """False, because compaction may have removed records of the files before the stream read the topic."""

    @classmethod
    def open(cls, location: str, table: Table, spec: StreamSpec) -> FileSource:
        """List the files, with the credentials of the table's storage. Raises SpecError if there are no files."""
        schema = records_schema(spec) if spec.transform else record_schema(table.schema(), True)
        units = current_units(
            spec, table.schema(), find_aliases(table.schema(), parse_former_columns(table.properties))
        )
        properties = table.io.properties
        listed = _list_record_files(location, properties)
        if not listed:
            kinds = ", ".join(f"*{suffix}" for suffix in sorted(PARQUET_SUFFIXES | JSON_LINES_SUFFIXES))
            raise SpecError(f"no files to backfill exist under {location} ({kinds} are read). Correct `files`")
        return cls(location, listed, properties, FileColumns.of(schema, units))

    def with_listing(self, request: BackfillRequest) -> BackfillRequest:
        """Return the request with these files' fingerprint. Raises SpecError if the request has another fingerprint."""
        if request.listing not in {None, self.listing}:
            raise SpecError(self._changed_message())
        return request.model_copy(update={"listing": self.listing})

    @property
    def listing(self) -> str:
        """Fingerprint of the files' paths, sizes and times."""
        entries = [(f.path, f.bytes, f.modified_ms) for f in self.files]
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:10]

    @cached_property
    def index(self) -> FileIndex:
        """The index of all files. Raises SpecError if a file cannot be used, or if a record occurs more than once."""
        io = load_file_io(dict(self.io_properties), location=self.location)
        tallies = defaultdict[TopicPartition, OffsetTally](OffsetTally)
        files = tuple(_scan(info, io, self.columns, tallies) for info in self.files)
        index = FileIndex(files, {tp: tally.seen for tp, tally in tallies.items()})
        for tp, tally in tallies.items():
            if tally.copies:
                first = tally.repeated.min()
                raise SpecError(
                    f"{tally.copies:,} records of {tp[0]}-{tp[1]} are in the files more than once, the first at offset "
                    f"{first:,} in {index.describe_files_at(tp, first)}: frazil cannot determine which copy is right. "
                    "Remove all copies but one"
                )
        return index

    def identity(self, current: SourceIdentity) -> SourceIdentity:
        """Return `current`, because files have no identity. Raises SpecError if the files have changed."""
        if _list_record_files(self.location, self.io_properties) != self.files:
            raise SpecError(self._changed_message())
        return current

    def find_requested_spans(self, request: BackfillRequest, marker: Marker) -> Spans:
        """Return a span for each topic-partition with records. Raises StaleBatch or SpecError for unread records."""
        for tp, offsets in self.index.records.items():
            name, live, last = f"{tp[0]}-{tp[1]}", marker.offsets.get(tp), offsets.max()
            if request.dead_letters and (live is None or last >= live):
                raise StaleBatch(
                    f"stream {request.stream!r} was reset to before dead letters that were being replayed: its "
                    f"position is {name} offset {live or 0:,}. Nothing was changed. Run `frazil dlq replay "
                    f"{request.stream}` again; it leaves out dead letters whose records the stream will read again"
                )
            if live is None:
                raise SpecError(
                    f"stream {request.stream!r} does not read {name}, but {self.index.describe_files_at(tp, last)} has "
                    "records of it. Remove these records"
                )
            if last >= live:
                raise SpecError(
                    f"{self.index.describe_files_at(tp, last)} has records of {name} up to offset {last:,}, but stream "
                    f"{request.stream!r} itself will read from offset {live:,}. Remove the records from that offset "
                    "on, or wait until the stream has read them"
                )
        return {tp: ((offsets.min(), offsets.max() + 1),) for tp, offsets in sorted(self.index.records.items())}

    def select_with_records(self, spans: Spans) -> Spans:
        return spans_with_records(spans, self.index.records)

    def records(self, spans: Spans) -> dict[TopicPartition, BitMap64]:
        return offsets_within(spans, self.index.records)

    possible_records = records

    def tasks(self, spans: Spans, cores: int) -> list[StageTask]:
        pieces = self.chunks(spans, limit=math.ceil(self.max_records(spans) / cores))
        return [StageTask(index, offset_ranges(piece)) for index, piece in enumerate(pieces)]

    def context(self, context: StageContext) -> StageContext:
        return dataclasses.replace(context, kafka={}, files=self.index.files)

    def _changed_message(self) -> str:
        return (
            f"the files under {self.location} have changed since this backfill was planned: a file was added, changed "
            "or removed. Restore the files, or abandon the backfill and request it again"
        )


def _scan(
    info: FileInfo, io: FileIO, columns: FileColumns, tallies: Mapping[TopicPartition, OffsetTally]
) -> RecordFile:
    """Return the file with the offset ranges of its records, and add the records' offsets to `tallies`."""
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    for table in read_coordinates(info.path, io, columns):
        for batch in table.select(COORDINATES).to_batches():
            for tp, offsets in split_by_partition(batch):
                tallies[tp].add(offsets)
                lowest, end = bounds.get(tp, (offsets[0], 0))
                bounds[tp] = int(min(lowest, offsets[0])), int(max(end, offsets[-1] + 1))
    ranges = tuple(OffsetRange(*tp, *span) for tp, span in sorted(bounds.items()))
    return RecordFile(info.path, info.bytes, info.modified_ms, ranges)


def _list_record_files(location: str, properties: Mapping[str, str]) -> tuple[FileInfo, ...]:
    """List one file, or the readable files below a folder. Omits hidden files, because they may be incomplete."""
    store = open_store(location, properties)
    if is_record_file(location):
        folder = location.rpartition("/")[0]
        if single := tuple(f for f in store.list_files(folder) if f.path == location):
            return single
    files = [(f, PurePosixPath(f.path.removeprefix(location)).parts) for f in store.list_files(location)]
    hidden = ("_", ".")
    return tuple(f for f, parts in files if is_record_file(f.path) and not any(p.startswith(hidden) for p in parts))
