"""Decodes Debezium's change events (envelopes) to rows of a change file. For a create, an update or a snapshot read,
the row comes from `after`. For a delete, the key comes from `before`. An update of the key becomes a delete and an
upsert. A JSON event may be the `payload` of an object that also contains the schema.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg import types as iceberg
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import cast_unchecked, combine_chunks, select_where, to_mask, unwrap_extension
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.ingest.chunk import NULL, RecordChunk
from frazil.ingest.decode import DecodedChunk, DecoderOptions, FormatDecoder, Rejection
from frazil.ingest.formats.debezium import PlaceholderFinder, is_null_ambiguous
from frazil.ingest.formats.fields import FieldTree, MakeDecoder
from frazil.ingest.formats.json.types import AS_JSON, AS_TEXT, JSON_IN_TEXT
from frazil.ingest.schema_drift import DriftScope
from frazil.ingest.source_log import POSITIONS, encode_positions
from frazil.spec.formats import POSITION, Envelope

BEFORE_IDS, PAYLOAD_IDS, OWN_IDS, OBJECT_IDS = 1_000_000_000, 500_000_000, 1_900_000_000, 1_950_000_000
"""First field ids: columns in `before`, fields in `payload`, other fields that are not columns, and objects."""
NOT_AN_ENVELOPE, TRUNCATED, UNAVAILABLE = "NotAnEnvelope", "Truncated", "UnavailableValue"
UNAVAILABLE_NULL = (
    "null, but the connector also writes null for a large value of this type that an update did not change. Set "
    "replica identity full on the source's table"
)
UNAVAILABLE_TEXT = (
    "the placeholder for a value that the event omits. The event creates a row, or changes a row's key, and so needs "
    "every value. Set replica identity full on the source's table"
)
_JSON_ARRIVES_AS = {AS_JSON: JSON_IN_TEXT}
"""Units of Debezium's events that differ from plain JSON: JSON values are strings (`io.debezium.data.Json`)."""
MONGODB_REMEDY = (
    "MongoDB's connector writes documents as text: declare no envelope, and a column {type: string, from: after}, as "
    "in the guide on captured changes"
)
_ROW_ERROR_START = re.compile(r"(?:payload\.)?(?:after|before): (?=required|expected an object)")
_SKIPPED_OPERATIONS = ("m",)
"""Operations that change no row: `m` is an application's message in the log."""
_ROW_OPERATIONS = ("c", "u", "r")
_DRIFT_SCOPE = tuple(
    DriftScope(path, selector="op", values=frozenset(_ROW_OPERATIONS)) for path in (("after",), ("payload", "after"))
)


