"""Fills columns from the keys and headers of records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.binary_arrays import find_failures, to_arrow_binary
from frazil.ingest.binary_column import BinaryColumn
from frazil.ingest.changes import add_change_columns
from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.headers import header_column


def value_schema(schema: Schema, beside: Mapping[str, str | None]) -> Schema:
    """Return the schema without the columns in `beside`, which record keys and headers fill."""
    return Schema(*(f for f in schema.fields if f.name not in beside), schema_id=schema.schema_id)


class KeyHeaderReader:
    def __init__(self, schema: Schema, beside: Mapping[str, str | None]) -> None:
        """`schema` has all columns that a record fills. `beside` maps a column to its header; None is the key."""
        self._fields = [(schema.find_field(column), header) for column, header in beside.items()]
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)

    def __call__(self, decoded: DecodedChunk, chunk: Chunk) -> DecodedChunk:
        """Add the columns. Records whose key or header does not fit its column are rejected."""
        if not self._fields:
            return decoded
        columns: dict[str, BinaryColumn] = {}
        wrong: dict[int, tuple[str, str]] = {}
        for field, header in self._fields:
            values = chunk.keys if header is None else header_column(chunk.headers, header, len(chunk))
            columns[field.name] = values.take(decoded.kept)
            what = "key" if header is None else f"header {header}"
            wrong = {**find_failures(columns[field.name], field, what=what), **wrong}
        rows = decoded.rows
        arrays = [
            to_arrow_binary(columns[field.name], field.type) if field.name in columns else rows.column(field.name)
            for field in self._arrow_schema
        ]
        whole = pa.Table.from_arrays(arrays, schema=self._arrow_schema)
        return dataclasses.replace(decoded, rows=add_change_columns(whole, rows)).reject_rows(wrong)
