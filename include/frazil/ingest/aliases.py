"""Reads renamed columns from records that still use an old field name (an alias)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from frazil.ingest.changes import OMITTED_COLUMNS, add_change_columns
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, Decoder, FormatDecoder, find_nulls
from frazil.ingest.formats.fields import Unit, default_of, fill_nulls, without_settings

FIRST_ALIAS_ID = 200_000_000
"""First field id of alias columns: above the ids of table columns, and below the ids of envelope fields."""

MakeDecoder = Callable[[Schema, Mapping[int, Unit]], FormatDecoder]
"""Creates a decoder for a schema. The mapping gives each column's encoding in records, by field id."""


def create_aliased_decoder(
    make: MakeDecoder, schema: Schema, units: Mapping[int, Unit], aliases: Mapping[str, int]
) -> Decoder:
    """Create a decoder that also fills columns from alias fields. `aliases` maps a field's name to its column's id."""
    wanted = {name: schema.find_field(field_id) for name, field_id in aliases.items()}
    return AliasedDecoder(make, schema, units, wanted) if wanted else make(schema, units)


class AliasedDecoder:
    """Decodes alias fields as extra columns. Then fills nulls in aliased columns with the alias columns' values."""

    def __init__(
        self, make: MakeDecoder, schema: Schema, units: Mapping[int, Unit], aliases: Mapping[str, NestedField]
    ) -> None:
        filled = {column.field_id for column in aliases.values()}
        extra = [
            column.model_copy(update={"field_id": FIRST_ALIAS_ID + n, "name": name, "required": False})
            for n, (name, column) in enumerate(aliases.items())
        ]
        own = [f.model_copy(update={"required": f.required and f.field_id not in filled}) for f in schema.fields]
        self._defaults = {column.name: default_of(column, units.get(column.field_id)) for column in aliases.values()}
        of_own = {i: without_settings(unit, "default") if i in filled else unit for i, unit in units.items()}
        self._filled_columns = {e.field_id: c for e, c in zip(extra, aliases.values(), strict=True)}
        of_extra = {i: of_own[c.field_id] for i, c in self._filled_columns.items() if c.field_id in units}
        self._decode = make(Schema(*own, *extra, schema_id=schema.schema_id), {**of_own, **of_extra})
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._columns = {name: column.name for name, column in aliases.items()}
        self._others = {c.name: [n for n, o in aliases.items() if o.field_id == c.field_id] for c in aliases.values()}
        self._required = [column.name for column in schema.fields if column.required and column.field_id in filled]
        self._decode.rename(self._columns, self._required)

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        decoded = self._decode(chunk)
        merged = [decoded.rows.column(field.name) for field in self._arrow_schema]
        for i, field in enumerate(self._arrow_schema):
            for name in self._others.get(field.name, ()):
                merged[i] = fill_nulls(merged[i], decoded.rows.column(name))
        cast: Counter[str] = Counter()
        for name, count in decoded.drift.cast.items():
            cast[self._columns.get(name, name)] += count
        drift = dataclasses.replace(decoded.drift, cast=dict(cast))
        decoded = dataclasses.replace(decoded, rows=self._update_omitted(decoded.rows, merged), drift=drift)
        defaults = map(self._defaults.get, self._arrow_schema.names)
        rows = pa.Table.from_arrays([*map(fill_nulls, merged, defaults)], schema=self._arrow_schema)
        whole = dataclasses.replace(decoded, rows=add_change_columns(rows, decoded.rows))
        return whole.reject_rows(find_nulls(rows, self._required))

    def _update_omitted(self, decoded: pa.Table, merged: Sequence[pa.ChunkedArray]) -> pa.Table:
        """Replace alias columns' ids in `_frazil_kept` by aliased columns' ids. Omits ids of columns with a value."""
        at = decoded.schema.get_field_index(OMITTED_COLUMNS)
        if at < 0 or decoded.column(at).null_count == decoded.num_rows:
            return decoded
        lists = decoded.column(at).to_pylist()
        null = {
            column.name: merged[self._arrow_schema.get_field_index(column.name)].is_null().to_pylist()
            for column in self._filled_columns.values()
        }
        for row, ids in enumerate(lists):
            if ids and not self._filled_columns.keys().isdisjoint(ids):
                unset = {c.field_id for i, c in self._filled_columns.items() if i in ids and null[c.name][row]}
                lists[row] = sorted(unset.union(ids) - self._filled_columns.keys())
        return decoded.set_column(at, decoded.schema.field(at), pa.array(lists, decoded.schema.field(at).type))
