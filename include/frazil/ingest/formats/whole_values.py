"""Decodes records that are one value: the formats `string` and `bytes`, and keys such as a JSON string or number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import empty_table
from frazil.ingest.binary_arrays import find_failures, to_arrow_binary
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, FormatDecoder, Rejection, WrappingDecoder
from frazil.ingest.formats.fields import WHOLE_KEY, as_lines


class WholeValueDecoder(FormatDecoder):
    """Fills one column with the record value, others with null. Rejects all records if another column is required."""

    def __init__(self, schema: Schema, column: str) -> None:
        self._field = schema.find_field(column)
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._missing = [f.name for f in schema.fields if f.required and f.name != column]

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        if self._missing:
            text = f"{self._missing[0]}: required, and nothing fills it"
            rejections = [Rejection(i, "MissingRequired", text) for i in range(len(chunk))]
            return DecodedChunk(empty_table(self._arrow_schema), np.zeros(0, np.int64), rejections)
        failures = find_failures(chunk.values, self._field, name="value")
        arrays = [pa.nulls(len(chunk), field.type) for field in self._arrow_schema]
        position = self._arrow_schema.get_field_index(self._field.name)
        arrays[position] = to_arrow_binary(chunk.values, self._arrow_schema.field(position).type)
        rows = pa.Table.from_arrays(arrays, schema=self._arrow_schema)
        return DecodedChunk(rows, np.arange(len(chunk))).reject_rows(failures)


_JSON_SCALAR = r'^[ \t\r\n]*("([^"\\]|\\.)*"|[-+.0-9A-Za-z]+)[ \t\r\n]*$'
"""Matches JSON strings, numbers and literals, and some invalid texts, which the decoder rejects."""


class WholeKeyDecoder(WrappingDecoder):
    """Decodes JSON strings, numbers and booleans. Objects and lists are rejected."""

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        texts = to_arrow_binary(chunk.values, pa.large_binary())
        scalar = pc.match_substring_regex(texts, _JSON_SCALAR).fill_null(False).to_numpy(zero_copy_only=False)
        positions = np.flatnonzero(scalar)
        around = (b'{"%s":' % WHOLE_KEY.encode(), b"}\n", b"")
        begin, end, between = (pa.scalar(text, pa.large_binary()) for text in around)
        records = pc.binary_join_element_wise(begin, texts.take(pa.array(positions)), end, between)
        decoded = self._decode(RecordChunk.of_column(as_lines(records))).with_indexes(positions)
        text = "the key is not one JSON string, number or boolean"
        rejections = [Rejection(position, "TypeMismatch", text) for position in np.flatnonzero(~scalar).tolist()]
        return decoded.with_rejections(rejections)
