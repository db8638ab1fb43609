"""Fills renamed columns from the old field names that records still use (aliases)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from frazil.ingest.changes import KEPT, with_others
from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import Decoded, Decoder, Rejection, RenamingDecoder
from frazil.ingest.formats.fields import Unit, without_default

FIRST_ID = 200_000_000
"""First field id for alias columns; no table column has such a high id. An envelope's own ids start at 500,000,000."""

Make = Callable[[Schema, Mapping[int, Unit]], Decoder]
"""Makes a decoder for a schema. The mapping has the encoding of a column's values by its field id."""


def aliased(make: Make, schema: Schema, units: Mapping[int, Unit], aliases: Mapping[str, int]) -> Decoder:
    """Return a decoder that also fills columns from alias fields.

    `aliases` maps the name of a record's field to the field id of the column that it fills.
    """
    wanted = {name: schema.find_field(field_id) for name, field_id in aliases.items()}
    return AliasedDecoder(make, schema, units, wanted) if wanted else make(schema, units)


class AliasedDecoder:
    """Decodes alias fields as extra columns, then merges these into the columns that they fill.

    If a record has both a field with the column's own name and an alias, the field with the column's name wins.
    """

    def __init__(
        self, make: Make, schema: Schema, units: Mapping[int, Unit], aliases: Mapping[str, NestedField]
    ) -> None:
        filled = {column.field_id for column in aliases.values()}
        extra = [
            column.model_copy(update={"field_id": FIRST_ID + n, "name": name, "required": False})
            for n, (name, column) in enumerate(aliases.items())
        ]
        own = [f.model_copy(update={"required": f.required and f.field_id not in filled}) for f in schema.fields]
        last = {column.field_id: one.field_id for one, column in zip(extra, aliases.values(), strict=True)}
        of_own = {i: without_default(unit) if i in last else unit for i, unit in units.items()}
        of_extra = {
            one.field_id: units[i] if one.field_id == last[i] else without_default(units[i])
            for one, i in zip(extra, (column.field_id for column in aliases.values()), strict=True)
            if i in units
        }
        self._decode = make(Schema(*own, *extra, schema_id=schema.schema_id), {**of_own, **of_extra})
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._filled_columns = {e.field_id: c for e, c in zip(extra, aliases.values(), strict=True)}
        self._others = {c.name: [n for n, o in aliases.items() if o.field_id == c.field_id] for c in aliases.values()}
        self._required = [column.name for column in schema.fields if column.required and column.field_id in filled]
        if isinstance(self._decode, RenamingDecoder):
            self._decode.rename({name: column.name for name, column in aliases.items()}, self._required)

    def __call__(self, chunk: Chunk) -> Decoded:
        decoded = self._decode(chunk)
        arrays = [self._column(field, decoded.rows) for field in self._arrow_schema]
        missing = np.zeros(len(decoded.kept), np.bool_)
        rejections = []
        for name in self._required:
            null = arrays[self._arrow_schema.get_field_index(name)].is_null().to_numpy()
            places = decoded.kept[null & ~missing].tolist()
            rejections += [Rejection(p, "MissingRequired", f"{name}: required, and missing or null") for p in places]
            missing |= null
        good = pa.array(~missing)
        kept = [array.filter(good) for array in arrays] if rejections else arrays
        rows = pa.Table.from_arrays(kept, schema=self._arrow_schema)
        others = decoded.rows.filter(good) if rejections else decoded.rows
        return Decoded(
            with_others(rows, self._update_omitted(others, rows)),
            decoded.kept[~missing],
            [*decoded.rejections, *rejections],
            decoded.drift,
        )

    def _update_omitted(self, decoded: pa.Table, merged: pa.Table) -> pa.Table:
        """Update the lists of columns that a change omits (`_frazil_kept`) after the aliases are merged.

        The ids of alias columns are removed. If the merged value is null, the id of the column that they fill is added.
        """
        at = decoded.schema.get_field_index(KEPT)
        if at < 0 or decoded.column(at).null_count == decoded.num_rows:
            return decoded
        lists = decoded.column(at).to_pylist()
        null = {
            column.name: merged.column(column.name).is_null().to_pylist() for column in self._filled_columns.values()
        }
        for row, ids in enumerate(lists):
            if ids and not self._filled_columns.keys().isdisjoint(ids):
                unset = {c.field_id for i, c in self._filled_columns.items() if i in ids and null[c.name][row]}
                lists[row] = sorted(unset.union(ids) - self._filled_columns.keys())
        return decoded.set_column(at, decoded.schema.field(at), pa.array(lists, decoded.schema.field(at).type))

    def _column(self, field: pa.Field, rows: pa.Table) -> pa.ChunkedArray:
        column = rows.column(field.name)
        for name in self._others.get(field.name, ()):
            column = _fill_nulls(column, rows.column(name))
        return column


def _fill_nulls(column: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Fill the nulls of a column from another column. Arrow's `coalesce` does not support every type."""
    if not column.null_count or other.null_count == len(other):
        return column
    places = np.arange(len(column))
    places += len(column) * column.is_null().to_numpy()
    return pa.chunked_array([*column.chunks, *other.chunks], column.type).take(pa.array(places))
