"""Reads records with Kafka coordinates from files, like records from Kafka. Rejected JSON lines become dead letters. A
Parquet file with unsuitable columns is rejected as a whole, because its rows have no raw bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from frazil.errors import SpecError
from frazil.ingest.arrow_values import cast_unchecked, floor_nanoseconds
from frazil.ingest.chunk import BinaryColumn, RecordChunk, pack_headers
from frazil.ingest.contract import DEAD_LETTERS_SUFFIX, OffsetRange, RecordFile
from frazil.ingest.coordinates import COORDINATE_COLUMNS
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.fields import Unit, fill_nulls, find_defaults, units_of_fields
from frazil.ingest.range_reader import MAX_CHUNK_BYTES, MAX_CHUNK_RECORDS, RecordReader
from frazil.ingest.sealing import Unsealer, header_part, name_part
from frazil.pyiceberg_fixes import VariantType

PARQUET_SUFFIXES = frozenset({".parquet"})
JSON_LINES_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
DEAD_LETTER_COLUMNS = (*COORDINATE_COLUMNS, "key", "value", "headers")
IDENTITY = COORDINATE_COLUMNS[:3]


@dataclass(frozen=True, slots=True)
class RowChunk(RecordChunk):
    """Records that are already rows with the table's columns, without raw values."""

    rows: pa.Table


@dataclass(frozen=True, slots=True)
class FileRecords:
    coordinates: pa.Table
    lines: list[bytes] | None = None
    rows: pa.Table | None = None
    dead_letters: pa.Table | None = None


def is_record_file(path: str) -> bool:
    return PurePosixPath(path).suffix in {*PARQUET_SUFFIXES, *JSON_LINES_SUFFIXES, DEAD_LETTERS_SUFFIX}


def read_coordinates(path: str, io: FileIO, columns: FileColumns) -> Iterator[pa.Table]:
    """Yield the coordinates of a file's records, in pieces. Raises SpecError if the file cannot be staged."""
    with _name_file_in_errors(path):
        for piece in _read_file(path, io, columns, names=columns.needed):
            yield piece.coordinates


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns to read from Parquet files, and their defaults for missing columns and nulls."""

    schema: Schema
    defaults: Mapping[str, pa.ChunkedArray]

    @classmethod
    def of(cls, schema: Schema, units: Mapping[str, Unit]) -> FileColumns:
        return cls(schema, find_defaults(schema, units_of_fields(schema, units)))

    @property
    def needed(self) -> list[str]:
        """The columns that every record needs."""
        return [field.name for field in self.schema.fields if field.required and field.name not in self.defaults]

    def select(self, names: Sequence[str]) -> FileColumns:
        return FileColumns(self.schema.select(*names), self.defaults)


_COORDINATES = FileColumns(
    Schema(
        NestedField(1, "kafka_topic", StringType(), required=True),
        NestedField(2, "kafka_partition", LongType(), required=True),  # many tools write every integer as a long
        NestedField(3, "kafka_offset", LongType(), required=True),
        NestedField(4, "kafka_timestamp", TimestamptzType(), required=False),
    ),
    {},
)


def _read_file(
    path: str,
    io: FileIO,
    columns: FileColumns,
    *,
    names: Sequence[str] | None = None,
    within: ds.Expression | None = None,
) -> Iterator[FileRecords]:
    """Yield a file's records. For Parquet, `names` are the columns to read (None: all); `within` filters rows."""
    if PurePosixPath(path).suffix == DEAD_LETTERS_SUFFIX:
        return _read_dead_letters(path, io)
    if PurePosixPath(path).suffix in PARQUET_SUFFIXES:
        return _read_parquet(path, io, columns, selected_names=names, within=within)
    return _read_json_lines(path, io)


