"""Reads a table's data files, position-delete files and deletion vectors, and writes new ones."""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.table.puffin import MAGIC_BYTES, PuffinFile
from pyiceberg.types import ListType, LongType, MapType, PrimitiveType, StringType
from pyroaring import BitMap64

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.errors import SchemaIncompatible
from frazil.ingest.arrow_values import empty_table, fill_hidden_nulls
from frazil.ingest.contract import StagedFile, TargetTable, parse_schema
from frazil.ingest.parquet import has_unreadable_bounds, variant_groups_schema
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.merge.changes import Numbers, column
from frazil.merge.contract import DeleteFile, MergeContext, MergeResult, MergeTask, TableFile
from frazil.pyiceberg_fixes import VariantType
from frazil.spec.iceberg import variant_columns

PUFFIN_SUFFIX = ".puffin"
PATH_ID, POSITION_ID = 2_147_483_546, 2_147_483_545
"""Field ids from the Iceberg specification, "Reserved Field IDs"."""
VECTOR_OFFSET = len(MAGIC_BYTES)
"""Offset of the vector in a file with one vector."""
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


def encode_vector(data_file: str, positions: Numbers) -> tuple[bytes, dict[int, int]]:
    """Return a Puffin file with one vector, and the vector's size as `column_sizes`."""
    vector = _VECTOR_MAGIC + BitMap64(positions.tolist()).serialize()
    blob = len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
    described = {
        "type": "deletion-vector-v1",
        "fields": [POSITION_ID],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": VECTOR_OFFSET,
        "length": len(blob),
        "properties": {"referenced-data-file": data_file, "cardinality": str(len(positions))},
    }
    footer = json.dumps({"blobs": [described], "properties": {"created-by": "frazil"}}).encode()
    end = len(footer).to_bytes(4, "little") + bytes(4) + MAGIC_BYTES
    return MAGIC_BYTES + blob + MAGIC_BYTES + footer + end, {POSITION_ID: len(blob)}


def read_vectors(file: bytes) -> dict[str, Numbers]:
    """Return the sorted positions in a Puffin file's vectors, by data file."""
    vectors = deletion_vectors_from_puffin_file(PuffinFile(file))
    return {vector.referenced_data_file: vector.to_vector().to_numpy().astype(np.int64) for vector in vectors}


