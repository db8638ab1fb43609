"""Turns a chunk of records into rows that fit the table, or rejections."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import DecimalType, NestedField

from frazil.errors import SpecError
from frazil.ingest.calendar_limits import OUT_OF_RANGE, OutOfRangeValue, find_out_of_range
from frazil.ingest.changes import OMITTED_COLUMNS, ChangeReader, add_change_columns
from frazil.ingest.chunk import NULL, RecordChunk
from frazil.ingest.contract import OffsetRange, StageContext
from frazil.ingest.coordinates import CoordinateColumns, record_schema
from frazil.ingest.decode import (
    DecodedChunk,
    Decoder,
    FormatDecoder,
    Rejection,
    drop_incomplete_records,
    find_nulls,
    number_rows_in_records,
)
from frazil.ingest.formats import Quoter, create_decoder, create_quoter, has_lines, has_several_rows, without_unwrap
from frazil.ingest.formats.fields import (
    Unit,
    fill_nulls,
    find_defaults,
    record_path,
    unit_of,
    units_of_fields,
    with_path,
    without_settings,
)
from frazil.ingest.key_header_columns import KeyDecoder, KeyHeaderReader
from frazil.ingest.partitioning import column_of
from frazil.ingest.record_files import RowChunk
from frazil.ingest.schema_drift import SchemaDrift, join_drift
from frazil.ingest.sensitive import Protector
from frazil.ingest.variants import VariantEncoder
from frazil.spec.iceberg import find_limits, variant_columns


class Shaper:
    """Turns chunks into rows of the table. A record's result does not depend on other records."""

    def __init__(  # noqa: PLR0913 - one more for `preview`
        self,
        context: StageContext,
        schema: Schema,
        ranges: Sequence[OffsetRange],
        *,
        decode: Decoder,
        protect: Protector | None = None,
        keeps_json: bool = False,
    ) -> None:
        """`decode` is a `RecordDecoder`, or runs one in another process. `keeps_json` keeps variants as text."""
        self._decode = decode
        self._protect = protect
        self._transforms = context.transform is not None
        self._changes = ChangeReader(context.changes) if context.changes else None
        from_keys = context.key_columns is not None and context.is_in_topic_format and not self._transforms
        self._key_columns = context.key_columns.columns if context.key_columns and from_keys else ()
        unnests = context.transform is not None and bool(context.transform.unnested)
        self._several = unnests or has_several_rows(context.record_format)
        lines = unnests or has_lines(context.record_format)
        self._coordinates = CoordinateColumns(schema, ranges, wanted=context.coordinates, lines=lines)
        self._schema = schema
        self._encode_variants = VariantEncoder(schema, keeps_json=keeps_json) if variant_columns(schema) else None
        self._lowest = list(find_lowest_truncatable(schema, PartitionSpec.model_validate_json(context.main.spec_json)))
        self._event_time = context.event_time_column
        self._within = context.event_times_us
        self._quote: Quoter = (lambda _, __: None) if self._transforms else create_quoter(context.record_format)
        self._units = context.record_units
        self.drift = SchemaDrift()

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        """Return rows with the table's schema. Omits records outside a backfill's time range.

        A record with several rows is accepted or rejected as a whole.
        """
        decoded = self.decode(chunk)
        if self._several:
            decoded = drop_incomplete_records(decoded)
        rows = self._coordinates.add_to(decoded.rows, chunk, decoded.record_indexes)
        shaped = dataclasses.replace(decoded, rows=rows)
        if within := self._within:
            times = self.event_times(rows)
            chosen = pc.and_(pc.greater_equal(times, within[0]), pc.less(times, within[1])).fill_null(False)
            if self._several:
                chosen = pa.array(np.isin(shaped.record_indexes, shaped.record_indexes[chosen.to_numpy(False)]))
            shaped = DecodedChunk(rows.filter(chosen), shaped.record_indexes[chosen.to_numpy(False)], [], decoded.drift)
        failures = self._coordinates.find_out_of_range(chunk, shaped.record_indexes)
        failures |= self._find_untruncatable(shaped.rows) | self._find_out_of_range(chunk, shaped)
        errors = {row: (OUT_OF_RANGE, text) for row, text in failures.items()}
        if self._encode_variants:
            rows, unencoded = self._encode_variants(shaped.rows)
            shaped, errors = dataclasses.replace(shaped, rows=rows), unencoded | errors
        remaining = shaped.reject_rows(errors)
        return drop_incomplete_records(remaining) if self._several else remaining

    def first_row_mask(self, record_indexes: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return a mask of each record's first row; None if all records have one row."""
        return number_rows_in_records(record_indexes) == 0 if self._several else None

    def decode(self, chunk: RecordChunk) -> DecodedChunk:
        """Decode the chunk to rows without coordinates. Ranges of values are not checked."""
        if isinstance(chunk, RowChunk):
            if self._protect:
                raise SpecError(
                    "rows of Parquet files cannot be backfilled into a stream with sensitive fields: their values may "
                    "or may not be protected already. Backfill from Kafka, or from JSON lines"
                )
            if not self._transforms:
                rows = DecodedChunk(chunk.rows, np.arange(len(chunk)))
                return self._changes(rows, chunk) if self._changes else rows
        decoded = self._decode(chunk)
        if self._protect and decoded.drift.names:  # a field's name may contain a sensitive value
            decoded = dataclasses.replace(decoded, drift=dataclasses.replace(decoded.drift, names=()))
        return dataclasses.replace(decoded, rows=self._protect(decoded.rows)) if self._protect else decoded

    def add_drift(self, drift: SchemaDrift, chunk: RecordChunk, *, record_indexes: NDArray[np.int64]) -> None:
        """Add a chunk's drift to `self.drift`. Omits casts of records that are not in `record_indexes`."""
        if drift.cast and not isinstance(chunk, RowChunk):
            other_records = np.setdiff1d(np.arange(len(chunk)), record_indexes)
            of_others = self.decode(chunk.select(other_records, chunk.target)).drift.cast if len(other_records) else {}
            counts = {name: count - of_others.get(name, 0) for name, count in drift.cast.items()}
            drift = dataclasses.replace(drift, cast={name: count for name, count in counts.items() if count})
        if drift:
            self.drift = join_drift([self.drift, drift])

    def _find_out_of_range(self, chunk: RecordChunk, shaped: DecodedChunk) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for row, moment in find_out_of_range(shaped.rows).items():
            unquoted = isinstance(chunk, RowChunk) or moment.path[0] in self._key_columns
            record = None if unquoted else chunk.values[shaped.record_indexes[row]]
            reasons[row] = range_error_text(moment, record, quote=self._quote, units=self._units)
        return reasons

    def _find_untruncatable(self, rows: pa.Table) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for field, lowest in self._lowest:
            values = column_of(rows, self._schema, field.source_id)
            below = pc.less(values, pa.scalar(lowest, values.type)).fill_null(False)
            name = self._schema.find_column_name(field.source_id)
            for row in np.flatnonzero(below.to_numpy(zero_copy_only=False)).tolist():
                reasons[row] = f"{name}: {values[row].as_py()} is too low for the partition field {field.name}"
        return reasons

    def event_times(self, rows: pa.Table) -> pa.Array:
        """Return event times in microseconds since the epoch."""
        return rows.column(self._event_time).combine_chunks().cast(pa.int64())


class RecordDecoder:
    """Decodes values, keys and headers of records to rows without coordinates."""

    def __init__(self, context: StageContext, schema: Schema, decode: Decoder) -> None:
        """`decode` decodes the values; with a transform, also keys and headers."""
        self._decode = decode
        columns = {} if context.transform else context.filled_from_keys_and_headers
        records = record_schema(schema, context.coordinates)
        self._add = KeyHeaderReader(records, columns, None if context.transform else KeyDecoder(context, records))
        tombstones = create_tombstone_decoder(context, schema)
        self._changes = ChangeReader(context.changes, tombstones) if context.changes else None

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        decoded = self._decode(chunk)
        if self._changes is None:
            return self._add(decoded, chunk)
        return self._changes(self._add(self._changes.add_tombstones(decoded, chunk), chunk), chunk)


def range_error_text(moment: OutOfRangeValue, record: bytes | None, *, quote: Quoter, units: Mapping[str, Unit]) -> str:
    """Return the error text, which quotes the value as sent in `record`. `units` has full column names."""
    words = None if record is None else quote(record, record_path(moment.path, units))
    unit = unit_of(units.get(".".join(moment.path)))
    return moment.error_text(words if words is None or unit is None else f"{words} (unit: {unit})")


def find_lowest_truncatable(schema: Schema, spec: PartitionSpec) -> Iterator[tuple[PartitionField, int | Decimal]]:
    """Yield each partition field that truncates numbers, with the lowest number it can truncate without overflow."""
    for field in spec.fields:
        if not isinstance(field.transform, TruncateTransform):
            continue
        kind = schema.find_type(field.source_id)
        if ends := find_limits(kind):
            lowest = -(-ends[0] // field.transform.width * field.transform.width)
            scale = kind.scale if isinstance(kind, DecimalType) else None
            yield field, lowest if scale is None else Decimal(lowest).scaleb(-scale, Context(prec=80))


PAYLOAD, PAYLOAD_IDS = "payload", 300_000_001
"""Field name of the object in Kafka Connect's JSON with a schema, `{schema, payload}`; the id of its first field."""


def create_tombstone_decoder(context: StageContext, schema: Schema) -> Decoder | None:
    """Return a decoder for the keys of tombstones; None if no field of a record key fills a key column."""
    if context.changes is None or not context.changes.key_fields:
        return None
    key = schema.select(*context.changes.key_fields)
    units = units_of_fields(key, context.record_units)
    of_key = {name: field_id for name, field_id in context.aliases.items() if key.find_column_name(field_id)}
    make = partial(create_decoder, without_unwrap(context.record_format))
    return TombstoneDecoder(lambda columns, units: create_aliased_decoder(make, columns, units, of_key), key, units)


class TombstoneDecoder:
    """Decodes the keys of tombstones, passed as a chunk's values, to rows of the key columns."""

    def __init__(
        self, make: Callable[[Schema, Mapping[int, Unit]], Decoder], key: Schema, units: Mapping[int, Unit]
    ) -> None:
        plain = [field.model_copy(update={"required": False}) for field in key.fields]
        # With a column of this name, keys with and without a schema look the same.
        self._wrapped = PAYLOAD not in key.column_names
        inner: list[NestedField] = []
        of_inner: dict[int, Unit] = {}
        for n, field in enumerate(plain if self._wrapped else []):
            inner.append(field.model_copy(update={"field_id": PAYLOAD_IDS + n, "name": f"{PAYLOAD}.{field.name}"}))
            of_inner[PAYLOAD_IDS + n] = with_path((PAYLOAD, field.name), units.get(field.field_id))
        self._schema = schema_to_pyarrow(Schema(*plain), include_field_ids=True)
        self._decode = make(Schema(*plain, *inner), {**units, **of_inner})

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        present = np.flatnonzero(chunk.values.lengths != NULL)
        decoded = self._decode(RecordChunk.of_column(chunk.values.take(present))).with_indexes(present)
        columns = [self._merge_payload(field.name, decoded.rows) for field in self._schema]
        failures = {r.index: r._replace(error=f"the record's key: {r.error}") for r in decoded.rejections}
        for field, column in zip(self._schema, columns, strict=True):
            text = f"the record's key: {field.name}: required, and missing or null"
            missing = decoded.record_indexes[column.is_null().to_numpy(zero_copy_only=False)]
            for index in (*missing.tolist(), *np.setdiff1d(np.arange(len(chunk)), present).tolist()):
                failures.setdefault(index, Rejection(index, "MissingRequired", text))
        good = ~np.isin(decoded.record_indexes, np.array([*failures], np.int64))
        rows = pa.Table.from_arrays(columns, schema=self._schema).filter(pa.array(good))
        return DecodedChunk(rows, decoded.record_indexes[good], [failures[index] for index in sorted(failures)])

    def _merge_payload(self, name: str, rows: pa.Table) -> pa.Array:
        present = rows.column(name).combine_chunks()
        if not self._wrapped:
            return present
        within = rows.column(f"{PAYLOAD}.{name}").combine_chunks()
        if isinstance(present, pa.ExtensionArray):  # a UUID, which Arrow's functions do not accept
            return pa.ExtensionArray.from_storage(present.type, pc.coalesce(present.storage, within.storage))
        return pc.coalesce(present, within)


FIRST_ALIAS_ID = 200_000_000
"""First field id of alias columns: above the ids of table columns, and below the ids of envelope fields."""

MakeDecoder = Callable[[Schema, Mapping[int, Unit]], FormatDecoder]
"""Creates a decoder for a schema. The mapping gives each column's encoding in records, by field id."""


def create_aliased_decoder(
    make: MakeDecoder, schema: Schema, units: Mapping[int, Unit], aliases: Mapping[str, int]
) -> Decoder:
    """Create a decoder that also fills columns from alias fields. `aliases` maps a field's name to its column's id."""
    fields = {name: schema.find_field(field_id) for name, field_id in aliases.items()}
    return AliasedDecoder(make, schema, units, fields) if fields else make(schema, units)


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
        fields = [f.model_copy(update={"required": f.required and f.field_id not in filled}) for f in schema.fields]
        self._defaults = find_defaults(schema, units)
        of_own = {i: without_settings(unit, "default") if i in filled else unit for i, unit in units.items()}
        self._filled_columns = {e.field_id: c for e, c in zip(extra, aliases.values(), strict=True)}
        of_extra = {i: of_own[c.field_id] for i, c in self._filled_columns.items() if c.field_id in units}
        self._decode = make(Schema(*fields, *extra, schema_id=schema.schema_id), {**of_own, **of_extra})
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
        complete = dataclasses.replace(decoded, rows=add_change_columns(rows, decoded.rows))
        return complete.reject_rows(find_nulls(rows, self._required))

    def _update_omitted(self, decoded: pa.Table, merged: Sequence[pa.ChunkedArray]) -> pa.Table:
        """Replace alias columns' ids in `_frazil_kept` by aliased columns' ids. Omits ids of columns with a value."""
        index = decoded.schema.get_field_index(OMITTED_COLUMNS)
        if index < 0 or decoded.column(index).null_count == decoded.num_rows:
            return decoded
        lists = decoded.column(index).to_pylist()
        null = {
            column.name: merged[self._arrow_schema.get_field_index(column.name)].is_null().to_pylist()
            for column in self._filled_columns.values()
        }
        for row, ids in enumerate(lists):
            if ids and not self._filled_columns.keys().isdisjoint(ids):
                unset = {c.field_id for i, c in self._filled_columns.items() if i in ids and null[c.name][row]}
                lists[row] = sorted(unset.union(ids) - self._filled_columns.keys())
        return decoded.set_column(index, decoded.schema.field(index), pa.array(lists, decoded.schema.field(index).type))
