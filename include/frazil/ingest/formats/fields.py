"""Fills columns from fields that have other names, or are nested elsewhere in the record.

First, the format's decoder reads the record with the record's own names and nesting. Then the values are moved to the
columns.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, index_by_name
from pyiceberg.types import DecimalType, IcebergType, ListType, NestedField, PrimitiveType, StringType, StructType

from frazil.errors import SpecError
from frazil.ingest.arrow_values import combine_chunks
from frazil.ingest.changes import add_change_columns
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.decode import PLAIN, DecodedChunk, DecoderOptions, FormatDecoder, find_nulls, join_results
from frazil.ingest.formats.json.types import AS_JSON, AS_TEXT, LISTED, OF_REST
from frazil.ingest.formats.text_rewrites import (
    convert_debezium_times,
    convert_iso_times,
    replace_with_null,
    rewrite,
    round_numbers,
    rules_of,
)
from frazil.ingest.schema_drift import WHOLE_RECORD, Path, SchemaDrift, join_drift
from frazil.spec.values import FieldPath

WHOLE_KEY = "key"

FIRST_CONTAINER_ID = 400_000_000
Unit = str | Mapping[str, Any]
EMPTY_UNITS: Mapping[int, Unit] = MappingProxyType({})
"""How a column's values arrive in records: as a unit (`json.types.Units`), or with settings (`ColumnSource`)."""
MakeDecoder = Callable[[Schema, Mapping[int, str], DecoderOptions], FormatDecoder]


@dataclass(frozen=True, slots=True)
class ColumnSource:
    unit: str | None = None
    path: FieldPath | None = None
    """The field's path; None if its name is the column's."""
    is_lenient: bool = False
    rounding: str | None = None
    """How decimals are rounded; None rejects decimals with more digits than the column's scale."""
    nulls: tuple[Any, ...] = ()
    default: Any = None
    """The value for a missing or null field, written as in records."""

    @classmethod
    def of(cls, unit: Unit | None) -> ColumnSource:
        if unit is None or isinstance(unit, str):
            return cls(unit)
        path = unit.get("from")
        casts = unit.get("cast") == "lenient", unit.get("rounding")
        return cls(unit.get("unit"), path and tuple(path), *casts, tuple(unit.get("null-if", ())), unit.get("default"))

    def needs_text(self, field: NestedField) -> bool:
        """Whether the value must be read as text first, to convert it."""
        return bool(self.nulls or self.rounding or (self.is_lenient and rules_of(field.field_type, self.unit)))


def unit_of(unit: Unit | None) -> str | None:
    return ColumnSource.of(unit).unit


def without_settings(unit: Unit, *names: str) -> Unit:
    return unit if isinstance(unit, str) else {name: value for name, value in unit.items() if name not in names}


def with_path(path: FieldPath, unit: Unit | None) -> Unit:
    plain = {} if unit is None else {"unit": unit} if isinstance(unit, str) else unit
    return {**plain, "from": path}


def may_have_aliases(unit: Unit | None) -> bool:
    return unit != OF_REST and ColumnSource.of(unit).path is None


def record_path(column: Path, units: Mapping[str, Unit]) -> FieldPath:
    """Return the path of a column's value in records. `units` has units by column name."""
    return (*(ColumnSource.of(units.get(column[0])).path or column[:1]), *column[1:])


@dataclass(frozen=True, slots=True)
class RecordShape:
    within: Path = ()
    """The path of the object that contains the fields; empty if the record itself contains them."""
    lists: bool = True
    times: bool = False
    """Whether dates and times may be numbers, as in Debezium's events."""
    is_object_optional: bool = False
    """Whether a record without the object at `within` becomes nulls instead of an error."""


