"""Checks whether a record format supports the Iceberg types of all columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg import types as iceberg

from frazil.errors import SpecError

SUPPORTED = (
    iceberg.BooleanType,
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.FloatType,
    iceberg.DoubleType,
    iceberg.DecimalType,
    iceberg.StringType,
    iceberg.DateType,
    iceberg.TimeType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.UUIDType,
    iceberg.FixedType,
    iceberg.BinaryType,
)

AS_JSON, JSON_IN_TEXT, OF_REST, LISTED, AS_TEXT = "json", "json-in-text", "rest", "listed", "text"
Units = Mapping[int, str]
"""The form of values in records, by field id, if the column's type does not determine it.

`s`, `ms`, `us`, `ns`: numbers since the epoch. `json`: any value, as JSON text. `json-in-text`: the same, but a
string's content is already JSON. `rest`: the fields of the struct that fill no other column. `listed`: a struct whose
fields, named by numbers, are elements of an array. `text`: any value as JSON text, even in change events, which read
`json` as `json-in-text`.
"""


def check_supported(schema: iceberg.StructType, name: str = "json") -> None:
    """Raise SpecError with all columns whose types this format does not support."""
    if found := "; ".join(_unsupported_errors(schema, "schema", name)):
        raise SpecError(found)


def _unsupported_errors(kind: iceberg.IcebergType, where: str, name: str) -> Iterator[str]:
    match kind:
        case iceberg.StructType():
            for field in kind.fields:
                if name == "json" and any(c < " " or c in '"\\' for c in field.name):
                    yield f"{where}: the name of column {field.name!r} has a character that JSON escapes; rename it"
                yield from _unsupported_errors(field.field_type, f"{where}.{field.name}", name)
        case iceberg.ListType():
            yield from _unsupported_errors(kind.element_type, f"{where}.element", name)
        case iceberg.MapType():
            if not isinstance(kind.key_type, iceberg.StringType):
                what = f"so the map's key must be string, not {kind.key_type}"
                yield f"{where}: keys of format {name} are strings, {what}"
            yield from _unsupported_errors(kind.value_type, f"{where}.value", name)
        case _ if not isinstance(kind, SUPPORTED):
            yield f"{where}: format {name} cannot fill a column of type {kind}; declare another type"


def inner_types(kind: iceberg.IcebergType) -> Iterator[iceberg.IcebergType]:
    match kind:
        case iceberg.StructType():
            parts = [field.field_type for field in kind.fields]
        case iceberg.ListType():
            parts = [kind.element_type]
        case iceberg.MapType():
            parts = [kind.value_type]
        case _:
            parts = []
    for part in parts:
        yield part
        yield from inner_types(part)


def max_nesting(kind: iceberg.IcebergType) -> int:
    match kind:
        case iceberg.StructType():
            return 1 + max((max_nesting(field.field_type) for field in kind.fields), default=0)
        case iceberg.ListType():
            return 1 + max_nesting(kind.element_type)
        case iceberg.MapType():
            return 1 + max_nesting(kind.value_type)
    return 0
