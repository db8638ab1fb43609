"""Fills columns from the keys and headers of records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.binary_arrays import find_failures, header_column, to_arrow_binary
from frazil.ingest.changes import add_change_columns
from frazil.ingest.chunk import NULL, BinaryColumn, RecordChunk
from frazil.ingest.contract import StageContext
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import create_key_decoder
from frazil.ingest.formats.fields import fill_nulls, find_defaults, units_of_fields
from frazil.ingest.schema_drift import SchemaDrift, join_drift


def value_schema(schema: Schema, columns: Mapping[str, str | None]) -> Schema:
    return Schema(*(f for f in schema.fields if f.name not in columns), schema_id=schema.schema_id)


class KeyDecoder:
    def __init__(self, context: StageContext, schema: Schema) -> None:
        """`schema` has all columns that a record fills."""
        keys = context.key_columns
        names = keys.columns if keys and context.is_in_topic_format else ()
        fields = [field for field in schema.fields if field.name in names]
        self.columns = {field.name for field in fields}
        if not keys or not fields:
            return
        units = units_of_fields(Schema(*fields), context.units)
        self._decode = create_key_decoder(keys.format, Schema(*fields), units, is_whole=keys.is_whole)
        self._defaults = find_defaults(Schema(*fields), units)
        self._required = [f.name for f in fields if f.required and f.name not in self._defaults]

    def __call__(
        self, keys: BinaryColumn
    ) -> tuple[dict[str, pa.ChunkedArray], dict[int, tuple[str, str]], SchemaDrift]:
        """Return the columns, the error class and text by record, and the number of casts.

        Without a key, a column gets its default or null. A required column without default is an error.
        """
        present = np.flatnonzero(keys.lengths != NULL)
        decoded = self._decode(RecordChunk.of_column(keys.take(present))).with_indexes(present)
        rows = np.full(len(keys), -1)
        rows[decoded.record_indexes] = np.arange(len(decoded.record_indexes))
        table = decoded.rows.take(pa.array(rows, mask=rows < 0))
        failures = {r.index: (r.error_class, f"the record's key: {r.error}") for r in decoded.rejections}
        for name in self._required:
            missing = ("MissingRequired", f"{name}: required, and the record has no key")
            failures |= dict.fromkeys(np.flatnonzero(keys.lengths == NULL).tolist(), missing)
        columns = {name: fill_nulls(table.column(name), self._defaults.get(name)) for name in self.columns}
        return columns, failures, SchemaDrift(cast=decoded.drift.cast)


class KeyHeaderReader:
    def __init__(self, schema: Schema, columns: Mapping[str, str | None], keys: KeyDecoder | None = None) -> None:
        """`schema` has all columns that a record fills. `columns` gives each column's header; None for the record key.

        `keys` fills columns from decoded keys. Without `keys`, these columns get the key's text or bytes.
        """
        self._keys = keys if keys and keys.columns else None
        decoded = keys.columns if keys else set()
        self._fields = [(schema.find_field(c), header) for c, header in columns.items() if c not in decoded]
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)

    def __call__(self, decoded: DecodedChunk, chunk: RecordChunk) -> DecodedChunk:
        if not self._fields and not self._keys:
            return decoded
        arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
        failures: dict[int, tuple[str, str]] = {}
        record_indexes, drift = decoded.record_indexes, decoded.drift
        if self._keys:
            arrays, failures, of_keys = self._keys(chunk.keys.take(record_indexes))
            drift = join_drift([drift, of_keys])
        for field, header in self._fields:
            values = chunk.keys if header is None else header_column(chunk.headers, header, len(chunk))
            column = values.take(record_indexes)
            source = "key" if header is None else f"header {header}"
            failures = {**find_failures(column, field, name=source), **failures}
            arrays[field.name] = to_arrow_binary(column, self._arrow_schema.field(field.name).type)
        rows = decoded.rows
        complete = pa.Table.from_arrays(
            [arrays[name] if name in arrays else rows.column(name) for name in self._arrow_schema.names],
            schema=self._arrow_schema,
        )
        return dataclasses.replace(decoded, rows=add_change_columns(complete, rows), drift=drift).reject_rows(failures)
