"""Turns a chunk of records into rows that the table can hold; all other records become rejections."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import DecimalType

from frazil.errors import SpecError
from frazil.ingest.beside_value import BesideValue
from frazil.ingest.calendar_limits import OUT_OF_RANGE, Beyond, out_of_range
from frazil.ingest.changes import ChangeReader
from frazil.ingest.chunk import Chunk
from frazil.ingest.contract import OffsetRange, StageContext
from frazil.ingest.coordinates import Coordinates, record_schema
from frazil.ingest.decode import Decoded, Decoder, Rejection, line_numbers, whole_records
from frazil.ingest.formats import Quoter, has_lines, has_several_rows, quoter
from frazil.ingest.key_fields import key_decoder
from frazil.ingest.record_files import RowChunk
from frazil.ingest.schema_drift import SchemaDrift, joined_drift
from frazil.ingest.sensitive import Protector
from frazil.ingest.split import column_of
from frazil.spec.type_ends import ends_of


class Shaper:
    """Shapes chunks; a record's result depends on no other record."""

    def __init__(
        self,
        context: StageContext,
        schema: Schema,
        ranges: Sequence[OffsetRange],
        *,
        decode: Decoder,
        protect: Protector | None = None,
    ) -> None:
        self._decode = decode
        self._protect = protect
        self._beside = BesideValue(record_schema(schema, context.coordinates), context.beside)
        self._changes = ChangeReader(context.changes, key_decoder(context, schema)) if context.changes else None
        self._several = has_several_rows(context.record_format)
        lines = has_lines(context.record_format)
        self._coordinates = Coordinates(schema, ranges, wanted=context.coordinates, lines=lines)
        self._schema = schema
        self._least = list(least_truncatable(schema, PartitionSpec.model_validate_json(context.main.spec_json)))
        self._event_time = context.event_time_column
        self._within = context.event_times_us
        self._quote = quoter(context.record_format)
        self._units = context.units
        self.drift = SchemaDrift()
        """What the records so far have beyond the schema."""

    def __call__(self, chunk: Chunk) -> Decoded:
        """Return rows of the table's schema. A record outside a backfill's range is neither row nor rejection.

        A record of several rows lands whole or not at all: its offset is in one table, once.
        """
        decoded = self._decoded(chunk)
        if self._several:
            decoded = whole_records(decoded)
        rows = self._coordinates.complete(decoded.rows, chunk, decoded.kept)
        shaped = Decoded(rows, decoded.kept, decoded.rejections)
        if within := self._within:
            times = self.event_times(rows)
            wanted = pc.and_(pc.greater_equal(times, within[0]), pc.less(times, within[1])).fill_null(False)
            if self._several:
                wanted = pa.array(np.isin(shaped.kept, shaped.kept[wanted.to_numpy(False)]))
            shaped = Decoded(rows.filter(wanted), shaped.kept[wanted.to_numpy(False)], [])
        wrong = {
            **self._coordinates.out_of_range(chunk, shaped.kept),
            **self._untruncatable(shaped.rows),
            **self._out_of_range(chunk, shaped),
        }
        found = _without(shaped, wrong) if wrong else shaped
        return whole_records(found) if self._several else found

    def records_of(self, kept: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Mask of the first row of each record, given each row's record; None if each record is one row."""
        return line_numbers(kept) == 0 if self._several else None

    def _decoded(self, chunk: Chunk) -> Decoded:
        if isinstance(chunk, RowChunk):
            if self._protect:
                raise SpecError(
                    "rows of Parquet files cannot be backfilled into a stream with sensitive fields: their values may "
                    "or may not be protected already. Backfill from Kafka, or from JSON lines"
                )
            return Decoded(chunk.rows, np.arange(len(chunk)))
        decoded = self._decode(chunk)
        if decoded.drift:
            self.drift = joined_drift([self.drift, decoded.drift])
        if self._changes:
            decoded = self._changes.with_tombstones(decoded, chunk)
        whole = self._beside(decoded, chunk)
        if self._changes:
            whole = self._changes(whole, chunk)
        return dataclasses.replace(whole, rows=self._protect(whole.rows)) if self._protect else whole

    def _out_of_range(self, chunk: Chunk, shaped: Decoded) -> dict[int, str]:
        found: dict[int, str] = {}
        for row, moment in out_of_range(shaped.rows).items():
            record = None if isinstance(chunk, RowChunk) else chunk.values[shaped.kept[row]]
            found[row] = sentence_of(moment, record, quote=self._quote, units=self._units)
        return found

    def _untruncatable(self, rows: pa.Table) -> dict[int, str]:
        found: dict[int, str] = {}
        for field, least in self._least:
            values = column_of(rows, self._schema, field.source_id)
            below = pc.less(values, pa.scalar(least, values.type)).fill_null(False)
            name = self._schema.find_column_name(field.source_id)
            for row in np.flatnonzero(below.to_numpy(zero_copy_only=False)).tolist():
                found[row] = f"{name}: {values[row].as_py()} is too low for the partition field {field.name}"
        return found

    def event_times(self, rows: pa.Table) -> pa.Array:
        """Event times in microseconds since the epoch."""
        return rows.column(self._event_time).combine_chunks().cast(pa.int64())


def sentence_of(moment: Beyond, record: bytes | None, *, quote: Quoter, units: Mapping[str, str]) -> str:
    """The error text for a moment out of range; quotes the record if it has bytes.

    `units` has the unit of each column that arrives as a number.
    """
    words = None if record is None else quote(record, moment.path)
    unit = units.get(".".join(moment.path))
    return moment.text(words if words is None or unit is None else f"{words} (unit: {unit})")


def least_truncatable(schema: Schema, spec: PartitionSpec) -> Iterator[tuple[PartitionField, int | Decimal]]:
    """Partition fields that truncate numbers, each with the minimum whose truncation the type can hold."""
    for field in spec.fields:
        kind = schema.find_type(field.source_id)
        if isinstance(field.transform, TruncateTransform) and (ends := ends_of(kind)):
            least = -(-ends[0] // field.transform.width * field.transform.width)
            yield field, _scaled(least, kind) if isinstance(kind, DecimalType) else least


def _scaled(number: int, kind: DecimalType) -> Decimal:
    with localcontext(prec=2 * kind.precision):
        return Decimal(number).scaleb(-kind.scale)


def _without(shaped: Decoded, wrong: Mapping[int, str]) -> Decoded:
    """The same result with these rows as rejections."""
    rows = np.array(sorted(wrong))
    good = np.ones(len(shaped.kept), bool)
    good[rows] = False
    rejections = [Rejection(int(shaped.kept[row]), OUT_OF_RANGE, wrong[row]) for row in rows.tolist()]
    return Decoded(shaped.rows.filter(pa.array(good)), shaped.kept[good], [*shaped.rejections, *rejections])
