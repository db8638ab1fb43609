"""The formats `string` and `bytes`: the whole record value fills one column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import empty_table
from frazil.ingest.binary_arrays import find_failures, to_arrow_binary
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, Rejection


class WholeValueDecoder:
    """Fills one column with the record value, the others with null. Rejects all records if one of these is required."""

    def __init__(self, schema: Schema, column: str) -> None:
        self._field = schema.find_field(column)
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._missing = [f.name for f in schema.fields if f.required and f.name != column]

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        if self._missing:
            text = f"{self._missing[0]}: required, and nothing fills it"
            rejections = [Rejection(i, "MissingRequired", text) for i in range(len(chunk))]
            return DecodedChunk(empty_table(self._arrow_schema), np.zeros(0, np.int64), rejections)
        wrong = find_failures(chunk.values, self._field, what="value")
        arrays = [
            to_arrow_binary(chunk.values, field.type)
            if field.name == self._field.name
            else pa.nulls(len(chunk), field.type)
            for field in self._arrow_schema
        ]
        rows = pa.Table.from_arrays(arrays, schema=self._arrow_schema)
        return DecodedChunk(rows, np.arange(len(chunk))).reject_rows(wrong)
