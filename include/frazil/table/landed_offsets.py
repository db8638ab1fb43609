"""Collects the Kafka offsets of a table's rows in bitmaps. Reads only coordinates, a few files at a time. The
coordinates' bounds in manifests show which data files may contain given offsets.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.types import PrimitiveType

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.errors import SchemaIncompatible
from frazil.offsets.spans import TopicPartition
from frazil.offsets.tally import OffsetTally
from frazil.spec.column import LINE_COLUMN
from frazil.table.branches import head_of

OffsetRanges = Mapping[TopicPartition, Sequence[tuple[int, int]]]
"""Ranges `[start, end)`: sorted, not empty, not overlapping."""

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")


class FileBounds:
    """Decides whether a data file may have a row in the given ranges. Never excludes a file that has one."""

    def __init__(self, schema: Schema, within: OffsetRanges) -> None:
        fields = [schema.find_field(name) for name in COORDINATES]
        self._columns = [(f.field_id, f.field_type) for f in fields if isinstance(f.field_type, PrimitiveType)]
        self._within = within

    def may_hold(self, file: DataFile) -> bool:
        lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
        topics, partitions, offsets = (
            tuple(
                None if (bound := bounds.get(field_id)) is None else from_bytes(kind, bound)
                for bounds in (lower, upper)
            )
            for field_id, kind in self._columns
        )
        return any(
            # The upper bound of a string may be truncated and rounded up; comparisons stay correct.
            _may_overlap(topics, topic, topic)
            and _may_overlap(partitions, partition, partition)
            and any(_may_overlap(offsets, start, end - 1) for start, end in ranges)
            for (topic, partition), ranges in self._within.items()
        )


def topics_filter(topics: Collection[str]) -> str:
    """Return a row filter that selects topics. Topic names cannot contain quotes."""
    return f"kafka_topic in ({', '.join(repr(t) for t in sorted(topics))})"


def ranges_filter(within: OffsetRanges) -> str:
    """Return one row filter that includes all ranges, and maybe other rows."""
    ranges = [r for parts in within.values() for r in parts]
    lowest, end = min(start for start, _ in ranges), max(end for _, end in ranges)
    return f"{topics_filter({topic for topic, _ in within})} and kafka_offset >= {lowest} and kafka_offset < {end}"


def _may_overlap(bounds: tuple[Any, ...], lowest: Any, greatest: Any) -> bool:
    """Return whether bounds (inclusive) overlap a range. None means unlimited."""
    lower, upper = bounds
    return (lower is None or lower <= greatest) and (upper is None or upper >= lowest)


MAX_PARALLEL_FILES = 2
"""Maximum number of files read in parallel. Each takes 25 bytes of memory per row."""

DISCARDED_COLUMN = "discarded_at"
"""The column with the time at which an operator discarded a dead letter."""

OffsetArray = NDArray[np.int64]
_PartitionOffsets = tuple[TopicPartition, OffsetArray, bool]
"""Partition, sorted offsets, and whether the offsets' rows are selected. If not, only `topic_ids` excludes the rows."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Selects rows by topic and offset. If a record has several rows, only the first counts."""

    topics: Collection[str]
    within: OffsetRanges | None = None
    topic_ids: Mapping[str, str] | None = None
    """If set, dead letters of other topic ids do not count."""
    stream: str | None = None
    """If set, dead letters of other streams do not count."""
    discarded: bool = True
    """Whether discarded dead letters count."""
    branch: str | None = None
    """The branch to read; None reads the current snapshot."""

    def extra_columns(self, table: Table) -> tuple[str, ...]:
        names = {field.name for field in table.schema().fields}
        requested = {
            "topic_id": self.topic_ids is not None,
            "stream": self.stream is not None,
            DISCARDED_COLUMN: not self.discarded,
        }
        return tuple(name for name, is_requested in requested.items() if is_requested and name in names)


def has_coordinates(schema: Schema) -> bool:
    return {field.name for field in schema.fields}.issuperset(COORDINATES)


def tally_rows(
    table: Table, *selections: RowSelection, former: Counter[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetTally]:
    """Return the offsets of the selected rows. Rows that only `topic_ids` excludes are counted in `former`."""
    tallies: dict[TopicPartition, OffsetTally] = defaultdict(OffsetTally)
    for tp, offsets, is_selected in itertools.chain.from_iterable(_read_offsets(table, each) for each in selections):
        if is_selected:
            tallies[tp].add(offsets)
        elif former is not None:
            former[tp] += len(offsets)
    return dict(tallies)


def tally_files(
    io: FileIO, paths: Iterable[str], within: OffsetRanges | None = None
) -> dict[TopicPartition, OffsetTally]:
    """Return the offsets in Parquet files that no snapshot references yet. Raises FileNotFoundError."""
    tallies: dict[TopicPartition, OffsetTally] = defaultdict(OffsetTally)
    for path in paths:
        with io.new_input(path).open() as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=[*COORDINATES]):
                for tp, offsets in split_by_partition(batch.drop_null()):
                    for piece in clip_offsets(offsets, tp, within):
                        tallies[tp].add(piece)
    return {tp: tally for tp, tally in tallies.items() if tally.rows}


