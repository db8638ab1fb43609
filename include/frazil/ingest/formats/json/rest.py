"""Finds the parts of a JSON record that fill no column, for a `rest` column.

This module is the reference implementation for the compiled loop. A part keeps its path: `{"place": {"zip": "1"}}`. A
list element that has no such part becomes null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.text import STRING
from frazil.ingest.formats.json.types import LISTED, OF_REST, Units

Path = tuple[str, ...]
_TOKEN = re.compile(STRING.pattern + rb"|[\[\]{}]", re.DOTALL)
_ATOM = re.compile(rb"[^ \t\r\n,\]}]+")
_WHITE = re.compile(rb"[ \t\r\n]*")
_decode_name = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of an object that fill columns. Other fields go to the `rest` column, unless hidden."""

    taken: Mapping[str, Part | None]
    """The parts inside each field that fill columns; None for the whole field."""
    hidden: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Entries:
    each: Part
    is_map: bool


Part = Fields | Entries


def is_rest(field: iceberg.NestedField, units: Units) -> bool:
    return units.get(field.field_id) == OF_REST


def column_parts(kind: iceberg.IcebergType, units: Units, hidden: Collection[Path] = ()) -> Part | None:
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


def rest_of(text: bytes, part: Part, *, keeps_nulls: bool = True) -> str | None:
    """Return the `rest` text of an object; None if no field is left. Unless `keeps_nulls`, omits null fields."""
    other_members = _write_rest(text, _skip_white_space(text, 0), part, keeps_nulls=keeps_nulls)
    return None if other_members is None else other_members.decode()


def _write_rest(text: bytes, at: int, part: Part, *, keeps_nulls: bool) -> bytes | None:
    if text.startswith(b"null", at):
        return None
    if isinstance(part, Entries) and not part.is_map:
        parts = [_write_rest(text, value, part.each, keeps_nulls=keeps_nulls) for value, _ in _elements(text, at)]
        return b"[" + b",".join(part_text or b"null" for part_text in parts) + b"]" if any(parts) else None
    members = []
    for start, name, value, end in _members(text, at):
        if isinstance(part, Entries):
            inside: Part | None = part.each
        elif name in part.taken:
            inside = part.taken[name]
        else:
            if name.lower() not in part.hidden and (keeps_nulls or text[value:end] != b"null"):
                members.append(text[start:end])
            continue
        if inside is not None and (nested := _write_rest(text, value, inside, keeps_nulls=keeps_nulls)) is not None:
            members.append(text[start:value] + nested)
    return b"{" + b",".join(members) + b"}" if members else None


def _members(text: bytes, at: int) -> Iterator[tuple[int, str, int, int]]:
    at = _skip_white_space(text, at + 1)
    while text[at] != ord("}"):
        key = STRING.match(text, at)
        assert key is not None
        value = _skip_white_space(text, _skip_white_space(text, key.end()) + 1)
        end = _find_value_end(text, value)
        yield at, _decode_name(key[0]), value, end
        at = _skip_comma(text, end)


def _elements(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    at = _skip_white_space(text, at + 1)
    while text[at] != ord("]"):
        end = _find_value_end(text, at)
        yield at, end
        at = _skip_comma(text, end)


def _skip_comma(text: bytes, end: int) -> int:
    end = _skip_white_space(text, end)
    return _skip_white_space(text, end + 1) if text[end] == ord(",") else end


def _skip_white_space(text: bytes, at: int) -> int:
    match = _WHITE.match(text, at)
    assert match is not None
    return match.end()


def _find_value_end(text: bytes, at: int) -> int:
    if text[at] in b"[{":
        depth = 0
        for token in _TOKEN.finditer(text, at):
            depth += (token[0] in (b"[", b"{")) - (token[0] in (b"]", b"}"))
            if depth == 0:
                return token.end()
    match = STRING.match(text, at) or _ATOM.match(text, at)
    assert match is not None
    return match.end()
