"""Finds duplicate keys in a JSON record's text. The parser ignores all but a key's last value."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from pyiceberg import types as iceberg

from frazil.ingest.formats.json.rest import is_rest
from frazil.ingest.formats.json.text import WHITE_SPACE
from frazil.ingest.formats.json.types import Units


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written, including duplicate keys."""


class _DuplicateKey(Exception):
    """An object of the record has a key twice, perhaps a key that no column uses."""


def _require_distinct(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise _DuplicateKey


_as_text: dict[str, Any] = {"parse_int": str, "parse_float": str, "parse_constant": str}
_check_keys = json.JSONDecoder(object_pairs_hook=_require_distinct, **_as_text).decode
_decode_pairs = json.JSONDecoder(object_pairs_hook=_Pairs, **_as_text).decode


Duplicate = tuple[tuple[str, ...], str]
"""The path of a schema's field, or of a map's keys, and the description of the key."""


def find_duplicate_keys(
    text: bytes, keys: Collection[str], schema: iceberg.StructType, units: Units
) -> list[Duplicate]:
    """Return the duplicates of a schema's fields, and the first of each map's keys.

    `keys` has the distinct keys of the record, which must be valid JSON.
    """
    # A key ends with a quotation mark and a colon, so counting these gives the maximum number of keys at all levels.
    if text.translate(None, WHITE_SPACE).count(b'":') == len(keys):
        return []
    try:
        _check_keys(text.decode())
    except _DuplicateKey:
        return [*_duplicates(_decode_pairs(text.decode()), schema, units)]
    return []


def _duplicates(value: Any, kind: iceberg.IcebergType, units: Units) -> Iterator[Duplicate]:
    parts: Iterator[tuple[str, Any, iceberg.IcebergType]]
    match kind:
        case iceberg.StructType() if isinstance(value, _Pairs):
            fields = {field.name: field.field_type for field in kind.fields if not is_rest(field, units)}
            known = [(key, part) for key, part in value if key in fields]
            yield from (((key,), "") for key in _repeated([key for key, _ in known]))
            parts = ((key, part, fields[key]) for key, part in known)
        case iceberg.StructType() if isinstance(value, list) and all(f.name.isdecimal() for f in kind.fields):
            parts = ((f.name, value[int(f.name)], f.field_type) for f in kind.fields if int(f.name) < len(value))
        case iceberg.MapType() if isinstance(value, _Pairs):
            yield from ((("key",), f" {key[:64]!r}") for key in _repeated([key for key, _ in value])[:1])
            parts = (("value", part, kind.value_type) for _, part in value)
        case iceberg.ListType() if isinstance(value, list):
            parts = (("element", part, kind.element_type) for part in value)
        case _:
            return
    for name, part, inner in parts:
        yield from (((name, *path), key) for path, key in _duplicates(part, inner, units))


def _repeated(keys: list[str]) -> list[str]:
    seen: set[str] = set()
    return [key for key in keys if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
