"""Decodes record keys that are one primitive value, such as a string or a number, as records with one field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.ingest.binary_arrays import to_arrow_binary
from frazil.ingest.binary_column import BinaryColumn
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, Rejection, WrappingDecoder, join_results
from frazil.ingest.formats.fields import WHOLE_KEY
from frazil.registry.client import SchemaSource, SchemaText

_JSON_SCALAR = r'^[ \t\r\n]*("([^"\\]|\\.)*"|[-+.0-9A-Za-z]+)[ \t\r\n]*$'
"""Matches JSON strings, numbers and literals, and some invalid texts, which the decoder rejects."""


class WholeKeyDecoder(WrappingDecoder):
    """Decodes JSON strings, numbers and booleans. Objects and lists are rejected."""

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        texts = to_arrow_binary(chunk.values, pa.large_binary())
        scalar = pc.match_substring_regex(texts, _JSON_SCALAR).fill_null(False).to_numpy(zero_copy_only=False)
        places = np.flatnonzero(scalar)
        around = (pa.scalar(text, pa.large_binary()) for text in (b'{"%s":' % WHOLE_KEY.encode(), b"}\n", b""))
        begin, end, between = around
        records = pc.binary_join_element_wise(begin, texts.take(pa.array(places)), end, between)
        _, offsets, data = records.buffers()
        ends = np.frombuffer(offsets, np.int64)[: len(records) + 1]
        values = BinaryColumn(np.frombuffer(data or b"", np.uint8), ends[:-1], np.diff(ends) - 1)
        decoded = self._decode(RecordChunk.of_column(values)).with_indexes(places)
        text = "the key is not one JSON string, number or boolean"
        others = [Rejection(place, "TypeMismatch", text) for place in np.flatnonzero(~scalar).tolist()]
        return join_results([decoded, DecodedChunk(decoded.rows.slice(0, 0), np.zeros(0, np.int64), others)])


@overload
def as_record_schemas(schemas: SchemaText) -> SchemaText: ...
@overload
def as_record_schemas(schemas: SchemaSource) -> SchemaSource: ...
def as_record_schemas(schemas: SchemaSource | SchemaText) -> SchemaSource | SchemaText:
    """Wrap Avro schemas in records with one field. The encoded bytes are the same."""
    return _as_record(schemas) if isinstance(schemas, SchemaText) else _RecordSchemas(schemas)


@dataclass(frozen=True, slots=True)
class _RecordSchemas:
    inner: SchemaSource

    def prefetch(self, schema_ids: Sequence[int]) -> None:
        self.inner.prefetch(schema_ids)

    def get(self, schema_id: int) -> SchemaText:
        return _as_record(self.inner.get(schema_id))


def _as_record(schema: SchemaText) -> SchemaText:
    fields = f'[{{"name":"{WHOLE_KEY}","type":{schema.text}}}]'
    return schema._replace(text=f'{{"type":"record","name":"frazil_key","fields":{fields}}}')
