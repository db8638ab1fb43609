"""Keys that a JSON record gives twice: of a parser that keeps the last in silence, they are found in the text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.json_text import STRINGS, WHITE_SPACE
from frazil.ingest.json_types import inner

_PLAIN_NAME = re.compile(r"[^\"/\\\x00-\x1f\x7f-\U0010ffff]+")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written: keys given twice are both here."""


class KeysGivenTwice:
    """Finds a field of the schema, or a map's key, that a record gives twice.

    Records are given as text that the parser takes (no NaN, no Infinity), and as the values that it made of the fields.
    """

    def __init__(self, schema: iceberg.StructType) -> None:
        self._schema = schema
        self._decode = json.JSONDecoder(
            object_pairs_hook=_Pairs, parse_int=str, parse_float=str, parse_constant=str
        ).decode
        names = list(_names(schema))
        plain = len(set(names)) == len(names) and all(map(_PLAIN_NAME.fullmatch, names))
        self._quoted = [f'"{name}"'.encode() for name in names] if plain and not _repeats_names(schema) else None
        self._flat = not any(isinstance(kind, iceberg.StructType | iceberg.MapType) for kind in inner(schema))

    def suspects(self, text: bytes, parsed: tuple[Any, ...]) -> list[bytes] | None:
        """The fields, as quoted names, of which any may be given twice; None where the schema's names say nothing."""
        if self._all_known(text, parsed):
            return []
        if self._quoted is None:
            return None
        if b"\\u00" in text and any(b"\\u00" in key for key in _keys(text)):
            return self._quoted
        count = text.count
        return [quoted for quoted in self._quoted if count(quoted) > 1]

    def __call__(self, text: bytes, suspects: list[bytes] | None) -> str | None:
        """The path of what is given twice."""
        if suspects is not None:
            if not suspects:
                return None
            if self._flat and text.count(b"{") == 1:
                return _first_twice(text, suspects)
        return _twice(self._decode(text.decode()), self._schema)

    def _all_known(self, text: bytes, parsed: tuple[Any, ...]) -> bool:
        """Whether there are surely no more keys than fields with a value: each is then a field's, and its only one."""
        if not self._flat:
            return False
        at_most = text.translate(None, WHITE_SPACE).count(b'":')
        return at_most == len(parsed) - parsed.count(None)


def _keys(text: bytes) -> list[bytes]:
    """All keys of a text, at any depth, as written."""
    plain = b'\\"' not in text
    parts = text.split(b'"') if plain else STRINGS.split(text)
    keys = [key for key, behind in zip(parts[1::2], parts[2::2], strict=True) if b":" in behind]
    return keys if plain else [key[1:-1] for key in keys]


def _first_twice(text: bytes, suspects: list[bytes]) -> str | None:
    """The first of these names that the text, which is one flat object, has as a key more than once."""
    if b"\\" not in text:
        for name in suspects:
            if text.count(name + b":") > 1:
                return name[1:-1].decode()
    keys = [_unescaped(key) if b"\\" in key else key for key in _keys(text)]
    if len(set(keys)) == len(keys):
        return None
    return next((name[1:-1].decode() for name in suspects if keys.count(name[1:-1]) > 1), None)


def _unescaped(key: bytes) -> bytes:
    return str(msgspec.json.decode(b'"%b"' % key)).encode()


def _twice(value: Any, kind: iceberg.IcebergType) -> str | None:
    """The walk over what is written; missing and ignored parts are passed over."""
    parts: Iterator[tuple[str, Any, iceberg.IcebergType]]
    match kind:
        case iceberg.StructType() if isinstance(value, _Pairs):
            fields = {field.name: field.field_type for field in kind.fields}
            known = [(key, part) for key, part in value if key in fields]
            if repeated := _repeated([key for key, _ in known]):
                return repeated
            parts = ((key, part, fields[key]) for key, part in known)
        case iceberg.MapType() if isinstance(value, _Pairs):
            if repeated := _repeated([key for key, _ in value]):
                return f"key {repeated[:64]!r}"
            parts = (("element", part, kind.value_type) for _, part in value)
        case iceberg.ListType() if isinstance(value, list):
            parts = (("element", part, kind.element_type) for part in value)
        case _:
            return None
    return next((f"{name}.{path}" for name, part, inner in parts if (path := _twice(part, inner))), None)


def _repeated(keys: list[str]) -> str | None:
    return None if len(set(keys)) == len(keys) else next(a for a, b in pairwise(sorted(keys)) if a == b)


def _repeats_names(schema: iceberg.StructType) -> bool:
    """Whether records repeat fields' names by right, or have names that no schema knows."""
    lists = [kind for kind in inner(schema) if isinstance(kind, iceberg.ListType)]
    structs_in_lists = any(isinstance(part, iceberg.StructType) for kind in lists for part in inner(kind))
    return structs_in_lists or any(isinstance(kind, iceberg.MapType) for kind in inner(schema))


def _names(kind: iceberg.IcebergType) -> Iterator[str]:
    if isinstance(kind, iceberg.StructType):
        for field in kind.fields:
            yield field.name
            yield from _names(field.field_type)
