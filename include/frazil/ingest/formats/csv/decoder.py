"""Decodes delimited lines to Arrow: rewrites them as JSON for the JSON decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from frazil.ingest.binary_arrays import as_loop_arguments, locate_invalid_utf8
from frazil.ingest.binary_column import BinaryColumn
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, Rejection, join_results
from frazil.ingest.formats.csv import loop
from frazil.ingest.formats.csv.lines import VALID, LineReader
from frazil.ingest.formats.json.decoder import JsonDecoder
from frazil.spec.formats import CsvFormat

JSON_BUFFER_BYTES = 8 * 2**20
"""Size of the buffer for JSON. A chunk that needs more is decoded in parts."""

_NUMBERS = (iceberg.IntegerType, iceberg.LongType, iceberg.FloatType, iceberg.DoubleType)


class CsvDecoder:
    """Decodes chunks to tables with one schema. Columns that no field fills are null."""

    def __init__(self, declared: CsvFormat, schema: Schema, units: Mapping[int, str]) -> None:
        """Raises SpecError for a column type that CSV does not support."""
        self._decode = JsonDecoder(schema, units)
        self._line = LineReader(declared)
        fields = {field.name: field for field in schema.fields}
        wanted = [fields.get(name) for name in declared.columns]
        names = [b"" if field is None else b",%s:" % _quote_name(field.name) for field in wanted]
        self._format = loop.LineFormat(
            np.frombuffer(b"".join(names), np.uint8),
            np.cumsum([0, *map(len, names)]),
            np.array([_json_kind(field, units) for field in wanted], np.int64),
            np.frombuffer(declared.null.encode(), np.uint8),
            ord(declared.delimiter),
            -1 if declared.quote is None else ord(declared.quote),
        )
        self._room = np.empty(JSON_BUFFER_BYTES, np.uint8)

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        """Decode the values in parts that fit the JSON buffer. Rows of records read one by one come last in a part."""
        values = chunk.values
        parts, done = [], 0
        while done < len(values):
            until, part = self._decode_part(values, done)
            parts.append(part)
            done = until
        return join_results(parts) if parts else self._decode(chunk)

    def _decode_part(self, values: BinaryColumn, first: int) -> tuple[int, DecodedChunk]:
        """Decode as many records, from index `first` on, as fit into the JSON buffer.

        Returns the index after the last of them, and the result.
        """
        places, outcomes = np.zeros((2, len(values)), np.int64), np.zeros(len(values), np.uint8)
        until, needed = loop.write_objects(
            *as_loop_arguments(values), first, self._format, self._room, places, outcomes
        )
        if needed:
            usual, self._room = self._room, np.empty(needed, np.uint8)
            try:
                _, part = self._decode_part(values[first : first + 1], 0)
            finally:
                self._room = usual
            return first + 1, part.with_indexes(np.array([first]))
        valid = first + np.flatnonzero(outcomes[first:until] == VALID)
        at = locate_invalid_utf8(values.take(valid))
        good = valid[at < 0]
        objects = BinaryColumn(self._room, places[0, good], places[1, good])
        decoded = self._decode(RecordChunk.of_column(objects)).with_indexes(good)
        rejections = [
            Rejection(i, *self._line.explain_rejection(values[i], int(outcomes[i])))
            for i in (first + np.flatnonzero(outcomes[first:until] != VALID)).tolist()
        ]
        rejections += [
            Rejection(int(i), "InvalidUtf8", f"the value is not UTF-8 (byte {byte})")
            for i, byte in zip(valid[at >= 0], at[at >= 0], strict=True)
        ]
        return until, join_results([decoded, DecodedChunk(decoded.rows.slice(0, 0), np.zeros(0, np.int64), rejections)])


def _json_kind(field: iceberg.NestedField | None, units: Mapping[int, str]) -> int:
    if field is None:
        return loop.SKIPPED
    if isinstance(field.field_type, iceberg.StringType):
        return loop.TEXT
    if isinstance(field.field_type, iceberg.BooleanType):
        return loop.BOOLEAN
    return loop.NUMBER if isinstance(field.field_type, _NUMBERS) or field.field_id in units else loop.TRIMMED


def _quote_name(name: str) -> bytes:
    text: str = json.dumps(name, ensure_ascii=False)
    return text.encode()
