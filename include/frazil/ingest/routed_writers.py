"""Writes a task's rows to the many tables of a route. The writers share the memory limit of a single writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import fill_hidden_nulls
from frazil.ingest.changes import OMITTED_COLUMNS
from frazil.ingest.contract import StageContext, StagedFile, Target, TargetTable
from frazil.ingest.destinations import MAIN, DividedRows
from frazil.ingest.formats.fields import fill_nulls
from frazil.ingest.parquet import FileLayout
from frazil.ingest.partitioning import split_by_code
from frazil.ingest.table_writer import MAX_BUFFER_BYTES, MAX_UNSPLIT_BYTES, TableWriter, buffered_bytes
from frazil.spec.iceberg import find_names_in_rows, parse_former_columns

EMPTY_NAMES: Mapping[str, Collection[str]] = MappingProxyType({})
FIELD_ID = b"PARQUET:field_id"


class RoutedWriters:
    """Manages a `TableWriter` for each routed table. Divides many rows at once, because small writes are expensive."""

    def __init__(
        self,
        context: StageContext,
        *,
        file_name: Callable[[], str],
        buffer_bytes: int = MAX_BUFFER_BYTES,
        undivided_bytes: int = MAX_UNSPLIT_BYTES,
    ) -> None:
        self._context = context
        self._file_name = file_name
        self._buffer_bytes, self._undivided_bytes = buffer_bytes, undivided_bytes
        self._writers: dict[Target, TableWriter] = {}
        self._ios: dict[tuple[Any, ...], FileIO] = {}
        self._codes: dict[Target, int] = {}
        self._other_names: dict[Target, Mapping[str, Collection[str]]] = {}
        self._waiting: list[tuple[pa.Table, NDArray[np.int64]]] = []
        self._waiting_bytes = 0
        self._held = 0

    def add(self, divided: DividedRows) -> None:
        """Add the rows of all tables except the main table."""
        for target in divided.targets:
            self._codes.setdefault(target, len(self._codes))
        codes = np.array([self._codes[target] for target in divided.targets], np.int64)[divided.codes]
        mine = ~divided.main_mask
        if not mine.any():
            return
        rows = divided.decoded.rows if mine.all() else divided.decoded.rows.filter(pa.array(mine))
        self._waiting.append((rows, codes[mine]))
        self._waiting_bytes += buffered_bytes(rows)
        if self._waiting_bytes >= self._undivided_bytes:
            self._divide_waiting()

    def _divide_waiting(self) -> None:
        if not self._waiting:
            return
        rows_of: dict[bytes, list[tuple[pa.Table, NDArray[np.int64]]]] = {}
        for rows, codes in self._waiting:  # comparing schemas would ignore field ids
            rows_of.setdefault(rows.schema.serialize().to_pybytes(), []).append((rows, codes))
        self._waiting, self._waiting_bytes = [], 0
        for waiting in rows_of.values():
            tables, parts = zip(*waiting, strict=True)
            self._write(pa.concat_tables(tables).combine_chunks(), np.concatenate(parts))

    def _write(self, rows: pa.Table, codes: NDArray[np.int64]) -> None:
        targets = list(self._codes)
        for code, part in _split_by_code(rows, codes):
            writer = self._writer_for(targets[code])
            self._held -= writer.held
            writer.add(fit_rows(part, writer.layout, self._names(targets[code])))
            self._held += writer.held
        while self._held > self._buffer_bytes:
            largest = max(self._writers.values(), key=lambda writer: writer.held)
            self._held -= largest.held
            largest.release()
            self._held += largest.held

    def dry_write(self, divided: DividedRows) -> None:
        """Write these rows in memory only. Raises the same errors as `add` and `finish`."""
        for code, rows in _split_by_code(divided.decoded.rows, divided.codes):
            if (target := divided.targets[code]) != MAIN:
                writer = self._writer_for(target)
                writer.dry_write(fit_rows(rows, writer.layout, self._names(target)))

    def _writer_for(self, target: Target) -> TableWriter:
        if target not in self._writers:
            table = self._context.targets[target]
            self._writers[target] = TableWriter(table, target, io=self._io(table), file_name=self._file_name)
        return self._writers[target]

    def _names(self, target: Target) -> Mapping[str, Collection[str]]:
        if target not in self._other_names:
            routed, main = self._context.targets[target], self._context.main
            self._other_names[target] = other_names(
                routed.schema_json, routed.properties, main.schema_json, main.properties
            )
        return self._other_names[target]

    def _io(self, table: TargetTable) -> FileIO:
        alike = (table.folder.partition("://")[0], *sorted(table.io.items()))
        if alike not in self._ios:
            self._ios[alike] = load_file_io(dict(table.io), location=table.folder)
        return self._ios[alike]

    def finish(self) -> list[StagedFile]:
        self._divide_waiting()
        return [file for writer in self._writers.values() for file in writer.finish()]

    def abort(self) -> None:
        """Remove the files of all writers. `frazil.commit.sweep` removes files that cannot be removed now."""
        for writer in self._writers.values():
            writer.abort()


def _split_by_code(rows: pa.Table, codes: NDArray[np.int64]) -> list[tuple[int, pa.Table]]:
    if len(codes) == 0:
        return []
    groups = split_by_code(codes)
    if len(groups) == 1:
        return [(int(codes[0]), rows)]
    return [(int(codes[positions[0]]), rows.take(pa.array(positions))) for positions in groups]


def other_names(
    routed: str, own_properties: Mapping[str, str], main: str, main_properties: Mapping[str, str]
) -> dict[str, set[str]]:
    """Map the columns of schema `routed` to their other names in rows of schema `main`: see `find_names_in_rows`."""
    own_former, main_former = parse_former_columns(own_properties), parse_former_columns(main_properties)
    if not (own_former or main_former):
        return {}
    schemas = (Schema.model_validate_json(text) for text in (routed, main))
    return find_names_in_rows(next(schemas), own_former, next(schemas), main_former)


def fit_rows(rows: pa.Table, layout: FileLayout, other_names: Mapping[str, Collection[str]] = EMPTY_NAMES) -> pa.Table:
    """Convert rows of the main table to another table's columns, by column names and `other_names`.

    Missing columns and nulls get the other table's default, or null.
    """
    schema = layout.arrow_schema
    existing = set(rows.column_names)
    missing = {column: names for column, names in other_names.items() if column not in existing}
    if renames := {name: column for column, names in missing.items() for name in names if name in existing}:
        rows = rows.rename_columns([renames.get(name, name) for name in rows.column_names])
    if rows.schema.equals(schema, check_metadata=True) and not layout.defaults:
        return rows
    existing = set(rows.column_names)
    rows = fill_hidden_nulls(_translate_omitted(rows, schema))  # for Arrow's cast
    arrays = [
        rows.column(field.name).cast(field.type)
        if field.name in existing
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in schema
    ]
    filled = map(fill_nulls, arrays, map(layout.defaults.get, schema.names))
    return pa.Table.from_arrays([*filled], schema=schema)


def _translate_omitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Translate field ids of omitted columns (`_frazil_kept`) to the field ids of `schema`."""
    index = rows.schema.get_field_index(OMITTED_COLUMNS)
    if index < 0 or rows.column(index).null_count == rows.num_rows:
        return rows
    names, ids = {i: name for name, i in _field_ids(rows.schema).items()}, _field_ids(schema)
    lists = [
        omits and [ids[name] for i in omits if (name := names[i]) in ids] for omits in rows.column(index).to_pylist()
    ]
    return rows.set_column(index, rows.schema.field(index), pa.array(lists, rows.schema.field(index).type))


def _field_ids(schema: pa.Schema) -> dict[str, int]:
    return {f.name: int(f.metadata[FIELD_ID]) for f in schema if f.metadata and FIELD_ID in f.metadata}