MAX_SCHEMAS = 256
"""Maximum number of schemas that are kept in another form. Tables of one route have equal schemas."""
COMPARABLE_TYPES = frozenset({int, str, date})
"""Types whose statistics have the same Python types as array values."""
ColumnBounds = Mapping[str, tuple[Any, Any]]
_DELETES_SCHEMA = pa.schema(
    [
        # The paths of all rows may take more than the 2 GiB that an array of plain texts can hold.
        pa.field(
            "file_path",
            pa.dictionary(pa.int32(), pa.string()),
            nullable=False,
            metadata={"PARQUET:field_id": str(PATH_ID)},
        ),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


@dataclass(slots=True)
class TableFileReader:
    """Opens Parquet files of one storage, and counts the rows read."""

    io: FileIO
    properties: Mapping[str, str]
    on_progress: Callable[[int], None] = lambda _: None
    """Called after each row group with the number of rows read so far."""
    rows_read: int = 0
    _constants: dict[str, Mapping[int, str]] = field(default_factory=dict)
    _deletes: dict[str, dict[str, Numbers]] = field(default_factory=dict)

    def keep_constants(self, files: Sequence[TableFile]) -> None:
        self._constants |= {file.path: dict(file.constants) for file in files if file.constants}

    def open(self, path: str) -> DataFileReader:
        file = pq.ParquetFile(self.io.new_input(path).open(seekable=True), coerce_int96_timestamp_unit="us")
        return DataFileReader(self, path, file, self._constants.get(path, {}))

    def count_read_rows(self, rows: pa.Table) -> None:
        self.rows_read += rows.num_rows
        self.on_progress(self.rows_read)

    def read_rows(self, path: str, schema: Schema) -> pa.Table:
        reader = self.open(path)
        with reader:
            return pa.concat_tables(
                [empty_table(nullable_arrow_schema(schema)), *(rows for _, rows in reader.row_groups(schema))]
            )

    def deleted_positions(self, file: TableFile) -> Numbers:
        cached = [self._cached_deletes(delete).get(file.path) for delete in file.deletes]
        deletes = [positions for positions in cached if positions is not None]
        return np.unique(np.concatenate(deletes)) if deletes else np.zeros(0, np.int64)

    def _cached_deletes(self, delete: DeleteFile) -> dict[str, Numbers]:
        if delete.alone:  # it concerns one data file
            return self.deletes(delete.path)
        if delete.path not in self._deletes:
            self._deletes[delete.path] = self.deletes(delete.path)
        return self._deletes[delete.path]

    def deletes(self, path: str) -> dict[str, Numbers]:
        """Return the sorted positions that a delete file deletes, by data file."""
        if path.endswith(PUFFIN_SUFFIX):
            return read_vectors(self.io.new_input(path).open().read())
        file = pa.BufferReader(self.io.new_input(path).open().read())
        rows = pq.read_table(file, columns=_DELETES_SCHEMA.names, read_dictionary=["file_path"]).unify_dictionaries()
        self.count_read_rows(rows)
        if not rows.num_rows:
            return {}
        paths = column(rows, "file_path")
        codes = paths.indices.to_numpy()
        ordered = column(rows, "pos").to_numpy()[np.argsort(codes, kind="stable")]
        ends = np.cumsum(np.bincount(codes, minlength=len(paths.dictionary)))
        return dict(zip(paths.dictionary.to_pylist(), np.split(ordered, ends[:-1]), strict=True))


def nullable_arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema for reading, with nullable fields."""
    return _nullable_arrow_schema(schema.model_dump_json())


@lru_cache(MAX_SCHEMAS)
def _nullable_arrow_schema(schema_json: str) -> pa.Schema:
    schema = parse_schema(schema_json)
    nullable = pa.schema([field.with_nullable(True).remove_metadata() for field in schema_to_pyarrow(schema)])
    return variant_groups_schema(nullable, variant_columns(schema))


@lru_cache(MAX_SCHEMAS)
def _physical_schema(arrow_schema: bytes, name_mapping: str | None) -> Schema:
    """Return the schema of a file, given its Arrow schema with field ids. Arrow ignores these when it compares."""
    mapping = parse_mapping_from_json(name_mapping) if name_mapping else None
    return pyarrow_to_schema(pa.ipc.read_schema(pa.py_buffer(arrow_schema)), mapping, downcast_ns_timestamp_to_us=True)


@lru_cache(MAX_SCHEMAS)
def _existing_columns(arrow_schema: bytes, name_mapping: str | None, schema_json: str) -> tuple[Schema, bool]:
    """Return the columns of `schema_json` in a file, with the file's names and types.

    Also returns whether the file has all columns, in the same order and with the same types.
    """
    schema, physical = parse_schema(schema_json), _physical_schema(arrow_schema, name_mapping)
    # Like PyIceberg's own scan, this selects a list or a map by its elements.
    ids = {i for i in schema.field_ids if not isinstance(schema.find_type(i), ListType | MapType)}
    existing = prune_columns(physical, ids & physical.field_ids, select_full_types=False)
    types, wanted = ([(f.field_id, f.field_type) for f in fields] for fields in (existing.fields, schema.fields))
    return existing, types == wanted


def _widen(kind: Any) -> Any:
    """Return the Arrow type with large offsets, to which texts, bytes and lists are always cast."""
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field)
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


@dataclass
class DataFileReader:
    """An open data file. Columns are found by field id."""

    reader: TableFileReader
    path: str
    file: pq.ParquetFile
    constants: Mapping[int, str]

    def __enter__(self) -> DataFileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def row_groups(self, schema: Schema, groups: Sequence[int] | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Yield the first position and the rows of each row group; with `groups`, only of these row groups."""
        expected = nullable_arrow_schema(schema)
        existing, is_same = _existing_columns(*self._layout, schema.model_dump_json())
        self._check_not_shredded(existing)
        names = [field.name for field in existing.fields] or self.file.schema_arrow.names[:1]
        starts = self.starts
        requested, values = self._missing_columns(schema)
        for group in range(self.file.num_row_groups) if groups is None else groups:
            rows = self.file.read_row_group(group, columns=names)
            self.reader.count_read_rows(rows)
            if is_same and [*map(_widen, rows.schema.types)] == [*map(_widen, expected.types)]:
                rows_read = rows.rename_columns(expected.names)  # PyIceberg takes longer than reading a few rows
            else:
                batches = [
                    _to_requested_schema(requested, existing, batch, downcast_ns_timestamp_to_us=True)
                    for batch in rows.to_batches()
                ]
                rows_read = pa.Table.from_batches(batches) if batches else empty_table(expected)
            for index, value in values.items():
                kind = expected.field(index).type
                rows = pa.nulls(len(rows_read), kind) if value is None else pa.repeat(value, len(rows_read)).cast(kind)
                rows_read = rows_read.set_column(index, expected.field(index), rows)
            yield starts[group], fill_hidden_nulls(rows_read).cast(expected)

    def rows_at(self, schema: Schema, positions: Numbers) -> pa.Table:
        parts = [empty_table(nullable_arrow_schema(schema))]
        groups = np.unique(np.searchsorted(np.array(self.starts), positions, side="right") - 1).tolist()
        for start, rows in self.row_groups(schema, groups):
            indexes = positions[(positions >= start) & (positions < start + rows.num_rows)] - start
            parts.append(rows.take(pa.array(indexes)))
        return pa.concat_tables(parts)

    def may_hold(self, schema: Schema, bounds: ColumnBounds) -> list[int]:
        """Return the indexes of the row groups that may have rows within these bounds."""
        existing, metadata = _physical_schema(*self._layout), self.file.metadata
        names = {existing.find_column_name(schema.find_field(name).field_id): ends for name, ends in bounds.items()}
        columns = {path: i for i in range(metadata.num_columns) if (path := metadata.schema.column(i).path) in names}

        def may(group: int) -> bool:
            row_group = metadata.row_group(group)
            return all(_may_overlap(row_group.column(index).statistics, names[path]) for path, index in columns.items())

        return [group for group in range(metadata.num_row_groups) if may(group)]

    def _missing_columns(self, schema: Schema) -> tuple[Schema, dict[int, pa.Scalar | None]]:
        """Return the schema to read, and the values, by index, of columns that the file does not have. These are
        partition values, and null for variants.
        """
        fields, values, existing = list(schema.fields), {}, _physical_schema(*self._layout).field_ids
        for index, target in enumerate(schema.fields):
            if target.field_id in existing:
                continue
            if (text := self.constants.get(target.field_id)) is not None:
                assert isinstance(target.field_type, PrimitiveType)
                fields[index] = target.model_copy(update={"required": False})
                value = from_bytes(target.field_type, base64.b64decode(text))
                values[index] = pa.scalar(value, schema_to_pyarrow(target.field_type))
            elif isinstance(target.field_type, VariantType) and not target.required:
                values[index] = None
            elif target.required and target.initial_default is None:
                raise SchemaIncompatible(
                    f"{self.path} does not have the column {target.name}, which the table requires. Another program "
                    "added this file: delete its rows with that program, or write them again with the column"
                )
        return Schema(*fields) if values else schema, values

    def _check_not_shredded(self, columns: Schema) -> None:
        """Raise SchemaIncompatible if another program split a variant's values into columns of the file."""
        for name in variant_columns(columns):
            if self.file.schema_arrow.field(name).type.get_field_index("typed_value") >= 0:
                raise SchemaIncompatible(
                    f"{self.path}: the variant {name} is shredded, so its rows cannot be copied. Set the table "
                    "property write.parquet.shred-variants to false, and rewrite the table's files with Spark: CALL "
                    "system.rewrite_data_files(table => '…', options => map('rewrite-all', 'true'))"
                )

    @cached_property
    def _layout(self) -> tuple[bytes, str | None]:
        """The file's Arrow schema, and the table's name mapping."""
        names = self.reader.properties.get("schema.name-mapping.default")
        return self.file.schema_arrow.serialize().to_pybytes(), names

    @property
    def starts(self) -> list[int]:
        """The position of each row group's first row, followed by the number of rows."""
        sizes = [self.file.metadata.row_group(group).num_rows for group in range(self.file.num_row_groups)]
        return [0, *np.cumsum(sizes).tolist()]


@dataclass
class TaskRun(ABC):
    """One run of a task: reads files, and writes new files of the table."""

    context: MergeContext
    task: MergeTask
    on_progress: Callable[[int], None]

    def __post_init__(self) -> None:
        target = self.context.target
        self.io: FileIO = load_file_io(dict(target.io), location=target.folder)
        self.reader = TableFileReader(self.io, target.properties, self.on_progress)
        self.reader.keep_constants(self.task.files)
        self.schema = target.schema
        self.writer = TableWriter(target, "main", io=self.io, file_name=file_namer(self.task.index, 0))
        self.windows = Counter[int]()
        self.staged: list[StagedFile] = []
        """Files that `writer` did not write."""

    def run(self) -> MergeResult:
        """Run the task. After a failure, removes its files, if possible."""
        try:
            return self.result()
        except BaseException:
            self.writer.abort()
            for file in self.staged:
                self.io.delete(file.path)
            raise

    @abstractmethod
    def result(self) -> MergeResult: ...

    def write(self, rows: pa.Table) -> pa.Table:
        schema = self.writer.layout.arrow_schema
        rows = rows.select(schema.names).cast(schema)
        self.writer.add(rows)
        return rows

    def copy(self, path: str, leaving: Numbers) -> None:
        """Write a file's rows again, except those at the positions `leaving`, which are sorted."""
        with self.reader.open(path) as data:
            stays = np.diff(np.searchsorted(leaving, data.starts)) < np.diff(data.starts)
            for start, rows in data.row_groups(self.schema, np.flatnonzero(stays).tolist()):
                self.write(rows_without(rows, start, leaving))

    def count_windows(self, times: Numbers) -> None:
        """Count rows by window, given their event times (us since 1970)."""
        if window_us := self.context.rules.window_us:
            starts, counts = np.unique(times // window_us * window_us, return_counts=True)
            self.windows.update(dict(zip(starts.tolist(), counts.tolist(), strict=True)))


def rewrite_files(target: TargetTable, paths: Sequence[str]) -> tuple[StagedFile, ...]:
    """Write all rows of these data files again, as few files. On failure, removes the written files, if possible."""
    io: FileIO = load_file_io(dict(target.io), location=target.folder)
    reader, schema = TableFileReader(io, target.properties), target.schema
    writer = TableWriter(target, "main", io=io, file_name=file_namer(0, 0))
    arrow_schema = writer.layout.arrow_schema
    try:
        for path in paths:
            with reader.open(path) as data:
                for _, rows in data.row_groups(schema):
                    writer.add(rows.select(arrow_schema.names).cast(arrow_schema))
        return tuple(writer.finish())
    except BaseException:
        writer.abort()
        raise


def rows_without(rows: pa.Table, start: int, leaving: Numbers) -> pa.Table:
    """Return a row group's rows, except those at the positions `leaving`. `start` is the group's first position."""
    stays = np.ones(rows.num_rows, np.bool_)
    stays[leaving[(leaving >= start) & (leaving < start + rows.num_rows)] - start] = False
    return rows.filter(pa.array(stays))


def _may_overlap(statistics: Any, ends: tuple[Any, Any]) -> bool:
    """Return whether a column may have values between the ends; True if unknown."""
    if statistics is None or not statistics.has_min_max or has_unreadable_bounds(statistics):
        return True
    lowest, greatest = statistics.min, statistics.max
    pairs = ((value, end) for value in (lowest, greatest) for end in ends)
    if not all(type(value) is type(end) and type(value) in COMPARABLE_TYPES for value, end in pairs):
        return True
    return bool(lowest <= ends[1] and ends[0] <= greatest)


def write_deletes(io: FileIO, file: TableFile, positions: Numbers, *, target: TargetTable) -> StagedFile:
    """Write the delete file of one data file, with bounds that exclude other files."""
    is_vector = target.format_version >= 3
    path = f"{target.folder}/deletes-{uuid.uuid4()}{PUFFIN_SUFFIX if is_vector else '.parquet'}"
    with io.new_output(path).create(overwrite=True) as out:
        if is_vector:
            content, sizes = encode_vector(file.path, positions)
            out.write(content)
        else:
            paths = pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int32), [file.path])
            sizes = {}
            rows = pa.Table.from_arrays([paths, pa.array(positions)], schema=_DELETES_SCHEMA)
            pq.write_table(rows, out, compression="zstd", store_schema=False)
        size = out.tell()
    text = base64.b64encode(to_bytes(StringType(), file.path)).decode()
    first, last = (base64.b64encode(to_bytes(LongType(), int(n))).decode() for n in (positions[0], positions[-1]))
    counts = {PATH_ID: len(positions), POSITION_ID: len(positions)}
    return StagedFile(
        target="main",
        path=path,
        records=len(positions),
        bytes=size,
        schema_id=0,
        spec_id=file.spec_id,
        sort_order_id=None,
        partition=file.partition,
        column_sizes=sizes,
        value_counts=counts,
        null_value_counts=dict.fromkeys(counts, 0),
        nan_value_counts={},
        lower_bounds={PATH_ID: text, POSITION_ID: first},
        upper_bounds={PATH_ID: text, POSITION_ID: last},
        split_offsets=(4,),
        content="position-deletes",
    )