def create_fields_decoder(
    make: MakeDecoder, schema: Schema, units: Mapping[int, Unit], records: RecordShape, options: DecoderOptions = PLAIN
) -> FormatDecoder:
    is_plain = all(isinstance(unit, str) for unit in units.values())
    if records.within or not is_plain or any(field.write_default is not None for field in schema.fields):
        casting = FieldsDecoder(make, schema, units, records, options)
        strict = {field_id: without_settings(unit, "cast", "rounding") for field_id, unit in units.items()}
        if strict == units or not casting.has_compiled_loop:
            return casting
        lenient = [f.name for f in schema.fields if ColumnSource.of(units.get(f.field_id)).is_lenient]
        plain = FieldsDecoder(make, schema, strict, records, options)
        return CastingDecoder(casting, plain, lenient, reports_drift=options.drift != "off")
    return make(schema, cast("Mapping[int, str]", units), options)


class FieldsDecoder(FormatDecoder):
    def __init__(
        self,
        make: MakeDecoder,
        schema: Schema,
        units: Mapping[int, Unit],
        records: RecordShape,
        options: DecoderOptions = PLAIN,
    ) -> None:
        """Omits each field in `options.hidden` at its column path and at its path in records."""
        within, lists = records.within, records.lists
        readings = {field_id: ColumnSource.of(unit) for field_id, unit in units.items()}
        plain = {field_id: reading.unit for field_id, reading in readings.items() if reading.unit}
        self._within = within
        self._paths = {
            field.name: readings.get(field.field_id, _PLAIN_SOURCE).path or (field.name,) for field in schema.fields
        }
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._defaults = find_defaults(schema, units)
        widening = options if options.drift == "full" else PLAIN  # texts are not searched for new fields
        inside = dataclasses.replace(widening, hidden=(), within=WHOLE_RECORD)
        self._inside = self._text_decoders(schema, units, plain, inside) if not lists else {}
        inner = {name for decode in self._inside.values() for name in decode.columns}
        fields = [field for field in schema.fields if field.name not in inner]
        self._own = [field.name for field in fields]
        shape = FieldTree(lists=lists, required=() if records.is_object_optional else within)
        forms: dict[FieldPath, set[tuple[IcebergType, ColumnSource]]] = {}
        for field in fields:
            form = (field.field_type, dataclasses.replace(readings.get(field.field_id, _PLAIN_SOURCE), path=None))
            forms.setdefault(shape.error_path(self._paths[field.name]), set()).add(form)
        texts = {
            field: reading
            for field in fields
            if (reading := readings.get(field.field_id, _PLAIN_SOURCE)).needs_text(field)
            or len(forms[shape.error_path(self._paths[field.name])]) > 1  # elements of one list, read in several ways
        }
        self._texts = _TextColumns(texts, plain, self._defaults, inside, times=records.times) if texts else None
        for field in fields:
            as_text = {"field_type": StringType(), "required": False} if field in texts else {}
            optional = {"required": False} if field.name in self._defaults else {}
            shape.put((*within, *self._paths[field.name]), field.model_copy(update={**as_text, **optional}))
        # The constructor would fail: its index of names refuses a field "a.b" next to the field b of an object a.
        record = Schema.model_construct(fields=tuple(shape.fields()), schema_id=schema.schema_id)
        record._name_to_id = {field.name: field.field_id for field in record.fields}
        of_texts = {field.field_id: AS_TEXT for field in texts}
        columns = {name.lower(): tuple(str(step).lower() for step in path) for name, path in self._paths.items()}
        moved = [(*columns[path[0]], *path[1:]) for path in options.hidden if path[0] in columns]
        scopes = tuple(part._replace(path=within + part.path) for part in options.within)
        options = dataclasses.replace(options, hidden=[*options.hidden, *moved], within=scopes)
        self._decode = make(record, {**plain, **of_texts, **shape.units}, options)
        self._optional = [
            field.name
            for field in fields
            if field.required and field not in texts and any(isinstance(step, int) for step in self._paths[field.name])
        ]
        paths = {".".join(map(str, shape.error_path((*within, *path)))): name for name, path in self._paths.items()}
        self._errors = sorted(paths.items(), reverse=True)

    def _text_decoders(
        self, schema: Schema, units: Mapping[int, Unit], plain: Mapping[int, str], options: DecoderOptions
    ) -> dict[str, FieldsDecoder]:
        """Return decoders of JSON text columns, by column name. They fill the columns of fields inside the text."""
        from frazil.ingest.formats.json.decoder import JsonDecoder  # the compiler, only where records are read

        outer = [(self._paths[f.name], f.name) for f in schema.fields if plain.get(f.field_id) == AS_JSON]
        inside: dict[FieldPath, list[NestedField]] = {}
        for field in schema.fields:
            path = self._paths[field.name]
            if around := [
                outer_path
                for outer_path, _ in outer
                if len(outer_path) < len(path) and path[: len(outer_path)] == outer_path
            ]:
                inside.setdefault(min(around, key=len), []).append(field)
        names = dict(outer)
        return {
            names[path]: FieldsDecoder(
                JsonDecoder,
                Schema(*fields),
                {f.field_id: with_path(self._paths[f.name][len(path) :], units.get(f.field_id)) for f in fields},
                RecordShape((".".join(map(str, path)),), lists=False, is_object_optional=True),
                options,
            )
            for path, fields in inside.items()
        }

    @property
    def columns(self) -> list[str]:
        return [*self._arrow_schema.names]

    @property
    def has_compiled_loop(self) -> bool:
        return hasattr(self._decode, "cast")

    @property
    def may_omit_rows(self) -> bool:
        """Whether a row may be left out after the compiled loop has read its record."""
        return bool(self._texts or self._inside or self._optional)

    def cast(self, names: Collection[str]) -> None:
        """Cast values of these columns in the compiled loop. Leaves out records that the loop cannot decode."""
        paths = {name: self._paths[name] for name in names if name in self._own}
        plain = {name: (*self._within, *path) for name, path in paths.items() if all(isinstance(s, str) for s in path)}
        texts = self._texts.columns if self._texts else ()
        self._decode.cast({name: path for name, path in plain.items() if name not in texts})  # type: ignore[attr-defined]
        if self._texts:
            self._texts.decode.cast({})
        for inside in self._inside.values():
            inside.cast([name for name in names if name not in self._own])

    def rename(self, aliases: Mapping[str, str], required: Collection[str]) -> None:
        self._decode.rename(aliases, required)

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        decoded = self._decode(chunk)
        rows = [_column_at(decoded.rows, (*self._within, *self._paths[name])) for name in self._own]
        moved = add_change_columns(pa.Table.from_arrays(rows, names=self._own), decoded.rows)
        rejections = [r._replace(error=self._use_column_name(r.error)) for r in decoded.rejections]
        drift = self._map_drift(decoded.drift)
        final = dataclasses.replace(decoded, rows=moved, rejections=rejections, drift=drift)
        if self._texts:
            final = self._texts(final)
        for name, decode in self._inside.items():
            final = decode.add_from_texts(final, name)
        names = self.columns
        rows = [fill_nulls(final.rows.column(name), self._defaults.get(name)) for name in names]
        final = dataclasses.replace(final, rows=add_change_columns(pa.Table.from_arrays(rows, names=names), final.rows))
        return reject_missing(final, self._optional, self._arrow_schema)

    def add_from_texts(self, decoded: DecodedChunk, name: str) -> DecodedChunk:
        """Add the columns that are filled from fields inside the JSON texts of the column `name`."""
        texts = pc.fill_null(combine_chunks(decoded.rows.column(name)), "null")
        (key,) = self._within
        around = _text_scalar(f"{{{json.dumps(key, ensure_ascii=False)}:"), texts, _text_scalar("}\n"), _text_scalar("")
        from_texts = self(RecordChunk.of_column(as_lines(pc.binary_join_element_wise(*around))))
        drift = dataclasses.replace(from_texts.drift, new={}, records=0, unknown=0, names=())
        return _merge_columns(decoded, dataclasses.replace(from_texts, drift=drift), self.columns)

    def _use_column_name(self, error: str) -> str:
        for prefix, name in self._errors:
            if error.startswith(prefix) and error[len(prefix) : len(prefix) + 1] in {":", "."}:
                return name + error[len(prefix) :]
        return error

    def _map_drift(self, drift: SchemaDrift) -> SchemaDrift:
        """Replace paths in records by column paths. Omits new fields of objects that already fill columns."""
        if not drift.is_change:
            return drift
        names = {path: name for name, path in self._paths.items()}
        declared = {str(first).lower() for path in names for first in (path[0], names[path])}

        def moved(path: Path) -> Path | None:
            for end in range(len(path), 0, -1):
                if (name := names.get(path[:end])) is not None:
                    return (name, *path[end:])
            return None if path[0].lower() in declared else path

        new = {path_in: kind for path, kind in drift.new.items() if (path_in := moved(path))}
        wider = {there: kind for path, kind in drift.wider.items() if (there := moved(path))}
        around = {
            (name,)
            for path in drift.optional
            for inner, name in names.items()
            if inner[: len(path)] == path and not self._arrow_schema.field(name).nullable and name not in self._defaults
        }
        optional = frozenset(around | {there for path in drift.optional if (there := moved(path))})
        records = drift.records if new else 0
        return dataclasses.replace(drift, new=new, wider=wider, optional=optional, records=records)


