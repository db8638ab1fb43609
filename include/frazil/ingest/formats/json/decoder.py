"""Decodes JSON messages to Arrow with a compiled loop. Records about which the loop is unsure are read one by one.

`columns` reads a chunk and marks the unsure records; `record` reads one record and is the reference. A record's row or
rejection does not depend on other records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import Decoded, Rejection, joined
from frazil.ingest.formats.json.beyond import BeyondSchema
from frazil.ingest.formats.json.columns import ChunkReader
from frazil.ingest.formats.json.record import RecordReader, Row, names
from frazil.ingest.formats.json.text import Refused
from frazil.ingest.formats.json.types import check_supported
from frazil.ingest.formats.other_events import is_other_event
from frazil.ingest.schema_drift import WHOLE, SchemaDrift, Within, is_open


class JsonDecoder:
    """Decodes chunks to tables with one schema. Fields that the schema does not have are ignored."""

    def __init__(self, schema: Schema, units: Mapping[int, str]) -> None:
        """Raises SpecError for a column type that JSON cannot fill."""
        struct = schema.as_struct()
        check_supported(struct)
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._record = RecordReader(struct, units)
        self._columns = ChunkReader(struct, self._arrow_schema, units)
        self._struct, self._units = struct, units
        self._beyond: BeyondSchema | None = None

    def report_drift(self, *, widening: bool, within: Sequence[Within] = WHOLE) -> None:
        self._beyond = BeyondSchema(self._struct, self._units, widening=widening, within=within)
        self._columns.find_new_keys([part.path for part in within])

    def names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        return names(record, path)

    def is_other_event(self, record: bytes) -> bool:
        return is_other_event(record)

    def __call__(self, chunk: Chunk) -> Decoded:
        """Decode the values. Rows of records that were read one by one come last."""
        rows, unsure = self._columns(chunk.values)
        sure = Decoded(rows, np.flatnonzero(~unsure), drift=self._drift(chunk))
        if len(sure.kept) == len(chunk):
            return sure
        places = np.flatnonzero(unsure)
        return joined([sure, self._singly([*chunk.values.take(places)], places.tolist())])

    def _drift(self, chunk: Chunk) -> SchemaDrift:
        """Return the new fields of the records that the loop read."""
        if self._beyond is None or not self._columns.new:
            return SchemaDrift()
        new = self._beyond.new(chunk.values.take(self._columns.samples))
        if any(map(is_open, new.values())):
            self._columns.find_new_keys()
        return SchemaDrift(new, records=self._columns.new)

    def _singly(self, values: Sequence[bytes | None], places: Iterable[int]) -> Decoded:
        """Read messages one by one. `places` are their positions in the chunk."""
        rows: list[Row] = []
        kept: list[int] = []
        rejections: list[Rejection] = []
        read = self._record.each(values)
        for place, found in zip(places, read, strict=True):
            if isinstance(found, Refused):
                rejections.append(Rejection(place, found.error_class, found.error))
            else:
                rows.append(found)
                kept.append(place)
        drift = SchemaDrift() if self._beyond is None else self._beyond(values, read)
        columns = zip(*rows, strict=True) if rows else [()] * len(self._arrow_schema)
        arrays = [_array(column, field.type) for column, field in zip(columns, self._arrow_schema, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=self._arrow_schema)
        return Decoded(table, np.array(kept, np.int64), rejections, drift)


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    storage = _storage(kind)
    array = pa.array(values, storage)
    return array if storage == kind else array.cast(kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    """Return the type without extension types, which Arrow cannot build inside nested values."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_storage(field.type)) for field in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_storage(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_storage(kind.item_type)))
    return kind
