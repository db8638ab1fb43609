"""Finds duplicate keys in a JSON record's text. The parser ignores all but a key's last value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.text import WHITE_SPACE, encode_special_numbers
from frazil.ingest.formats.json.types import inner_types

_PLAIN_NAME = re.compile(r"[^\"/\\\x00-\x1f\x7f-\U0010ffff]+")
_ESCAPE = re.compile(rb"\\u00([0-9a-fA-F]{2})")
_decode_distinct = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written, including duplicate keys."""


class DuplicateKeyFinder:
    """Finds duplicates of a schema's field, or of a map's key, in a record's text."""

    def __init__(self, schema: iceberg.StructType) -> None:
        self._schema = schema
        self._decode = json.JSONDecoder(
            object_pairs_hook=_Pairs, parse_int=str, parse_float=str, parse_constant=str
        ).decode
        names = list(_field_names(schema))
        plain = len(set(names)) == len(names) and all(map(_PLAIN_NAME.fullmatch, names))
        self._quoted = [f'"{n}"'.encode() for n in sorted(names)] if plain and not _may_repeat_names(schema) else None
        self._keys = [(name, f'"{name}":'.encode()) for name in sorted(names)]
        self._flat = not any(isinstance(kind, iceberg.StructType | iceberg.MapType) for kind in inner_types(schema))

    def __call__(self, text: bytes, parsed: tuple[Any, ...]) -> str | None:
        """Return the path of a duplicate key in a record that the parser accepted; None if no key is duplicated."""
        if self._flat:
            # A key ends with a quotation mark and a colon, so counting these gives the maximum number of keys. If that
            # many fields have a value, or that many keys are distinct, no key is duplicated.
            max_keys = text.translate(None, WHITE_SPACE).count(b'":')
            if max_keys == len(parsed) - parsed.count(None) or max_keys == len(_decode_distinct(text)):
                return None
        if self._quoted is not None and (plain := _unescape_ascii(text)) is not None:
            if self._flat and plain.count(b"{") == 1 and (found := self._find_duplicate(plain)) is not None:
                return found
            if self._has_unique_names(plain):
                return None
        return _duplicate_path(self._decode(text.decode()), self._schema)

    def find_in_rejected(self, text: bytes) -> str | None:
        if self._quoted and (plain := _unescape_ascii(text)) is not None and self._has_unique_names(plain):
            return None
        try:
            return _duplicate_path(self._decode(encode_special_numbers(text).decode()), self._schema)
        except ValueError:
            return None

    def _has_unique_names(self, plain: bytes) -> bool:
        return self._quoted is not None and all(plain.count(quoted) < 2 for quoted in self._quoted)

    def _find_duplicate(self, text: bytes) -> str | None:
        """Return a duplicate key of a flat object, if certain. Ignores keys with space before the colon."""
        count = text.count
        for name, key in self._keys:
            # `key` ends a string. If its first quotation mark is escaped, it is only the end of a longer key.
            if count(key) > 1 and (b"\\" not in text or count(key) - count(b"\\" + key) > 1):
                return name
        return None


def _unescape_ascii(text: bytes) -> bytes | None:
    """Unescape printable ASCII characters, so that equal plain names have equal text; None if this is uncertain."""
    start = text.find(b"\\u00") if b"\\" in text else -1
    if start < 0:
        return text
    if b"\\\\" in text:
        return None  # an apparent escape may be text after a backslash
    while start >= 0:
        if (found := _ESCAPE.match(text, start)) is None:
            return None  # the parser rejected the text before this escape
        escape, character = found[0], bytes([int(found[1], 16)])
        if character.isascii() and character not in b'"\\' and character >= b" ":
            text = text.replace(escape, character)
        start = text.find(b"\\u00", start + 1)
    return text


def _duplicate_path(value: Any, kind: iceberg.IcebergType) -> str | None:
    parts: Iterator[tuple[str, Any, iceberg.IcebergType]]
    match kind:
        case iceberg.StructType() if isinstance(value, _Pairs):
            fields = {field.name: field.field_type for field in kind.fields}
            known = [(key, part) for key, part in value if key in fields]
            if (repeated := _first_duplicate([key for key, _ in known])) is not None:
                return repeated
            parts = ((key, part, fields[key]) for key, part in known)
        case iceberg.StructType() if isinstance(value, list) and all(f.name.isdecimal() for f in kind.fields):
            parts = ((f.name, value[int(f.name)], f.field_type) for f in kind.fields if int(f.name) < len(value))
        case iceberg.MapType() if isinstance(value, _Pairs):
            if (repeated := _first_duplicate([key for key, _ in value])) is not None:
                return f"key {repeated[:64]!r}"
            parts = (("value", part, kind.value_type) for _, part in value)
        case iceberg.ListType() if isinstance(value, list):
            parts = (("element", part, kind.element_type) for part in value)
        case _:
            return None
    found = ((name, _duplicate_path(part, inner)) for name, part, inner in parts)
    return next((f"{name}.{path}" for name, path in found if path is not None), None)


def _first_duplicate(keys: list[str]) -> str | None:
    return None if len(set(keys)) == len(keys) else next(a for a, b in pairwise(sorted(keys)) if a == b)


def _may_repeat_names(schema: iceberg.StructType) -> bool:
    lists = [kind for kind in inner_types(schema) if isinstance(kind, iceberg.ListType)]
    structs_in_lists = any(isinstance(part, iceberg.StructType) for kind in lists for part in inner_types(kind))
    return structs_in_lists or any(isinstance(kind, iceberg.MapType) for kind in inner_types(schema))


def _field_names(kind: iceberg.IcebergType) -> Iterator[str]:
    if isinstance(kind, iceberg.StructType):
        for field in kind.fields:
            yield field.name
            yield from _field_names(field.field_type)
