"""Decodes JSON records whose fields are in a nested object, such as Kafka Connect's `payload`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import Decoded
from frazil.ingest.formats.json.decoder import JsonDecoder
from frazil.ingest.schema_drift import WHOLE, Path, Within

FIRST_ID = 400_000_000
"""First field id of the objects that enclose the fields."""


class UnwrappedDecoder:
    """Decodes the object at a path of each record. A record without this object is rejected."""

    def __init__(self, schema: Schema, units: Mapping[int, str], path: Path) -> None:
        self._path = path
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        wrapped = schema
        for depth, name in enumerate(reversed(path)):
            inner = StructType(*wrapped.fields)
            wrapped = Schema(NestedField(FIRST_ID + depth, name, inner, required=True), schema_id=schema.schema_id)
        self._decode = JsonDecoder(wrapped, units)

    def withhold(self, hidden: Collection[Path]) -> None:
        self._decode.withhold(hidden)

    def report_drift(self, *, widening: bool, within: Sequence[Within] = WHOLE) -> None:
        self._decode.report_drift(
            widening=widening, within=[part._replace(path=self._path + part.path) for part in within]
        )

    def __call__(self, chunk: Chunk) -> Decoded:
        decoded = self._decode(chunk)
        column = decoded.rows.column(0).combine_chunks()
        parts: list[pa.Array] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        tables = [self._inside(part) for part in parts]
        rows = pa.concat_tables(tables) if tables else self._arrow_schema.empty_table()
        before = ".".join(self._path) + "."
        rejections = [r._replace(error=r.error.removeprefix(before)) for r in decoded.rejections]
        return Decoded(rows, decoded.kept, rejections, decoded.drift)

    def _inside(self, array: pa.StructArray) -> pa.Table:
        for _ in self._path[1:]:
            array = array.field(0)
        arrays = [array.field(i) for i in range(array.type.num_fields)]
        return pa.Table.from_arrays(arrays, schema=self._arrow_schema)
