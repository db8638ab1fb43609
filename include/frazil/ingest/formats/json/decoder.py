"""Decodes JSON with a compiled loop (`rows`). Module `record`, the reference, reads the records that the loop skips."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import empty_table
from frazil.ingest.binary_arrays import as_loop_arguments
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.decode import PLAIN, DecodedChunk, DecoderOptions, FormatDecoder, Rejection, join_results
from frazil.ingest.formats.columns import ColumnMemory
from frazil.ingest.formats.debezium import changes_no_row
from frazil.ingest.formats.json import unknown_keys
from frazil.ingest.formats.json.drift import DriftFinder
from frazil.ingest.formats.json.nodes import check_supported
from frazil.ingest.formats.json.record import RecordReader, Row, field_names, field_names_at
from frazil.ingest.formats.json.rows import NEW, SAMPLE, UNKNOWN, read_records
from frazil.ingest.formats.json.text import MAX_DEPTH, RecordError
from frazil.ingest.formats.json.types import max_nesting
from frazil.ingest.schema_drift import MAX_REPORTED_NAMES, Path, SchemaDrift, has_unknown_part, join_drift, select_names

_MAX_MAP_KEYS = 4096
"""Maximum number of keys per map. Records with a larger map are read one by one."""


class JsonDecoder(FormatDecoder):
    def __init__(self, schema: Schema, units: Mapping[int, str], options: DecoderOptions = PLAIN) -> None:
        struct = schema.as_struct()
        check_supported(struct)
        self._record = RecordReader(struct, units, options.hidden)
        self._columns = ColumnMemory(schema, units, options.hidden)
        self._frames = np.zeros((1 + max_nesting(struct), 6), np.int64)
        self._pieces = np.zeros(unknown_keys.FIRST_PIECE + 3 * unknown_keys.MAX_PIECES, np.int64)
        self._scratch = np.zeros(MAX_DEPTH, np.uint8)
        self._slots = np.zeros(2 * _MAX_MAP_KEYS, np.int64)
        self._new_keys = unknown_keys.allocate_memory(on=options.drift != "off")
        self._beyond: DriftFinder | None = None
        if options.drift != "off":
            self._beyond = DriftFinder(struct, units, widening=options.drift == "full", within=options.within)
            self._columns.watch([part.path for part in options.within])
        self._has_casts = False
        self._casts: Counter[str] = Counter()

    def cast(self, columns: Mapping[str, Path]) -> None:
        """Accept other forms of values in these columns. Omits records that the loop cannot decode with certainty."""
        self._has_casts = True
        self._columns.cast(columns)

    def field_names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        return field_names_at(record, path)

    def changes_no_row(self, record: bytes) -> bool:
        return changes_no_row(record)

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        """Decode the values. Rows of records that were read one by one come last."""
        rows, flags = self.read_in_loop(chunk.values)
        sure = DecodedChunk(rows, np.flatnonzero(flags & 1 == 0), drift=self._find_drift(chunk, flags))
        if self._has_casts:
            cast = {name: count for name, count in self._casts.items() if count}
            return dataclasses.replace(sure, drift=dataclasses.replace(sure.drift, cast=cast))
        if len(sure.record_indexes) == len(chunk):
            return sure
        positions = np.flatnonzero(flags & 1)
        return join_results([sure, self._read_one_by_one([*chunk.values.take(positions)], positions.tolist())])

    def read_in_loop(self, values: BinaryColumn) -> tuple[pa.Table, NDArray[np.uint8]]:
        """Return the rows of the records that the loop decoded, and the flags of all records (see `read_records`)."""
        flags = np.ones(len(values), np.uint8)
        self._casts.clear()
        tables = [self._read_part(values[part], flags[part]) for part in self._columns.parts(len(values))]
        return pa.concat_tables(tables) if tables else empty_table(self._columns.arrow_schema), flags

    def _read_part(self, values: BinaryColumn, flags: NDArray[np.uint8]) -> pa.Table:
        columns = self._columns
        columns.begin(len(values))
        records, read = as_loop_arguments(values), 0
        scratch = (self._frames, self._scratch, self._slots, self._pieces, self._new_keys)
        while True:
            schema, memory = (columns.nodes, columns.lists, columns.names), (columns.words, columns.valid, columns.text)
            read, missing = read_records(*records, read, *schema, *memory, columns.entry_counts, *scratch, flags)  # type: ignore[arg-type]
            if read == len(values):
                self._casts.update(columns.take_casts())
                return columns.table(records[0])
            columns.grow(missing)

    def _find_drift(self, chunk: RecordChunk, flags: NDArray[np.uint8]) -> SchemaDrift:
        """Return the drift in the records that the loop read: new fields, and records without a known field."""
        unknown = SchemaDrift()
        if len(others := np.flatnonzero(flags & UNKNOWN)) and self._columns.field_names:
            some = chunk.values.take(others[:MAX_REPORTED_NAMES])
            unknown = SchemaDrift(unknown=len(others), names=select_names(n for one in some for n in field_names(one)))
        records = int(np.count_nonzero(flags & NEW))
        if self._beyond is None or not records:
            return unknown
        new = self._beyond.find_new_fields(chunk.values.take(np.flatnonzero(flags & SAMPLE)))
        if any(map(has_unknown_part, new.values())):
            self._new_keys = unknown_keys.allocate_memory(on=True)  # forget the keys found so far
        return join_drift([unknown, SchemaDrift(new, records=records)])

    def _read_one_by_one(self, values: Sequence[bytes | None], positions: Iterable[int]) -> DecodedChunk:
        """Decode each value by itself. `positions` are the positions of the values in the chunk."""
        rows: list[Row] = []
        kept: list[int] = []
        rejections: list[Rejection] = []
        unknown: list[Collection[str]] = []
        known = self._columns.field_names
        read = self._record.read_all(values)
        for value, position, found in zip(values, positions, read, strict=True):
            if isinstance(found, RecordError):
                rejections.append(Rejection(position, found.error_class, found.error))
                if found.error_class != "MissingRequired":
                    continue
            else:
                rows.append(found)
                kept.append(position)
            if known and known.isdisjoint(names := field_names(value)):
                unknown.append(names)
        drift = SchemaDrift(
            unknown=len(unknown), names=select_names(n for some in unknown[:MAX_REPORTED_NAMES] for n in some)
        )
        if self._beyond is not None:
            drift = join_drift([drift, self._beyond(values, read)])
        schema = self._columns.arrow_schema
        columns = zip(*rows, strict=True) if rows else [()] * len(schema)
        arrays = [_to_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=schema)
        return DecodedChunk(table, np.array(kept, np.int64), rejections, drift)


def _to_array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    storage = _storage_type(kind)
    array = pa.array(values, storage)
    return array if storage == kind else array.cast(kind)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without extension types, which Arrow cannot build inside nested values."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_storage_type(field.type)) for field in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_storage_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_storage_type(kind.item_type)))
    return kind
