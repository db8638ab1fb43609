"""Adds the Kafka coordinates of a record to its row: topic, partition, offset and timestamp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.calendar_limits import MILLISECONDS, range_error
from frazil.ingest.changes import CHANGE_COLUMNS
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange
from frazil.ingest.decode import number_rows_in_records
from frazil.spec.column import LINE_COLUMN

COORDINATE_COLUMNS = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")


def record_schema(schema: Schema, has_coordinates: bool) -> Schema:
    """Return the schema without coordinates, `kafka_line` and change columns; unchanged without `has_coordinates`."""
    if not has_coordinates:
        return schema
    added = {*COORDINATE_COLUMNS, LINE_COLUMN, *CHANGE_COLUMNS}
    return Schema(*(f for f in schema.fields if f.name not in added), schema_id=schema.schema_id)


class CoordinateColumns:
    def __init__(self, schema: Schema, ranges: Sequence[OffsetRange], *, wanted: bool, lines: bool = False) -> None:
        """`wanted`: whether the table has coordinate columns. `lines`: whether rows are numbered within each record."""
        self._schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._wanted = wanted
        self._lines = lines
        self._topics = pa.array([r.topic for r in ranges], pa.large_string())
        self._partitions = np.array([r.partition for r in ranges], np.int32)

    def add_to(self, rows: pa.Table, chunk: RecordChunk, record_indexes: NDArray[np.int64]) -> pa.Table:
        """Return `rows` with coordinates, in the table's column order. Row i comes from record `record_indexes[i]`."""
        if not self._wanted:
            return rows
        is_whole = len(record_indexes) == len(chunk) and bool((record_indexes == np.arange(len(chunk))).all())
        positions = slice(None) if is_whole else record_indexes
        arrays = [
            self._column(name, chunk, positions, record_indexes)
            if name == LINE_COLUMN or name in COORDINATE_COLUMNS
            else rows.column(name)
            for name in self._schema.names
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def find_out_of_range(self, chunk: RecordChunk, record_indexes: NDArray[np.int64]) -> dict[int, str]:
        """Return an error text for each row with a Kafka timestamp that does not fit the column `kafka_timestamp`."""
        if not self._wanted or "kafka_timestamp" not in self._schema.names:
            return {}
        stamps = chunk.timestamps_ms[record_indexes]
        late = np.flatnonzero(stamps > MILLISECONDS[1]).tolist()
        return {row: range_error("kafka_timestamp", int(stamps[row]), "milliseconds") for row in late}

    def _column(
        self, name: str, chunk: RecordChunk, positions: slice | NDArray[np.int64], record_indexes: NDArray[np.int64]
    ) -> pa.Array:
        match name:
            case "kafka_line":
                numbers = number_rows_in_records(record_indexes) if self._lines else None
                return pa.nulls(len(record_indexes), pa.int32()) if numbers is None else pa.array(numbers)
            case "kafka_topic":
                return self._topics.take(pa.array(chunk.range_index[positions]))
            case "kafka_partition":
                return pa.array(self._partitions[chunk.range_index[positions]])
            case "kafka_offset":
                return pa.array(chunk.offsets[positions])
        stamps = chunk.timestamps_ms[positions]
        absent = (stamps < 0) | (stamps > MILLISECONDS[1])
        micros = pa.array(np.where(absent, 0, stamps) * 1000, mask=absent if absent.any() else None)
        return pc.cast(micros, pa.timestamp("us", "UTC"))
