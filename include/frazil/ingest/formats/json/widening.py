"""Finds which columns must become wider or optional so that a JSON record becomes a row."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyiceberg import types as iceberg

from frazil.ingest.schema_drift import Path, wide_type, wider_of

_INTS = range(-(2**31), 2**31)
_LONGS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Widening:
    """Columns that need another Iceberg type, and columns that must become optional, by path."""

    wider: frozenset[tuple[Path, str]] = frozenset()
    optional: frozenset[Path] = frozenset()


NOTHING = Widening()


def demanded(value: object, schema: iceberg.StructType) -> Widening:
    """Return what a parsed record needs from a schema. The record may be invalid for other reasons, too."""
    wider: dict[Path, str] = {}
    optional: set[Path] = set()
    for path, kind in _struct(value, schema, ()):
        if kind is None:
            optional.add(path)
        else:
            wider[path] = wider_of(wider.get(path, kind), kind)
    return Widening(frozenset(wider.items()), frozenset(optional))


def _struct(value: object, schema: iceberg.StructType, path: Path) -> Iterator[tuple[Path, str | None]]:
    if not isinstance(value, dict):
        return
    for field in schema.fields:
        part, here = value.get(field.name), (*path, field.name)
        if part is not None:
            yield from _value(part, field.field_type, here)
        elif field.required:
            yield here, None


def _value(value: Any, kind: iceberg.IcebergType, path: Path) -> Iterator[tuple[Path, str | None]]:
    match kind:
        case iceberg.StructType():
            yield from _struct(value, kind, path)
        case iceberg.ListType() if isinstance(value, list):
            for part in value:
                if part is not None:
                    yield from _value(part, kind.element_type, (*path, "element"))
        case iceberg.MapType() if isinstance(value, dict):
            for part in value.values():
                if part is not None:
                    yield from _value(part, kind.value_type, (*path, "value"))
        case iceberg.IntegerType() if type(value) is int and value not in _INTS and value in _LONGS:
            yield path, "long"
        case iceberg.FloatType() if isinstance(value, int | float) and not isinstance(value, bool) and _beyond(value):
            yield path, "double"
        case iceberg.DecimalType() if isinstance(value, int | float) and not isinstance(value, bool):
            digits = len(str(abs(int(value)))) if abs(value) >= 1 else 0
            if kind.precision - kind.scale < digits <= 38 - kind.scale:
                yield path, f"decimal({digits + kind.scale}, {kind.scale})"


def _beyond(number: float) -> bool:
    try:
        struct.pack("<f", number)
    except OverflowError:
        return True
    return False


def widened(schema: iceberg.StructType, by: Widening) -> iceberg.StructType:
    """Return the schema with these columns wider or optional. Field ids stay the same."""
    kinds = dict(by.wider)

    def field_of(field: iceberg.NestedField, path: Path) -> iceberg.NestedField:
        required = field.required and path not in by.optional
        return iceberg.NestedField(field.field_id, field.name, kind_of(field.field_type, path), required=required)

    def kind_of(kind: iceberg.IcebergType, path: Path) -> iceberg.IcebergType:
        if (wider := kinds.get(path)) is not None:
            return wide_type(wider)
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
