"""Looks into single JSON records: the names of their fields, and values for messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from frazil.ingest.formats.json.text import (
    RecordError,
    decode_special_numbers,
    describe,
    encode_special_numbers,
    strip_message,
)

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def quote_value(text: bytes, path: Sequence[str | int]) -> str | None:
    """Return the value at a path in a record, quoted for a message; None if it cannot be quoted."""
    try:
        return describe(decode_special_numbers(_find_value(text, path)))
    except (msgspec.DecodeError, LookupError):
        return None


def field_names_at(text: bytes, path: Sequence[str]) -> Collection[str]:
    return _decode_members(_find_value(text, path)).keys()


def _find_value(text: bytes, path: Sequence[str | int]) -> bytes:
    value = encode_special_numbers(text)
    for step in path:
        value = bytes(_decode_elements(value)[step] if isinstance(step, int) else _decode_members(value)[step])
    return value


def field_names(value: bytes | None) -> Collection[str]:
    """Return the field names of a record; empty if it cannot be parsed."""
    try:
        return _decode_members(encode_special_numbers(strip_message(value))).keys()
    except (RecordError, msgspec.DecodeError, RecursionError):
        return ()