class EnvelopeDecoder(FormatDecoder):
    """Decodes change events. Ignores events that change no row, and the tombstones after delete events."""

    def __init__(
        self, make: MakeDecoder, envelope: Envelope, schema: Schema, units: Mapping[int, str], options: DecoderOptions
    ) -> None:
        """`schema` has the columns that an event fills; only its key is required. Only drift in `after` is reported."""
        self._envelope = envelope
        self._schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._key = [[field.name] for field in schema.fields if field.required]  # names, then aliases
        self._columns = [field for field in schema.fields if field.name not in envelope.metadata]
        self._positions = [column for column, path in envelope.metadata.items() if path == POSITION]
        self._unavailable = PlaceholderFinder(envelope.unavailable)
        self._null_hiding = {field.name: [field.name] for field in self._columns if is_null_ambiguous(field.field_type)}
        self._ids = {field.name: field.field_id for field in schema.fields}
        self._as_json = {field.name for field in schema.fields if units.get(field.field_id) == AS_TEXT}
        within = dataclasses.replace(options, within=_DRIFT_SCOPE)
        self._make_decoder = partial(self._make, make, schema, units, within)
        self._decode = self._make_decoder()

    def _make(
        self, make: MakeDecoder, schema: Schema, units: Mapping[int, str], options: DecoderOptions
    ) -> FormatDecoder:
        layers = self._envelope_fields(schema)
        payload = iceberg.NestedField(
            OWN_IDS, "payload", iceberg.StructType(*_shift_ids(layers, PAYLOAD_IDS)), required=False
        )
        of_before = {BEFORE_IDS + i: unit for i, unit in units.items()}
        plain = {i: _JSON_ARRIVES_AS.get(unit, unit) for i, unit in {**units, **of_before}.items()}
        shifted = {PAYLOAD_IDS + i: unit for i, unit in plain.items()}
        return make(Schema(*layers, payload, schema_id=schema.schema_id), {**plain, **shifted}, options)

    def rename(self, aliases: Mapping[str, str], required: Collection[str]) -> None:
        for alias, column in aliases.items():
            self._null_hiding.get(column, []).extend(self._null_hiding.pop(alias, []))
        renamed = [[name, *(alias for alias, current in aliases.items() if current == name)] for name in required]
        if renamed:  # key columns, for which `before` still has the old names
            self._key += renamed
            self._decode = self._make_decoder()

    @property
    def _key_names(self) -> set[str]:
        return {name for names in self._key for name in names}

    def _envelope_fields(self, schema: Schema) -> list[iceberg.NestedField]:
        next_id = partial(next, count(OWN_IDS + 1))
        after = [
            field.model_copy(update={"required": False, "field_type": self._event_type(field.field_type, next_id)})
            for field in self._columns
        ]
        before = _shift_ids([field for field in after if field.name in self._key_names], BEFORE_IDS)
        tree = FieldTree(lists=False, first_id=OBJECT_IDS)
        tree.put(("op",), iceberg.NestedField(next_id(), "op", iceberg.StringType(), required=False))
        for column, path in reversed([*self._envelope.metadata.items()]):  # if a path occurs twice, the last one counts
            if path != POSITION:
                field = schema.find_field(column).model_copy(update={"required": False})
                tree.put(tuple(path.split(".")), field)
        for name, kind in POSITIONS.items() if self._positions else ():
            tree.put(("source", name), iceberg.NestedField(next_id(), name, kind, required=False))
        return [
            iceberg.NestedField(next_id(), "after", iceberg.StructType(*after), required=False),
            iceberg.NestedField(next_id(), "before", iceberg.StructType(*before), required=False),
            *tree.fields(),
        ]

    def _event_type(self, kind: iceberg.IcebergType, next_id: Callable[[], int]) -> iceberg.IcebergType:
        if isinstance(kind, iceberg.StructType):
            return self._unavailable.add_placeholder_field(kind, next_id)
        if self._envelope.times == "iso":
            return kind
        if isinstance(kind, iceberg.ListType) and isinstance(kind.element_type, iceberg.DateType):
            return iceberg.ListType(kind.element_id, iceberg.IntegerType(), element_required=kind.element_required)
        if isinstance(kind, iceberg.DateType):
            return iceberg.IntegerType()
        return iceberg.LongType() if isinstance(kind, iceberg.TimeType) else kind

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        decoded = self._decode(chunk)
        absent = chunk.values.lengths == NULL
        rejections = [r for r in decoded.rejections if not absent[r.index]]
        parts = _Events.from_rows(decoded.rows)
        op = parts.at(["op"])
        deletes, states = to_mask(pc.equal(op, "d")), to_mask(pc.is_in(op, pa.array(_ROW_OPERATIONS)))
        errors = self._find_errors(parts, op, deletes, states)
        skipped = to_mask(pc.is_in(op, pa.array(_SKIPPED_OPERATIONS)))
        for row in np.flatnonzero(to_mask(op.is_null())).tolist():
            if self._decode.changes_no_row(chunk.values[int(decoded.record_indexes[row])] or b""):
                skipped[row] = True
                del errors[row]
        columns = self._column_values(parts, deletes)
        for names in self._key:
            missing = np.all([to_mask(columns[name].is_null()) for name in names], axis=0)
            for row in np.flatnonzero(missing & (deletes | states)).tolist():
                where = "before" if deletes[row] else "after"
                errors.setdefault(row, ("MissingRequired", f"{where}.{names[0]}: required, and missing or null"))
        for row, reason in self._find_ambiguous_nulls(parts, op, columns, self._after_names(chunk, decoded, parts)):
            errors.setdefault(row, reason)
        snapshot = to_mask(pc.equal(op, "r"))
        unavailable, columns = self._find_unchanged(columns, snapshot=snapshot)
        moved = self._find_key_changes(parts, op)
        created = to_mask(pc.equal(op, "c")) | moved
        for name, mask in unavailable.items():
            for row in np.flatnonzero(mask & created).tolist():
                errors.setdefault(row, (UNAVAILABLE, f"after.{name}: {UNAVAILABLE_TEXT}"))
        unplaced = 0
        for name in self._positions:  # the row keeps the log position of its last change
            if (mask := to_mask(columns[name].is_null()) & states).any():
                unavailable[name] = mask
            unplaced += int(np.count_nonzero(to_mask(columns[name].is_null()) & (states | deletes) & ~snapshot))
            columns[name] = pc.if_else(pa.array(snapshot), None, columns[name])
        omitted = self._unchanged_lists(unavailable, len(op))
        good = ~skipped
        good[list(errors)] = False
        rows, records = self._build_rows(columns, deletes, omitted).filter(pa.array(good)), decoded.record_indexes[good]
        if (moved := moved & good).any():
            rows = pa.concat_tables([rows, self._delete_old_keys(parts, moved)])
            records = np.concatenate([records, decoded.record_indexes[moved]])
        added = [Rejection(int(decoded.record_indexes[row]), *errors[row]) for row in sorted(errors)]
        drift = self._unavailable.without_placeholder(decoded.drift)
        # A record without known fields is a rejection already, or an event that changes no row, such as a heartbeat.
        drift = dataclasses.replace(drift, unknown=0, names=(), unplaced=unplaced)
        return DecodedChunk(rows, records, [self._explain(r, chunk) for r in (*rejections, *added)], drift)

    @staticmethod
    def _explain(rejection: Rejection, chunk: RecordChunk) -> Rejection:
        layer = _ROW_ERROR_START.match(rejection.error)
        if layer is None or b"mongodb" not in (chunk.values[rejection.index] or b""):
            return rejection
        return rejection._replace(error=f"{layer[0]}{MONGODB_REMEDY}")

    def _build_rows(self, columns: Mapping[str, pa.Array], deletes: NDArray[np.bool_], omitted: pa.Array) -> pa.Table:
        arrays = [cast_unchecked(columns[field.name], field.type) for field in self._schema]
        change = pa.array(np.where(deletes, DELETE, UPSERT).astype(np.int32))
        schema = pa.schema([field.with_nullable(True) for field in self._schema])
        rows = pa.Table.from_arrays(arrays, schema=schema).append_column(CHANGE, change)
        return rows.append_column(OMITTED_COLUMNS, omitted)

    def _find_key_changes(self, parts: _Events, op: pa.Array) -> NDArray[np.bool_]:
        """Return a mask of the updates that change the key. Ignores updates without the whole key in `before`."""
        changed = np.zeros(len(op), np.bool_)
        comparable = to_mask(pc.equal(op, "u")) & parts.is_present("before")
        for names in self._key if comparable.any() else ():
            before, after = (
                _coalesce([parts.of_column(layer, name) for name in names]) for layer in ("before", "after")
            )
            comparable &= to_mask(before.is_valid())
            changed |= to_mask(pc.not_equal(before, after))
        return changed & comparable

    def _delete_old_keys(self, parts: _Events, moved: NDArray[np.bool_]) -> pa.Table:
        filled, count = self._key_names | {*self._envelope.metadata}, len(moved)
        nulls = {field.name: pa.nulls(count, field.type) for field in self._schema if field.name not in filled}
        rows = self._build_rows(
            {**self._column_values(parts, moved), **nulls}, moved, pa.nulls(count, pa.list_(pa.int32()))
        )
        return rows.filter(pa.array(moved))

    def _find_errors(
        self, parts: _Events, op: pa.Array, deletes: NDArray[np.bool_], states: NDArray[np.bool_]
    ) -> dict[int, tuple[str, str]]:
        errors: dict[int, tuple[str, str]] = {}
        for row in np.flatnonzero(~deletes & ~states & ~to_mask(pc.is_in(op, pa.array(_SKIPPED_OPERATIONS)))).tolist():
            operation = op[row].as_py()
            if operation == "t":
                text = "op: t: the source's table was truncated; its rows are still in this table: delete them by hand"
                errors[row] = (TRUNCATED, text)
            elif operation is None:
                text = "op: missing: this is not a Debezium event; if a transform unwraps events, declare no envelope"
                errors[row] = (NOT_AN_ENVELOPE, text)
            else:
                errors[row] = (NOT_AN_ENVELOPE, f"op: expected c, u, r, d, t or m, got {operation!r:.50}")
        for name, rows in (("after", states), ("before", deletes)):
            for row in np.flatnonzero(rows & ~parts.is_present(name)).tolist():
                hint = "; give the source's table a replica identity" if name == "before" else ""
                errors[row] = ("MissingRequired", f"{name}: required, and missing or null{hint}")
        return errors

    def _column_values(self, parts: _Events, deletes: NDArray[np.bool_]) -> dict[str, pa.Array]:
        """Return the values of all columns. For a delete, only key and metadata columns are valid."""
        columns, key = {}, self._key_names
        for field in self._columns:
            values = parts.of_column("after", field.name)
            if field.name in key and deletes.any():
                values = select_where(deletes, parts.of_column("before", field.name), values)
            columns[field.name] = _convert_times(values, field.field_type) if self._envelope.times != "iso" else values
        for column, path in self._envelope.metadata.items():
            columns[column] = parts.position() if path == POSITION else parts.at(path.split("."))
        return columns

    def _find_unchanged(
        self, columns: dict[str, pa.Array], *, snapshot: NDArray[np.bool_]
    ) -> tuple[dict[str, NDArray[np.bool_]], dict[str, pa.Array]]:
        """Return a mask of placeholders for each column that has any, and all columns with nulls in their place.

        Snapshot events and keys have no placeholders. If a value there looks like a placeholder, it is kept.
        """
        masks: dict[str, NDArray[np.bool_]] = {}
        key = self._key_names
        for field in self._columns:
            if field.name in key:
                continue
            mask, values = self._unavailable(columns[field.name], as_json=field.name in self._as_json)
            mask &= ~snapshot
            if mask.any():
                masks[field.name] = mask
                values = values.take(pa.array(np.arange(len(mask)), mask=mask))
            columns = {**columns, field.name: values}
        return masks, columns

    def _unchanged_lists(self, masks: Mapping[str, NDArray[np.bool_]], count: int) -> pa.Array:
        lists: list[list[int] | None] = [None] * count
        for row in np.flatnonzero(np.any([*masks.values()], axis=0)).tolist() if masks else ():
            lists[row] = [self._ids[name] for name, mask in masks.items() if mask[row]]
        return pa.array(lists, pa.list_(pa.int32()))

    def _find_ambiguous_nulls(
        self, parts: _Events, op: pa.Array, columns: dict[str, pa.Array], after_names: Callable[[int], Collection[str]]
    ) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield the row and error of each update with an ambiguous null: without `before`, null may mean "unchanged".

        A missing field is not ambiguous, because the connector omits the whole column.
        """
        bare = to_mask(pc.equal(op, "u")) & ~parts.is_present("before") & parts.is_present("after")
        for names in self._null_hiding.values() if bare.any() else ():
            nulls = np.all([to_mask(columns[name].is_null()) for name in names], axis=0)
            for row in np.flatnonzero(bare & nulls).tolist():
                for name in [name for name in names if name in after_names(row)][:1]:
                    yield row, (UNAVAILABLE, f"after.{name}: {UNAVAILABLE_NULL}")

    def _after_names(
        self, chunk: RecordChunk, decoded: DecodedChunk, parts: _Events
    ) -> Callable[[int], Collection[str]]:
        names = self._decode.field_names

        @cache
        def after_names(row: int) -> Collection[str]:
            layers = ("payload", "after") if parts.wrapped[row] else ("after",)
            return names(chunk.values[int(decoded.record_indexes[row])] or b"", layers)

        return after_names


@dataclass(frozen=True, slots=True)
class _Events:
    """Decoded events. If `wrapped`, the event is the record's `payload`; otherwise, it is the record itself."""

    rows: dict[str, pa.Array]
    payload: pa.StructArray
    wrapped: NDArray[np.bool_]

    @classmethod
    def from_rows(cls, rows: pa.Table) -> _Events:
        columns = {name: combine_chunks(rows.column(name)) for name in rows.column_names}
        payload = columns.pop("payload")
        return cls(columns, payload, to_mask(payload.is_valid()))

    def _field(self, name: str) -> pa.Array:
        if not self.wrapped.any():
            return self.rows[name]
        return select_where(self.wrapped, pc.struct_field(self.payload, name), self.rows[name])

    def is_present(self, name: str) -> NDArray[np.bool_]:
        return to_mask(self._field(name).is_valid())

    def of_column(self, layer: str, name: str) -> pa.Array:
        return pc.struct_field(self._field(layer), name)

    def at(self, path: list[str]) -> pa.Array:
        column = self._field(path[0])
        for name in path[1:]:
            column = pc.struct_field(column, name)
        return column

    def position(self) -> pa.Array:
        return encode_positions({name: self.at(["source", name]) for name in POSITIONS})


def _shift_ids(fields: list[iceberg.NestedField], by: int) -> list[iceberg.NestedField]:
    text = iceberg.StructType(*fields).model_dump()

    def moved(value: object) -> object:
        if isinstance(value, dict):
            return {
                k: v + by if k in {"id", "element-id", "key-id", "value-id"} and isinstance(v, int) else moved(v)
                for k, v in value.items()
            }
        return [moved(v) for v in value] if isinstance(value, list | tuple) else value

    return list(iceberg.StructType.model_validate(moved(text)).fields)


def _coalesce(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return each row's first value that is not null. UUIDs become bytes."""
    return reduce(
        lambda first, other: select_where(to_mask(first.is_valid()), first, other), map(unwrap_extension, arrays)
    )


def _convert_times(values: pa.Array, kind: iceberg.IcebergType) -> pa.Array:
    if isinstance(kind, iceberg.DateType):
        return values.cast(pa.int32()).cast(pa.date32())
    return values.cast(pa.time64("us")) if isinstance(kind, iceberg.TimeType) else values