class FileReader(RecordReader):
    """Reads the records of offset ranges from files, once. A topic-partition may have several ranges."""

    def __init__(
        self,
        files: Sequence[RecordFile],
        ranges: Sequence[OffsetRange],
        *,
        io: FileIO,
        columns: FileColumns,
        unseal: Unsealer,
    ) -> None:
        self._unseal = unseal
        self._files, self._io, self._columns = files, io, columns
        self._lowest, self._end = min((r.start for r in ranges), default=0), max((r.end for r in ranges), default=0)
        in_order = sorted((r.topic, r.partition, r.start, r.end, i) for i, r in enumerate(ranges))
        groups = groupby(in_order, itemgetter(0, 1))
        self._ranges = {tp: np.array([r[2:] for r in parts], np.int64).T for tp, parts in groups}

    def __iter__(self) -> Iterator[RecordChunk]:
        for file in self._files:
            if not any(self._may_contain(r) for r in file.ranges):
                continue
            offset = ds.field("kafka_offset")
            within = (offset >= self._lowest) & (offset < self._end)
            with _name_file_in_errors(file.path):
                for records in _read_file(file.path, self._io, self._columns, within=within):
                    range_index = self._find_ranges(records.coordinates)
                    if (indexes := np.flatnonzero(range_index >= 0)).size:
                        yield _build_chunk(records, indexes, range_index[indexes], self._unseal)

    def _may_contain(self, offset_range: OffsetRange) -> bool:
        starts, ends, _ = self._ranges.get((offset_range.topic, offset_range.partition), np.empty((3, 0), np.int64))
        return bool(((starts < offset_range.end) & (offset_range.start < ends)).any())

    def _find_ranges(self, table: pa.Table) -> NDArray[np.int32]:
        """Return the index of each record's range, or -1."""
        partitions, offsets = (table[name].to_numpy() for name in IDENTITY[1:])
        range_index = np.full(len(table), -1, np.int32)
        for (topic, partition), (starts, ends, index) in self._ranges.items():
            rows = np.flatnonzero(pc.equal(table["kafka_topic"], topic).to_numpy() & (partitions == partition))
            position = np.searchsorted(starts, offsets[rows], "right") - 1
            inside = (position >= 0) & (offsets[rows] < ends[position])
            range_index[rows[inside]] = index[position[inside]]
        return range_index


def _build_chunk(
    records: FileRecords, indexes: NDArray[np.int64], range_index: NDArray[np.int32], unseal: Unsealer
) -> RecordChunk:
    table = records.coordinates.take(indexes)
    micros = table["kafka_timestamp"].cast(pa.int64())
    stamps = pc.fill_null(pc.divide(micros, 1000), -1).to_numpy()
    if records.dead_letters is not None:
        dead_letters = _unseal_all(records.dead_letters.take(indexes).to_pylist(), table, unseal)
        key, value = (BinaryColumn.of([dead_letter[name] for dead_letter in dead_letters]) for name in ("key", "value"))
        headers_by_row = [
            [(header["name"], header["value"]) for header in dead_letter["headers"] or ()]
            for dead_letter in dead_letters
        ]
        headers = BinaryColumn.of([*map(pack_headers, headers_by_row)])
        return RecordChunk(value, key, range_index, table["kafka_offset"].to_numpy(), stamps, headers=headers)
    nulls = BinaryColumn.nulls(len(indexes))
    values = nulls if records.lines is None else BinaryColumn.of([records.lines[i] for i in indexes.tolist()])
    columns = (values, nulls, range_index, table["kafka_offset"].to_numpy(), stamps)
    return RecordChunk(*columns) if records.rows is None else RowChunk(*columns, records.rows.take(indexes))


def _unseal_all(dead_letters: list[dict[str, Any]], coordinates: pa.Table, unseal: Unsealer) -> list[dict[str, Any]]:
    for dead_letter, identity in zip(dead_letters, coordinates.select(IDENTITY).to_pylist(), strict=True):
        part_name = partial(name_part, identity["kafka_topic"], identity["kafka_partition"], identity["kafka_offset"])
        for part in ("key", "value"):
            dead_letter[part] = unseal(dead_letter[part], part_name(part))
        for header in dead_letter["headers"] or ():
            header["value"] = unseal(header["value"], part_name(header_part(header["name"])))
    return dead_letters


def _read_parquet(
    path: str, io: FileIO, columns: FileColumns, *, selected_names: Sequence[str] | None, within: ds.Expression | None
) -> Iterator[FileRecords]:
    with io.new_input(path).open() as source:
        fragment = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us").make_fragment(source)
        selected = columns if selected_names is None else columns.select(selected_names)
        present = check_columns(path, fragment, columns, _COORDINATES)
        names = [name for name in (*COORDINATE_COLUMNS, *selected.schema.column_names) if name in present]
        for batch in fragment.to_batches(columns=names, filter=within, batch_size=MAX_CHUNK_RECORDS):
            rows = pa.Table.from_batches([batch])
            yield FileRecords(cast_columns(path, rows, _COORDINATES), rows=cast_columns(path, rows, selected))


def _read_dead_letters(path: str, io: FileIO) -> Iterator[FileRecords]:
    with io.new_input(path).open() as source:
        for batch in pq.ParquetFile(source).iter_batches(10_000):
            rows = pa.Table.from_batches([batch])
            yield FileRecords(rows.select(COORDINATE_COLUMNS), dead_letters=rows.select(("key", "value", "headers")))


def _read_json_lines(path: str, io: FileIO) -> Iterator[FileRecords]:
    read, number = create_decoder("json", _COORDINATES.schema, {}), 1
    for block in _read_lines(path, io):
        numbers = [i for i, line in enumerate(block) if line.strip()]
        lines = [block[i].strip() for i in numbers]
        decoded = read(RecordChunk.of_values(lines))
        if decoded.rejections:
            first = min(decoded.rejections, key=lambda r: r.index)
            raise SpecError(
                f"{path}, line {number + numbers[first.index]:,}: the record's coordinates cannot be read "
                f"({first.error}): a line must be a JSON object with {', '.join(IDENTITY)}. Fix the line or remove it"
            )
        if lines:
            yield FileRecords(decoded.rows, lines=lines)
        number += len(block)