class CastingDecoder(FormatDecoder):
    """Casts values in the compiled loop. If the loop cannot decode a record, casts its values' JSON texts instead."""

    def __init__(
        self, casting: FieldsDecoder, strict: FieldsDecoder, lenient: Collection[str], *, reports_drift: bool
    ) -> None:
        self._casting, self._strict, self._reports_drift = casting, strict, reports_drift
        strict.cast(lenient)

    def rename(self, aliases: Mapping[str, str], required: Collection[str]) -> None:
        for decode in (self._casting, self._strict):
            decode.rename(aliases, required)

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        def decode_some(decode: FieldsDecoder, mask: NDArray[np.bool_]) -> DecodedChunk:
            positions = np.flatnonzero(mask)
            return decode(chunk.select(positions, chunk.target)).with_indexes(positions)

        if self._reports_drift and self._strict.may_omit_rows:
            return self._casting(chunk)  # `_strict` would decode rows twice, and samples a new field only once
        result = self._strict(chunk)
        if len(result.record_indexes) == len(chunk):
            return result
        is_left = np.ones(len(chunk), np.bool_)
        is_left[result.record_indexes] = False
        if self._strict.may_omit_rows:  # it has counted the casts and new fields of these
            result = decode_some(self._strict, ~is_left)
        return join_results([result, decode_some(self._casting, is_left)])


