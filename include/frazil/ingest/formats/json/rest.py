"""Finds the parts of a JSON record that fill no column, for a `rest` column.

A part keeps its path: `{"place": {"zip": "1"}}`. A list element that has no such part becomes null.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.text import decode_elements, decode_members
from frazil.ingest.formats.json.types import LISTED, OF_REST, Units

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of an object that fill columns. Other fields go to the `rest` column, unless hidden.

    `Fields({})` may be part of any value, and leaves the whole value.
    """

    taken: Mapping[str, FilledPart | None]
    """The parts inside each field that fill columns; None for the whole field."""
    hidden: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Entries:
    each: FilledPart
    is_map: bool


FilledPart = Fields | Entries


def is_rest(field: iceberg.NestedField, units: Units) -> bool:
    return units.get(field.field_id) == OF_REST


def column_parts(kind: iceberg.IcebergType, units: Units, hidden: Collection[Path] = ()) -> FilledPart | None:
    """Return the parts of a value that fill columns; None for the whole value. `hidden` has lower-case paths."""

    def below(*names: str) -> list[Path]:
        return [path[1:] for path in hidden if len(path) > 1 and path[0] in names]

    match kind:
        case iceberg.StructType():
            parts = {
                field.name: None
                if units.get(field.field_id) == LISTED
                else column_parts(field.field_type, units, below(field.name.lower()))
                for field in kind.fields
                if not is_rest(field, units)
            }
            return Fields(parts, frozenset(path[0] for path in hidden))
        case iceberg.ListType():
            each = column_parts(kind.element_type, units, below("element"))
            return None if each is None else Entries(each, is_map=False)
        case iceberg.MapType():
            if any(path[0] == "key" for path in hidden):
                return None  # any part of an entry would reveal its key
            each = column_parts(kind.value_type, units, below("value"))
            return None if each is None else Entries(each, is_map=True)
    return None


def rest_of(text: bytes, part: FilledPart, *, keeps_nulls: bool = True) -> bytes | None:
    """Return the `rest` text of a JSON value without white space; None if no field is left.

    Unless `keeps_nulls`, omits null fields.
    """
    if text == b"null":
        return None
    if isinstance(part, Entries) and not part.is_map:
        elements = [rest_of(bytes(element), part.each, keeps_nulls=keeps_nulls) for element in decode_elements(text)]
        return b"[" + b",".join(element or b"null" for element in elements) + b"]" if any(elements) else None
    if isinstance(part, Fields) and not part.taken and not text.startswith(b"{"):
        return text
    members = {}
    for name, value in decode_members(text).items():
        if isinstance(part, Fields) and name not in part.taken:
            if name.lower() not in part.hidden and (keeps_nulls or bytes(value) != b"null"):
                members[name] = value
            continue
        inside = part.each if isinstance(part, Entries) else part.taken[name]
        if inside is not None and (nested := rest_of(bytes(value), inside, keeps_nulls=keeps_nulls)) is not None:
            members[name] = msgspec.Raw(nested)
    return msgspec.json.encode(members) if members else None