def _read_offsets(table: Table, selection: RowSelection) -> Iterator[_PartitionOffsets]:
    head = head_of(table.metadata, selection.branch) if selection.branch else table.current_snapshot()
    if head is None or not selection.topics or (selection.within is not None and not selection.within):
        return
    schema = next((s for s in table.metadata.schemas if s.schema_id == head.schema_id), table.schema())
    line = (LINE_COLUMN,) if LINE_COLUMN in {field.name for field in schema.fields} else ()
    scan = table.scan(
        row_filter=topics_filter(selection.topics) if selection.within is None else ranges_filter(selection.within),
        selected_fields=(*COORDINATES, *line, *selection.extra_columns(table)),
        snapshot_id=head.snapshot_id,
    )
    read = partial(_read_file, table, scan, selection)
    for pieces in _read_in_parallel(read, _plan_files(table, scan, selection)):
        yield from pieces


def _plan_files(table: Table, scan: DataScan, selection: RowSelection) -> Iterator[FileScanTask]:
    bounds = FileBounds(table.schema(), selection.within) if selection.within is not None else None
    try:
        tasks = scan.plan_files()
    except ValueError as error:  # PyIceberg's error for equality deletes
        raise SchemaIncompatible(
            f"the offsets in table {'.'.join(table.name())} cannot be read: {error}. Compact the table with the engine "
            "that wrote the deletes, then try again"
        ) from error
    for task in tasks:
        if bounds is None or bounds.may_hold(task.file):
            yield task


def _read_in_parallel(
    read: Callable[[FileScanTask], list[_PartitionOffsets]], tasks: Iterable[FileScanTask]
) -> Iterator[list[_PartitionOffsets]]:
    """Yield the files' results in order. Reads a few files at a time."""
    running: deque[Future[list[_PartitionOffsets]]] = deque()
    with ThreadPoolExecutor(MAX_PARALLEL_FILES) as pool:
        for task in tasks:
            running.append(pool.submit(read, task))
            if len(running) > MAX_PARALLEL_FILES:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _read_file(table: Table, scan: DataScan, selection: RowSelection, task: FileScanTask) -> list[_PartitionOffsets]:
    # Rows are selected here, because a filter in PyArrow would cost more than it saves.
    arrow = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue())
    pieces = []
    for batch in arrow.to_record_batches([task]):
        rows = batch if selection.stream is None else batch.filter(pc.equal(batch.column("stream"), selection.stream))
        if not selection.discarded and DISCARDED_COLUMN in rows.schema.names:
            rows = rows.filter(rows.column(DISCARDED_COLUMN).is_null())
        if LINE_COLUMN in rows.schema.names:  # only the first row of a record counts
            rows = rows.filter(pc.equal(pc.fill_null(rows.column(LINE_COLUMN), 0), 0))
        for part, is_selected in _split_by_topic_id(rows, selection.topic_ids):
            for tp, offsets in split_by_partition(part.select(COORDINATES).drop_null()):
                if tp[0] in selection.topics:
                    clipped = clip_offsets(offsets, tp, selection.within)
                    pieces += [(tp, piece, is_selected) for piece in clipped if len(piece)]
    return pieces


def _split_by_topic_id(
    batch: pa.RecordBatch, topic_ids: Mapping[str, str] | None
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield rows whose topic id matches `topic_ids` or is null (True), then all other rows (False)."""
    if topic_ids is None or not len(batch):
        yield batch, True
        return
    topics, names = _encode(batch.column("kafka_topic"))
    ids, values = _encode(batch.column("topic_id"))
    allowed = np.array([[value in (None, topic_ids.get(name or "")) for value in values] for name in names], np.bool_)
    is_allowed = allowed[topics, ids]
    yield batch.filter(pa.array(is_allowed)), True
    yield batch.filter(pa.array(~is_allowed)), False


def split_by_partition(rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, OffsetArray]]:
    """Yield the sorted offsets of each partition, for rows without nulls."""
    if not len(rows):
        return
    topics, names = _encode(rows.column("kafka_topic"))
    partitions = rows.column("kafka_partition").to_numpy().astype(np.int64)
    offsets = rows.column("kafka_offset").to_numpy()
    each, lowest = int(partitions.max()) + 1, int(offsets.min())
    width = int(offsets.max()) - lowest + 1
    codes = topics * each + partitions
    present = np.unique(codes)
    ranks = np.searchsorted(present, codes)
    if len(present) * width >= 2**63:
        for rank, code in enumerate(present):
            yield (str(names[code // each]), int(code % each)), np.sort(offsets[ranks == rank])
        return
    keys = np.sort(ranks * width + (offsets - lowest))
    ends = np.searchsorted(keys, np.arange(1, len(present) + 1) * width)
    for rank, (code, part) in enumerate(zip(present, np.split(keys, ends[:-1]), strict=True)):
        yield (str(names[code // each]), int(code % each)), part - (rank * width - lowest)


def _encode(column: pa.Array) -> tuple[NDArray[np.int64], list[str | None]]:
    """Dictionary-encode a text column. Returns each row's code, and the texts by code, followed by None."""
    encoded = column.dictionary_encode()
    texts = [*encoded.dictionary.to_pylist(), None]
    return pc.fill_null(encoded.indices.cast(pa.int64()), len(texts) - 1).to_numpy(), texts


def clip_offsets(offsets: OffsetArray, tp: TopicPartition, within: OffsetRanges | None) -> Iterator[OffsetArray]:
    """Yield the sorted offsets that are in the partition's ranges. If `within` is None, yield all."""
    if within is None:
        yield offsets
        return
    for start, end in within.get(tp, ()):
        first_index, end_index = np.searchsorted(offsets, [start, end])
        yield offsets[first_index:end_index]