class _TextColumns:
    """Casts the JSON texts of columns' values, then decodes the texts by the strict rules for records."""

    def __init__(
        self,
        columns: Mapping[NestedField, ColumnSource],
        units: Mapping[int, str],
        optional: Collection[str],
        options: DecoderOptions,
        *,
        times: bool,
    ) -> None:
        from frazil.ingest.formats.json.decoder import JsonDecoder  # the compiler, only where records are read

        self.columns = {field.name: (field, reading) for field, reading in columns.items()}
        self._times = times
        fields = [
            field.model_copy(update={"required": field.required and field.name not in optional}) for field in columns
        ]
        ids = {field.field_id for field in fields}
        self.decode = JsonDecoder(Schema(*fields), {i: unit for i, unit in units.items() if i in ids}, options)

    def __call__(self, decoded: DecodedChunk) -> DecodedChunk:
        parts: list[pa.Array | pa.Scalar] = []
        cast: dict[str, pa.Array] = {}
        for n, (name, (field, reading)) in enumerate(self.columns.items()):
            column = combine_chunks(decoded.rows.column(name))
            # Decimals are read from strings, too, so no cast makes numbers of these first.
            in_strings = isinstance(field.field_type, DecimalType)
            texts = replace_with_null(column, reading.nulls, numbers_in_strings=in_strings)
            values = texts
            if reading.is_lenient:
                values = rewrite(texts, rules_of(field.field_type, reading.unit))
                values = values if reading.unit is None else convert_iso_times(values, reading.unit)
            if reading.rounding and isinstance(field.field_type, DecimalType):
                values = round_numbers(values, field.field_type.scale, reading.rounding)
            if values is not texts:
                cast[name] = pc.fill_null(pc.not_equal(values, texts), False)
                values = replace_with_null(values, [null for null in reading.nulls if not isinstance(null, str)])
            if self._times:
                values = convert_debezium_times(values, field.field_type)
            parts += [
                _text_scalar(f"{',' if n else '{'}{json.dumps(name, ensure_ascii=False)}:"),
                pc.fill_null(values, "null"),
            ]
        records = pc.binary_join_element_wise(*parts, _text_scalar("}\n"), _text_scalar(""))
        result = self.decode(RecordChunk.of_column(as_lines(records)))
        counts = {name: pc.sum(mask.take(pa.array(result.record_indexes))).as_py() or 0 for name, mask in cast.items()}
        drift = dataclasses.replace(result.drift, unknown=0, names=(), cast={n: c for n, c in counts.items() if c})
        return _merge_columns(decoded, dataclasses.replace(result, drift=drift), [*self.columns])


