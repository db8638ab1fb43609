"""Names the forms of values in records that a column's type does not determine, and walks through nested types."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg import types as iceberg

AS_JSON, JSON_IN_TEXT, OF_REST, LISTED, AS_TEXT = "json", "json-in-text", "rest", "listed", "text"
Units = Mapping[int, str]
"""The form of values in records, by field id, if the column's type does not determine it.

`s`, `ms`, `us`, `ns`: numbers since the epoch. `json`: any value, as JSON text. `json-in-text`: the same, but a
string's content is already JSON. `rest`: the fields of the struct that fill no other column. `listed`: a struct whose
fields, named by numbers, are elements of an array. `text`: any value as JSON text, even in change events, which read
`json` as `json-in-text`.
"""


def inner_fields(kind: iceberg.IcebergType) -> tuple[iceberg.NestedField, ...]:
    """Return a struct's fields, a list's element, or a map's key and value."""
    match kind:
        case iceberg.StructType():
            return kind.fields
        case iceberg.ListType():
            return (kind.element_field,)
        case iceberg.MapType():
            return kind.key_field, kind.value_field
    return ()


def max_nesting(kind: iceberg.IcebergType) -> int:
    return 0 if kind.is_primitive else 1 + max((max_nesting(f.field_type) for f in inner_fields(kind)), default=0)
