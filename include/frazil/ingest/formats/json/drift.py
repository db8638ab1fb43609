"""Finds fields of JSON records that the schema does not have, and columns that must become wider or optional."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.record import RecordReader, Row
from frazil.ingest.formats.json.text import RecordError, encode_special_numbers, strip_message
from frazil.ingest.formats.json.types import Units
from frazil.ingest.schema_drift import (
    MAX_OBJECT_FIELDS,
    TOO_MANY_FIELDS,
    WHOLE_RECORD,
    DriftScope,
    FoundType,
    Path,
    SchemaDrift,
    join_drift,
    merge_types,
    type_of_value,
    wider_of,
)
from frazil.spec.iceberg import iceberg_type

_decode_untyped = msgspec.json.Decoder().decode
_MAX_EXAMINED_REJECTS = 1000


class DriftFinder:
    def __init__(
        self, schema: iceberg.StructType, units: Units, *, widening: bool, within: Sequence[DriftScope] = WHOLE_RECORD
    ) -> None:
        self._schema, self._units, self._widening, self._within = schema, units, widening, within
        self._fields = _FieldTree.from_type(schema).at(within[0].path)
        self._readers: dict[ColumnChanges, RecordReader] = {}

    def __call__(self, values: Sequence[bytes | None], read: Sequence[Row | RecordError]) -> SchemaDrift:
        found = [(value, row) for value, row in zip(values, read, strict=True) if value is not None]
        valid = [value for value, row in found if not isinstance(row, RecordError)]
        refused = [value for value, row in found if isinstance(row, RecordError)][:_MAX_EXAMINED_REJECTS]
        changes = [(value, self._find_widening(value)) for value in refused] if self._widening else []
        records = 0
        new: dict[Path, FoundType] = {}
        for value in [*valid, *(value for value, change in changes if change)]:
            here = self.find_new_fields([value])
            records += bool(here)
            _merge_into(new, here.items())
        return join_drift([SchemaDrift(new, records=records), *(change for _, change in changes)])

    def find_new_fields(self, values: Iterable[bytes | None]) -> dict[Path, FoundType]:
        """Return the type of each field that has no column, by path. The table or its wider form accepts the values."""
        found: dict[Path, FoundType] = {}
        for value in values:
            for part in self._examined_parts(_parse(value)):
                _merge_into(found, _new_fields(part, self._fields, ()))
        return found

    def _examined_parts(self, record: object) -> Iterator[object]:
        for part in self._within:
            around, found = None, record
            for name in part.path:
                around, found = found, found.get(name) if isinstance(found, dict) else None
            if not part.selector or (isinstance(around, dict) and around.get(part.selector) in part.values):
                yield found

    def _find_widening(self, value: bytes) -> SchemaDrift:
        """Return the column changes that would accept a rejected record; empty if none would."""
        record = _parse(value)
        if not any(True for _ in self._examined_parts(record)):
            return SchemaDrift()
        wider: dict[Path, str] = {}
        optional: set[Path] = set()
        for path, kind in _struct_changes(record, self._schema, ()):
            if kind is None:
                optional.add(path)
            else:
                wider[path] = wider_of(wider.get(path, kind), kind)
        wanted = ColumnChanges(frozenset(wider.items()), frozenset(optional))
        if wanted == ColumnChanges():
            return SchemaDrift()
        if (reader := self._readers.get(wanted)) is None:
            reader = self._readers[wanted] = RecordReader(apply_changes(self._schema, wanted), self._units)
        if isinstance(reader(value), RecordError):
            return SchemaDrift()
        return SchemaDrift(wider=dict(wanted.wider), optional=wanted.optional).within(self._within)


@dataclass(frozen=True, slots=True)
class _FieldTree:
    """The field names of a type. A list has the child `element`, a map the child `value`."""

    fields: Mapping[str, _FieldTree]
    entries: str = ""

    @classmethod
    def from_type(cls, kind: iceberg.IcebergType) -> _FieldTree:
        match kind:
            case iceberg.StructType():
                return cls({field.name: cls.from_type(field.field_type) for field in kind.fields})
            case iceberg.ListType():
                return cls({"element": cls.from_type(kind.element_type)}, "element")
            case iceberg.MapType():
                return cls({"value": cls.from_type(kind.value_type)}, "value")
        return cls({})

    def at(self, path: Path) -> _FieldTree:
        found = self
        for name in path:
            found = found.fields[name]
        return found


def _new_fields(value: object, known: _FieldTree, path: Path) -> Iterator[tuple[Path, FoundType]]:
    if known.entries:
        inside = known.fields[known.entries]
        parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        if inside.fields:
            for part in parts:
                yield from _new_fields(part, inside, (*path, known.entries))
    elif isinstance(value, dict) and (known.fields or not path):
        new = {}
        for name, part in value.items():
            if (field := known.fields.get(name)) is None:
                if part is not None:
                    new[name] = part
            elif field.fields:
                yield from _new_fields(part, field, (*path, name))
        if len(new) > MAX_OBJECT_FIELDS:
            new = {TOO_MANY_FIELDS: ""}
        yield from (((*path, name), type_of_value(part)) for name, part in new.items())


def _merge_into(found: dict[Path, FoundType], more: Iterable[tuple[Path, FoundType]]) -> None:
    for path, found_type in more:
        found[path] = merge_types(found.get(path), found_type)


def _parse(value: bytes | None) -> object:
    """Parse the record without a schema. Returns None if the parser rejects it."""
    try:
        text = strip_message(value)
        try:
            return _decode_untyped(text)
        except msgspec.DecodeError:
            return _decode_untyped(encode_special_numbers(text))
    except (RecordError, msgspec.DecodeError, RecursionError):
        return None


_LONGS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Columns that need another Iceberg type (path, type), and columns that must become optional."""

    wider: frozenset[tuple[Path, str]] = frozenset()
    optional: frozenset[Path] = frozenset()