def _merge_columns(decoded: DecodedChunk, texts: DecodedChunk, names: Collection[str]) -> DecodedChunk:
    """Add the named columns and the rejections of `texts` to `decoded`. Record i of `texts` is row i of `decoded`."""
    order = np.argsort(texts.record_indexes, kind="stable")
    positions = texts.record_indexes[order]
    rows = decoded.rows.take(pa.array(positions))
    for name in names:
        column, index = texts.rows.column(name).take(pa.array(order)), rows.schema.get_field_index(name)
        rows = rows.append_column(name, column) if index < 0 else rows.set_column(index, name, column)
    rejections = [r._replace(index=int(decoded.record_indexes[r.index])) for r in texts.rejections]
    return dataclasses.replace(
        decoded,
        rows=rows,
        record_indexes=decoded.record_indexes[positions],
        rejections=[*decoded.rejections, *rejections],
        drift=join_drift([decoded.drift, texts.drift]),
    )


def _text_scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def as_lines(texts: pa.Array) -> BinaryColumn:
    """Return an array's texts as record values, without their final newlines. Copies no bytes."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset :][: len(texts) + 1]
    return BinaryColumn(np.frombuffer(data or b"", np.uint8), ends[:-1], np.diff(ends) - 1)


def default_of(field: NestedField, unit: Unit | None) -> pa.ChunkedArray | None:
    """Return a column's declared default, or else the table's, as an array of one. Raises SpecError if invalid."""
    from frazil.ingest.formats.json.decoder import JsonDecoder
    from frazil.ingest.formats.json.text import MAX_DEPTH
    from frazil.ingest.variants import VariantEncoder

    reading = ColumnSource.of(unit)
    default, units = reading.default, {field.field_id: reading.unit} if reading.unit else {}
    if default is None and field.write_default is not None and isinstance(field.field_type, PrimitiveType):
        value = field.write_default
        default = base64.b64encode(value).decode() if isinstance(value, bytes) else to_json(field.field_type, value)
        units = {}
    if default is None:
        return None
    text = default if units.get(field.field_id) == AS_JSON else json.dumps(default)
    try:
        json.loads(text)
    except RecursionError:
        problem = f"objects and arrays are nested more than {MAX_DEPTH} deep"
        raise SpecError(f"schema.{field.name}.default: {problem}") from None
    except ValueError:
        raise SpecError(
            f"schema.{field.name}.default: {default!r} is not JSON; write JSON, such as '{{}}' or "
            f"'{json.dumps(default)}'"
        ) from None
    decode = JsonDecoder(Schema(field), units)
    decoded = decode(RecordChunk.of_values([f"{{{json.dumps(field.name)}: {text}}}".encode()]))
    for rejection in decoded.rejections:
        raise SpecError(f"schema.{field.name}.default: {rejection.error}")
    for _, error in VariantEncoder(Schema(field))(decoded.rows)[1].values():
        raise SpecError(f"schema.{field.name}.default: {error.removeprefix(f'{field.name}: ')}")
    return decoded.rows.column(0)


def units_of_fields(schema: Schema, units: Mapping[str, Unit]) -> dict[int, Unit]:
    """Return the unit of each column by field id. `units` has the units by full column name."""
    ids = index_by_name(schema)
    return {ids[name]: unit for name, unit in units.items() if name in ids}


def find_defaults(schema: Schema, units: Mapping[int, Unit] = EMPTY_UNITS) -> dict[str, pa.ChunkedArray]:
    """Return the defaults of all columns that have one, by column name. Raises SpecError if one is invalid."""
    defaults = {field.name: default_of(field, units.get(field.field_id)) for field in schema.fields}
    return {name: default for name, default in defaults.items() if default is not None}


def fill_nulls(column: pa.ChunkedArray, other: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """Fill the column's nulls from `other`: row by row, or with its only value."""
    if other is None or not column.null_count or other.null_count == len(other):
        return column
    rows = np.arange(len(column))
    positions = np.where(column.is_null().to_numpy(), len(column) + (0 if len(other) == 1 else rows), rows)
    return pa.chunked_array([*column.chunks, *other.chunks], column.type).take(pa.array(positions))


