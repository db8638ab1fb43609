"""Finds what a writer's Protobuf message has beyond a table's columns: new fields, and columns that must be wider."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyiceberg import types as iceberg

from frazil.ingest.formats.protobuf.program import TIMESTAMP, WRAPPERS
from frazil.ingest.schema_drift import DEEPEST, MIXED, ListOf, MapOf, Path, SchemaDrift, Seen, struct_of

_F = FieldDescriptor
_PLAIN = {
    _F.TYPE_BOOL: "boolean",
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_STRING: "string",
    _F.TYPE_BYTES: "binary",
    _F.TYPE_ENUM: "string",
    _F.TYPE_UINT64: "decimal(20, 0)",
    _F.TYPE_FIXED64: "decimal(20, 0)",
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), "int"),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT32, _F.TYPE_FIXED32), "long"),
}
_MAX_PARTS = 10_000
"""Maximum number of parts in the type of a new column."""


def beyond_message(written: Descriptor, struct: iceberg.StructType, *, widening: bool) -> SchemaDrift:
    """Return what the table needs to hold records of this message, whatever values the records have."""
    found = list(_beyond(written, struct, (), frozenset()))
    new = {path: seen for path, seen, _ in found if seen is not None}
    return SchemaDrift(new, {path: kind for path, _, kind in found if kind} if widening else {})


def _beyond(
    written: Descriptor, struct: iceberg.StructType, path: Path, inside: frozenset[str]
) -> Iterator[tuple[Path, Seen, str]]:
    if written.full_name in inside:
        return
    columns, inside = {one.name: one.field_type for one in struct.fields}, inside | {written.full_name}
    for one in written.fields:
        here = (*path, one.name)
        if one.name not in columns:
            yield here, seen_type(one, inside), ""
            continue
        kind, part = columns[one.name], one
        if one.is_repeated and isinstance(kind, iceberg.ListType):
            kind, here = kind.element_type, (*here, "element")
        elif one.is_repeated and isinstance(kind, iceberg.MapType):
            kind, here = kind.value_type, (*here, "value")
            part = one.message_type.fields_by_name["value"]
        if part.message_type is not None and isinstance(kind, iceberg.StructType):
            yield from _beyond(part.message_type, kind, here, inside)
        elif isinstance(kind, iceberg.IntegerType) and _PLAIN.get(part.type) == "long":
            yield here, None, "long"
        elif isinstance(kind, iceberg.FloatType) and part.type == _F.TYPE_DOUBLE:
            yield here, None, "double"


def seen_type(written: FieldDescriptor, inside: frozenset[str] = frozenset()) -> Seen:
    """Return the column type for a field's values. `inside` has the names of the messages that enclose the field.

    Returns MIXED if a column could not hold all values of the field, or if the message contains itself.
    """
    return _Unfolding().field(written, inside)


class _Unfolding:
    """Finds a field's column type, and limits the number of its parts: repeatedly named types may have exponentially
    many.
    """

    def __init__(self) -> None:
        self._parts = 0

    def field(self, written: FieldDescriptor, inside: frozenset[str]) -> Seen:
        self._parts += 1
        if self._parts > _MAX_PARTS or len(inside) > DEEPEST:
            return MIXED
        if not written.is_repeated:
            return self._single(written, inside)
        entry = written.message_type
        if entry is not None and entry.GetOptions().map_entry and entry.fields_by_name["key"].type == _F.TYPE_STRING:
            return MapOf(self.field(entry.fields_by_name["value"], inside))
        return ListOf(self._single(written, inside))

    def _single(self, written: FieldDescriptor, inside: frozenset[str]) -> Seen:
        message = written.message_type
        if message is None:
            return _PLAIN[written.type]
        if message.full_name == TIMESTAMP:
            return "timestamptz"
        if message.full_name in WRAPPERS:
            return _PLAIN[message.fields[0].type]
        if message.full_name in inside or written.type == _F.TYPE_GROUP or not message.fields:
            return MIXED
        within = inside | {message.full_name}
        return struct_of({one.name: self.field(one, within) for one in message.fields})