def _struct_changes(value: object, schema: iceberg.StructType, path: Path) -> Iterator[tuple[Path, str | None]]:
    if not isinstance(value, dict):
        return
    for field in schema.fields:
        part, here = value.get(field.name), (*path, field.name)
        if part is not None:
            yield from _value_changes(part, field.field_type, here)
        elif field.required:
            yield here, None


def _value_changes(value: Any, kind: iceberg.IcebergType, path: Path) -> Iterator[tuple[Path, str | None]]:
    match kind:
        case iceberg.StructType():
            yield from _struct_changes(value, kind, path)
        case iceberg.ListType() if isinstance(value, list):
            for part in value:
                if part is not None:
                    yield from _value_changes(part, kind.element_type, (*path, "element"))
        case iceberg.MapType() if isinstance(value, dict):
            for part in value.values():
                if part is not None:
                    yield from _value_changes(part, kind.value_type, (*path, "value"))
        case iceberg.IntegerType() if type(value) is int and value not in range(-(2**31), 2**31) and value in _LONGS:
            yield path, "long"
        case iceberg.FloatType() if (
            isinstance(value, int | float) and not isinstance(value, bool) and _exceeds_float(value)
        ):
            yield path, "double"
        case iceberg.DecimalType() if isinstance(value, int | float) and not isinstance(value, bool):
            digits = len(str(abs(int(value)))) if abs(value) >= 1 else 0
            if kind.precision - kind.scale < digits <= 38 - kind.scale:
                yield path, f"decimal({digits + kind.scale}, {kind.scale})"


def _exceeds_float(number: float) -> bool:
    try:
        struct.pack("<f", number)
    except OverflowError:
        return True
    return False


def apply_changes(schema: iceberg.StructType, by: ColumnChanges) -> iceberg.StructType:
    """Return the changed schema, with the same field ids."""
    kinds = dict(by.wider)

    def field_of(field: iceberg.NestedField, path: Path) -> iceberg.NestedField:
        required = field.required and path not in by.optional
        return iceberg.NestedField(field.field_id, field.name, kind_of(field.field_type, path), required=required)

    def kind_of(kind: iceberg.IcebergType, path: Path) -> iceberg.IcebergType:
        if (wider := kinds.get(path)) is not None:
            return iceberg_type(wider)
        match kind:
            case iceberg.StructType():
                return iceberg.StructType(*(field_of(f, (*path, f.name)) for f in kind.fields))
            case iceberg.ListType():
                element = kind_of(kind.element_type, (*path, "element"))
                return iceberg.ListType(kind.element_id, element, element_required=kind.element_required)
            case iceberg.MapType():
                value = kind_of(kind.value_type, (*path, "value"))
                return iceberg.MapType(
                    kind.key_id, kind.key_type, kind.value_id, value, value_required=kind.value_required
                )
        return kind

    return iceberg.StructType(*(field_of(f, (f.name,)) for f in schema.fields))
