"""JSON messages to Arrow: many at once where that is provably the same as one by one, and one by one where not.

A chunk that cannot be parsed whole is halved until the bad records are among few, which are then looked at singly
(`json_check`). Good records land from the other halves, whatever their neighbours are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.decode import Decoded, Rejection, joined
from frazil.ingest.json_check import MISSING, record_check
from frazil.ingest.json_maps import map_rewriter
from frazil.ingest.json_text import join_if_safe, normalise
from frazil.ingest.json_types import check_supported, from_wire, wire_type

LOOK_SINGLY = 256
"""A failing piece of this many records is looked at record by record: about 5 µs each, against 200 µs a parse."""

UNREADABLE = (ValueError, OverflowError)
"""What the reader and the conversions raise for values that they cannot take (ArrowInvalid is a ValueError)."""


class JsonDecoder:
    """Decodes chunks to tables of one schema. Fields that the schema does not name are ignored."""

    def __init__(self, schema: Schema, units: Mapping[int, str]) -> None:
        """Raises SpecError when JSON cannot fill a column's type."""
        struct = schema.as_struct()
        check_supported(struct)
        self._struct = struct
        self._units = units
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._check = record_check(struct, units)
        self._rewrite = map_rewriter(struct)
        wire = wire_type(struct, units)
        self._decimals = [i for i, field in enumerate(wire) if _has_decimal(field.type)]
        self._parse_options = pj.ParseOptions(explicit_schema=pa.schema(list(wire)), unexpected_field_behavior="ignore")

    def __call__(self, values: Sequence[bytes | None]) -> Decoded:
        """All of a chunk's values, each either a row or a rejection."""
        places = np.arange(len(values))
        text = join_if_safe(values) if self._rewrite is None else None
        if text is not None:
            try:
                return Decoded(self._parse_text(text, len(values)), places)
            except UNREADABLE:
                return self._halves(list(values), places)  # type: ignore[arg-type]  # no tombstone can be joined
        return self._normalised(values)

    def _normalised(self, values: Sequence[bytes | None]) -> Decoded:
        texts: list[bytes] = []
        places: list[int] = []
        rejections: list[Rejection] = []
        for place, value in enumerate(values):
            text = normalise(value)
            if isinstance(text, tuple):
                rejections.append(Rejection(place, *text))
            else:
                texts.append(text)
                places.append(place)
        decoded = self._attempt(texts, np.array(places, np.int64))
        return Decoded(decoded.rows, decoded.kept, rejections + decoded.rejections)

    def _attempt(self, texts: list[bytes], places: NDArray[np.int64]) -> Decoded:
        if not texts:
            return Decoded(pa.Table.from_batches([], self._arrow_schema), places)
        try:
            return Decoded(self._parse(texts), places)
        except UNREADABLE as error:
            if len(texts) == 1:
                return self._rejected(places, str(error))
            return self._halves(texts, places)

    def _halves(self, texts: list[bytes], places: NDArray[np.int64]) -> Decoded:
        """What is left to do when these texts did not parse together."""
        if len(texts) <= LOOK_SINGLY:
            return self._singly(texts, places)
        middle = len(texts) // 2
        return joined([self._attempt(texts[:middle], places[:middle]), self._attempt(texts[middle:], places[middle:])])

    def _singly(self, texts: list[bytes], places: NDArray[np.int64]) -> Decoded:
        reasons = [self._check(text) for text in texts]
        rejections = [Rejection(int(p), *r) for p, r in zip(places, reasons, strict=True) if r is not None]
        good = [i for i, reason in enumerate(reasons) if reason is None]
        decoded = self._unexplained([texts[i] for i in good], places[good])
        return Decoded(decoded.rows, decoded.kept, rejections + decoded.rejections)

    def _unexplained(self, texts: list[bytes], places: NDArray[np.int64]) -> Decoded:
        """Records with which the check finds no fault: halved to the one that the reader refuses, if it does."""
        if not texts:
            return Decoded(pa.Table.from_batches([], self._arrow_schema), places)
        try:
            return Decoded(self._parse(texts), places)
        except UNREADABLE as error:
            if len(texts) == 1:
                return self._rejected(places, str(error))
        middle = len(texts) // 2
        return joined(
            [
                self._unexplained(texts[:middle], places[:middle]),
                self._unexplained(texts[middle:], places[middle:]),
            ]
        )

    def _rejected(self, places: NDArray[np.int64], error: str) -> Decoded:
        rejection = Rejection(int(places[0]), "InvalidRecord", error)
        return Decoded(pa.Table.from_batches([], self._arrow_schema), places[:0], [rejection])

    def _parse(self, texts: list[bytes]) -> pa.Table:
        rewritten = texts if self._rewrite is None else list(map(self._rewrite, texts))
        return self._parse_text(b"\n".join(rewritten), len(texts))

    def _parse_text(self, text: bytes, count: int) -> pa.Table:
        """`count` joined messages to as many rows. Raises ArrowInvalid when any of them cannot be one row."""
        options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        read = pj.read_json(pa.BufferReader(text), read_options=options, parse_options=self._parse_options)
        if read.num_rows != count:
            raise pa.ArrowInvalid("a message holds more than one JSON value")
        for index in self._decimals:
            # Arrow's reader gives decimal(5, 2) the value 1000.00: it looks at digits before it moves the point.
            read.column(index).validate(full=True)
        columns = [
            from_wire(column.combine_chunks(), field.field_type, target.type, self._units, field.field_id)
            for column, field, target in zip(read.columns, self._struct.fields, self._arrow_schema, strict=True)
        ]
        for column, target in zip(columns, self._arrow_schema, strict=True):
            _require(column, target)
        return pa.Table.from_arrays(columns, schema=self._arrow_schema)


def _has_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))


def _require(array: pa.Array, field: pa.Field) -> None:
    """Raise ArrowInvalid where a required value is null though all that encloses it is there."""
    if not field.nullable and array.null_count:
        raise pa.ArrowInvalid(f"{field.name}: {MISSING}")
    kind = field.type
    if pa.types.is_struct(kind):
        there = array if array.null_count == 0 else array.filter(array.is_valid())
        for i, part in enumerate(there.flatten()):
            _require(part, kind.field(i))
    elif pa.types.is_large_list(kind):
        _require(array.flatten(), kind.value_field)
    elif pa.types.is_map(kind):
        there = array.filter(array.is_valid()) if array.null_count else array
        _require(there.items, kind.item_field)
