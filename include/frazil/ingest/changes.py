"""Adds columns to an upsert stream's rows: whether a record updates or deletes its row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, TimestamptzType

from frazil.ingest.chunk import NULL, RecordChunk
from frazil.ingest.contract import ChangeRules
from frazil.ingest.decode import DecodedChunk, Decoder, Rejection, find_nulls

CHANGE = "_frazil_change"
OMITTED_COLUMNS = "_frazil_kept"
"""Column with the field ids of the columns that a change omits; null or empty for most changes.

An update leaves the omitted columns unchanged. An insert stores null in them.
"""
UPSERT, DELETE = 0, 1
CHANGE_COLUMNS = frozenset({CHANGE, OMITTED_COLUMNS})

_CHANGE_FIELDS = (
    NestedField(2_000_000_001, CHANGE, IntegerType(), required=True),
    NestedField(
        2_000_000_002, OMITTED_COLUMNS, ListType(2_000_000_003, IntegerType(), element_required=True), required=False
    ),
)
_COORDINATES = (
    NestedField(2_000_000_011, "kafka_topic", StringType(), required=True),
    NestedField(2_000_000_012, "kafka_partition", IntegerType(), required=True),
    NestedField(2_000_000_013, "kafka_offset", LongType(), required=True),
    NestedField(2_000_000_014, "kafka_timestamp", TimestamptzType(), required=False),
)


def change_schema(table: Schema, key: tuple[str, ...]) -> Schema:
    """Return the schema of change files: table columns (only the key is required), coordinates, `CHANGE_COLUMNS`."""
    existing = {field.name for field in table.fields}
    columns = [field if field.name in key else field.model_copy(update={"required": False}) for field in table.fields]
    coordinates = [field for field in _COORDINATES if field.name not in existing]
    return Schema(*columns, *coordinates, *_CHANGE_FIELDS, schema_id=table.schema_id)


class ChangeReader:
    """Reads each record as an upsert or a delete. An upsert needs all required columns; a delete needs only its key."""

    def __init__(self, rules: ChangeRules, keys: Decoder | None = None) -> None:
        """`keys` decodes the keys of tombstones; None if record keys have no fields."""
        self._rules, self._keys = rules, keys
        self._deletes = pa.array(rules.delete_values) if rules.delete_values else None

    def add_tombstones(self, decoded: DecodedChunk, chunk: RecordChunk) -> DecodedChunk:
        """Add a row for each tombstone, with only the key columns filled, if tombstones delete rows."""
        if not self._rules.tombstones or not decoded.rejections:
            return decoded
        absent = chunk.values.lengths == NULL
        valueless = np.array([r.index for r in decoded.rejections if absent[r.index]], np.int64)
        if not len(valueless):
            return decoded
        others = [r for r in decoded.rejections if not absent[r.index]]
        tombstones = DecodedChunk(pa.table({}), valueless)
        if self._keys is not None:
            tombstones = self._keys(RecordChunk.of_column(chunk.keys.take(valueless))).with_indexes(valueless)
        columns = [
            tombstones.rows.column(f.name)
            if f.name in tombstones.rows.column_names
            else pa.nulls(len(tombstones.record_indexes), f.type)
            for f in decoded.rows.schema
        ]
        rows = pa.concat_tables([decoded.rows, pa.Table.from_arrays(columns, schema=decoded.rows.schema)])
        record_indexes = np.concatenate([decoded.record_indexes, tombstones.record_indexes])
        return DecodedChunk(rows, record_indexes, [*others, *tombstones.rejections], decoded.drift)

    def __call__(self, decoded: DecodedChunk, chunk: RecordChunk) -> DecodedChunk:
        enveloped = CHANGE in decoded.rows.column_names  # the envelope's decoder has added the column
        deletes = delete_mask(decoded.rows)
        if self._deletes is not None and not enveloped:
            values = decoded.rows.column(self._rules.delete_column)
            deletes = pc.is_in(values, self._deletes.cast(values.type)).to_numpy()
        if self._rules.tombstones:
            deletes = deletes | (chunk.values.lengths == NULL)[decoded.record_indexes]
        invalid = find_nulls(decoded.rows, self._rules.required, ~deletes)
        rows = decoded.rows
        if not enveloped:
            rows = rows.append_column(CHANGE, pa.array(np.where(deletes, DELETE, UPSERT).astype(np.int32)))
            rows = rows.append_column(OMITTED_COLUMNS, pa.nulls(rows.num_rows, pa.list_(pa.int32())))
        return dataclasses.replace(decoded, rows=rows).reject_rows(invalid)


def delete_mask(rows: pa.Table) -> NDArray[np.bool_]:
    if CHANGE not in rows.column_names:
        return np.zeros(rows.num_rows, np.bool_)
    return np.asarray(pc.equal(rows.column(CHANGE), DELETE))


def reject_no_ops(
    decoded: DecodedChunk, indexes: NDArray[np.int64], reason: str = "the record does not change a row"
) -> DecodedChunk:
    text = f"{reason}, and the writer skips such records: discard this dead letter"
    return decoded.with_rejections(Rejection(index, "NoChange", text) for index in indexes.tolist())


def add_change_columns(rows: pa.Table, decoded: pa.Table) -> pa.Table:
    for name in CHANGE_COLUMNS & set(decoded.column_names):
        rows = rows.append_column(name, decoded.column(name))
    return rows