_PLAIN_SOURCE = ColumnSource()


class FieldTree:
    """A tree of the objects and lists in a record. Its leaves are the columns that fields fill."""

    def __init__(self, *, lists: bool, required: Path = (), first_id: int = FIRST_CONTAINER_ID + 1) -> None:
        """`first_id` is the first field id of the objects and lists."""
        self.units: dict[int, str] = {}
        self._lists, self._required = lists, required
        self._tree: dict[str | int, Any] = {}
        self._ids = count(first_id)

    def put(self, path: FieldPath, field: NestedField) -> None:
        """Add a column at a path. A column inside a list becomes optional, because an element may be missing."""
        tree = self._tree
        *outer, last = tuple(0 if self._lists and isinstance(step, int) else step for step in path)
        for step in outer:
            tree = tree.setdefault(step, {})
        is_inside = any(isinstance(step, int) for step in path)
        tree.setdefault(last, field.model_copy(update={"required": False}) if is_inside else field)

    def error_path(self, path: FieldPath) -> FieldPath:
        return tuple("element" if self._lists and isinstance(step, int) else step for step in path)

    def fields(self) -> list[NestedField]:
        return self._fields(self._tree, self._required)

    def _fields(self, tree: Mapping[str | int, Any], around: Path = ()) -> list[NestedField]:
        """Return a tree's fields. `around` is the remaining path to the object with all columns."""
        items = []
        for step, inside in tree.items():
            if isinstance(inside, NestedField):
                items.append(inside.model_copy(update={"name": str(step)}))
            else:
                required = bool(around) or _has_required(inside)
                items.append(NestedField(next(self._ids), str(step), self._type(inside, around[1:]), required=required))
                if isinstance(next(iter(inside)), int) and not self._lists:
                    self.units[items[-1].field_id] = LISTED
        return items

    def _type(self, tree: Mapping[str | int, Any], around: Path) -> IcebergType:
        inner = self._fields(tree, around)
        if self._lists and isinstance(next(iter(tree)), int):
            return ListType(inner[0].field_id, inner[0].field_type, element_required=False)
        return StructType(*inner)


def _has_required(inside: Any) -> bool:
    return inside.required if isinstance(inside, NestedField) else any(map(_has_required, inside.values()))


def reject_missing(decoded: DecodedChunk, required: Sequence[str], schema: pa.Schema) -> DecodedChunk:
    """Reject records in which a `required` column is null. `schema` has the decoder's own columns."""
    complete = decoded.reject_rows(find_nulls(decoded.rows, required))
    selected = pa.Table.from_arrays([complete.rows.column(name) for name in schema.names], schema=schema)
    return dataclasses.replace(complete, rows=add_change_columns(selected, complete.rows))


def _column_at(rows: pa.Table, path: FieldPath) -> pa.ChunkedArray:
    column = rows.column(path[0])
    if len(path) == 1:
        return column
    parts = [_values_at(part, path[1:]) for part in (column.chunks or [pa.array([], column.type)])]
    return pa.chunked_array(parts)


def _values_at(array: pa.Array, path: FieldPath) -> pa.Array:
    for step in path:
        if pa.types.is_struct(array.type):
            array = pc.struct_field(array, str(step))
        else:
            offsets = array.offsets.to_numpy()
            present = array.is_valid().to_numpy(zero_copy_only=False) & (np.diff(offsets) > step)
            array = array.values.take(pa.array(np.where(present, offsets[:-1] + step, 0), mask=~present))
    return array