def _read_lines(path: str, io: FileIO) -> Iterator[list[bytes]]:
    partial_line = b""
    with io.new_input(path).open() as source:
        while block := source.read(MAX_CHUNK_BYTES):
            *lines, partial_line = (partial_line + block).split(b"\n")
            yield lines
    yield [partial_line]


@contextmanager
def _name_file_in_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SpecError(f"{path} cannot be read: {error}. Fix the file or leave it out") from error


_TypeTest = Callable[[pa.DataType], bool]

_NESTED_KINDS: tuple[_TypeTest, ...] = (
    pa.types.is_struct,
    pa.types.is_map,
    lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind),
)
_TYPE_FAMILIES: tuple[_TypeTest, ...] = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_date,
    pa.types.is_time,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
)


def check_columns(path: str, file: ds.ParquetFileFragment, *groups: FileColumns) -> set[str]:
    """Return the file's column names. Raises SpecError for a missing required column or a wrong type."""
    columns = file.metadata.schema
    int96 = {columns.column(i).path for i in range(len(columns)) if columns.column(i).physical_type == "INT96"}
    types = {field.name: field.type for field in file.physical_schema}
    for group in groups:
        for declared, field in zip(group.schema.fields, schema_to_pyarrow(group.schema), strict=True):
            name, kind = field.name, types.get(field.name)
            if kind is None:
                if declared.name in group.needed:
                    raise SpecError(
                        f"{path} has no column {name}, which every record needs. The records of backfilled files need "
                        "the table's required columns, and kafka_topic, kafka_partition and kafka_offset"
                    )
            # INT96 is always a UTC timestamp, although Arrow reads it as one without a zone.
            elif not can_cast(pa.timestamp("us", "UTC") if name in int96 else kind, field.type):
                instead = "JSON text" if isinstance(declared.field_type, VariantType) else "that type"
                raise SpecError(
                    f"{path}: column {name} has type {kind}, which cannot become the table's {declared.field_type}. "
                    f"Write the file again with {instead}"
                )
    return set(types)


def cast_columns(path: str, rows: pa.Table, columns: FileColumns) -> pa.Table:
    """Cast the rows to these columns and their types. Missing columns and nulls get the column's default, or null.

    Raises SpecError for a null in a required column, and ArrowInvalid for a value that does not fit its type.
    """
    schema, needed = schema_to_pyarrow(columns.schema, include_field_ids=True), columns.needed
    arrays = []
    for field in schema:
        if field.name not in rows.column_names:
            arrays.append(pa.chunked_array([pa.nulls(len(rows), field.type)]))
            continue
        column = rows[field.name]
        if field.name in needed and column.null_count:
            raise SpecError(f"{path}: column {field.name} is required, but has nulls. Remove those records")
        column = pa.chunked_array([floor_nanoseconds(chunk) for chunk in column.chunks], column.type)
        if pa.types.is_timestamp(field.type):
            arrays.append(column.cast(field.type, safe=False))
        else:
            parts = [cast_unchecked(part, field.type) for part in column.chunks]
            arrays.append(pa.chunked_array(parts, field.type))
    filled = map(fill_nulls, arrays, map(columns.defaults.get, schema.names))
    return pa.Table.from_arrays([*filled], schema=schema)


def can_cast(actual: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of type `actual` can be stored as type `target`. Nanoseconds may be lost."""
    if pa.types.is_dictionary(actual):
        return can_cast(actual.value_type, target)
    if pa.types.is_nested(target):
        if not any(fits(actual) and fits(target) for fits in _NESTED_KINDS):
            return False
        ours, theirs = ([kind.field(i) for i in range(kind.num_fields)] for kind in (target, actual))
        has_same_names = not pa.types.is_struct(target) or [f.name for f in ours] == [f.name for f in theirs]
        return has_same_names and all(can_cast(a.type, b.type) for a, b in zip(theirs, ours, strict=True))
    if pa.types.is_timestamp(target):
        return pa.types.is_timestamp(actual) and (actual.tz is None) == (target.tz is None)
    if pa.types.is_decimal(target):
        alike = pa.types.is_decimal(actual) and actual.scale == target.scale
        return bool(alike and actual.precision <= target.precision)
    family = next((fits for fits in _TYPE_FAMILIES if fits(target)), None)
    return bool(actual == target if family is None else family(actual) and _width(actual) <= _width(target))


def _width(kind: pa.DataType) -> int:
    return kind.bit_width if pa.types.is_primitive(kind) else 0
