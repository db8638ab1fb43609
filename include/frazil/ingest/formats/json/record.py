"""Reads single JSON records: the reference implementation.

It also reads each record about which the compiled loop is not certain, and creates all error classes and texts. Records
are strict JSON (RFC 8259), except for NaN, Infinity and Inf. A field of the schema may occur once; other fields only
need valid syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.keys import find_duplicate_key
from frazil.ingest.formats.json.rest import Path, column_parts, is_rest, rest_of
from frazil.ingest.formats.json.text import (
    RecordError,
    decode_special_numbers,
    encode_special_numbers,
    malformed_text,
    strip_message,
)
from frazil.ingest.formats.json.types import LISTED, Units
from frazil.ingest.formats.json.values import MISSING, TYPE_MISMATCH, InvalidValue, describe, find_conversion, mismatch

Row = list[Any]
Conversion = Callable[[bytes], Any]
"""Converts a value's JSON text to a value that Arrow accepts. Raises InvalidValue."""
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class RecordReader:
    def __init__(self, schema: iceberg.StructType, units: Units, hidden: Collection[Path] = ()) -> None:
        """`hidden` has the lower-case paths of fields that a `rest` column omits."""
        self._schema, self._units = schema, units
        self._convert = _struct_conversion(schema, units, hidden)

    def __call__(self, value: bytes | None) -> Row | RecordError:
        return self.read_all([value])[0]

    def read_all(self, values: Sequence[bytes | None]) -> list[Row | RecordError]:
        return [*map(self._read, values)]

    def _read(self, value: bytes | None) -> Row | RecordError:
        try:
            text = strip_message(value)
        except RecordError as error:
            return error
        try:
            return self._read_text(text)
        except RecursionError:
            # Python adds the parser's depth to the caller's frames. A new thread has no frames yet.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(self._read_text, text).result()

    def _read_text(self, text: bytes) -> Row | RecordError:
        plain = encode_special_numbers(text)
        try:
            members = _decode_members(plain)
            if (path := find_duplicate_key(plain, members, self._schema, self._units)) is not None:
                return RecordError(TYPE_MISMATCH, f"{path}: given twice")
            return [*self._convert(plain, members).values()]
        except InvalidValue as wrong:
            return RecordError(wrong.error_class, f"{wrong.path}: {wrong.text}")
        except msgspec.DecodeError as error:
            return RecordError("InvalidJson", malformed_text(text, str(error)))


def _conversion(field: iceberg.NestedField, units: Units, hidden: Collection[Path]) -> Conversion:
    match kind := field.field_type:
        case iceberg.StructType() if units.get(field.field_id) == LISTED:
            return _listed_conversion(kind, units, hidden)
        case iceberg.StructType():
            return _struct_conversion(kind, units, hidden)
        case iceberg.ListType():
            return _list_conversion(kind, units, hidden)
        case iceberg.MapType():
            return _map_conversion(kind, units, hidden)
    return find_conversion(kind, units.get(field.field_id))


def _struct_conversion(
    kind: iceberg.StructType, units: Units, hidden: Collection[Path]
) -> Callable[..., dict[str, Any]]:
    rest = next((field.name for field in kind.fields if is_rest(field, units)), None)
    part = column_parts(kind, units, hidden)
    convert_fields = _fields_conversion({f.name: f for f in kind.fields if f.name != rest}, units, hidden)
    names = [field.name for field in kind.fields]

    def convert(text: bytes, members: dict[str, msgspec.Raw] | None = None) -> dict[str, Any]:
        row = convert_fields(_members(text) if members is None else members)
        if rest is None or part is None:
            return row
        return dict.fromkeys(names) | row | {rest: rest_of(decode_special_numbers(text), part)}

    return convert


def _listed_conversion(kind: iceberg.StructType, units: Units, hidden: Collection[Path]) -> Conversion:
    convert_fields = _fields_conversion({int(f.name): f for f in kind.fields}, units, hidden)
    return lambda text: convert_fields(dict(enumerate(_elements(text))))


def _list_conversion(kind: iceberg.ListType, units: Units, hidden: Collection[Path]) -> Conversion:
    convert = _entry_conversion(kind.element_field, units, hidden)
    return lambda text: [*map(convert, _elements(text))]


def _map_conversion(kind: iceberg.MapType, units: Units, hidden: Collection[Path]) -> Conversion:
    convert = _entry_conversion(kind.value_field, units, hidden)
    return lambda text: [(key, convert(raw)) for key, raw in _members(text).items()]


def _entry_conversion(
    field: iceberg.NestedField, units: Units, hidden: Collection[Path]
) -> Callable[[msgspec.Raw], Any]:
    convert = _fields_conversion({0: field}, units, hidden)
    return lambda raw: convert({0: raw})[field.name]


def _fields_conversion(
    fields: Mapping[Any, iceberg.NestedField], units: Units, hidden: Collection[Path]
) -> Callable[[Mapping[Any, msgspec.Raw]], dict[str, Any]]:
    """Return a conversion for the parts of a value, by the keys of `fields`."""
    conversions = [(key, f.name, f.required, _conversion(f, units, hidden)) for key, f in fields.items()]

    def convert(parts: Mapping[Any, msgspec.Raw]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        name = ""
        try:
            for key, name, required, convert_part in conversions:
                if (raw := parts.get(key)) is None or (text := bytes(raw)) == b"null":
                    row[name] = _refuse_null() if required else None
                else:
                    row[name] = convert_part(text)
        except InvalidValue as wrong:
            raise wrong.within(name) from None
        return row

    return convert


def _refuse_null() -> NoReturn:
    raise InvalidValue(MISSING)


def _members(text: bytes) -> dict[str, msgspec.Raw]:
    if not text.startswith(b"{"):
        raise mismatch(text, "an object")
    return _decode_members(text)


def _elements(text: bytes) -> list[msgspec.Raw]:
    if not text.startswith(b"["):
        raise mismatch(text, "an array")
    return _decode_elements(text)


def quote_value(text: bytes, path: Sequence[str | int]) -> str | None:
    """Return the value at a path in a record, quoted for a message; None if it cannot be quoted."""
    try:
        return describe(_find_value(text, path))
    except (msgspec.DecodeError, LookupError):
        return None


def field_names_at(text: bytes, path: Sequence[str]) -> Collection[str]:
    return _decode_members(_find_value(text, path)).keys()


def _find_value(text: bytes, path: Sequence[str | int]) -> bytes:
    found = encode_special_numbers(text)
    for step in path:
        found = bytes(_decode_elements(found)[step] if isinstance(step, int) else _decode_members(found)[step])
    return found


def field_names(value: bytes | None) -> Collection[str]:
    """Return the field names of a record; empty if it cannot be parsed."""
    try:
        return _decode_members(encode_special_numbers(strip_message(value))).keys()
    except (RecordError, msgspec.DecodeError, RecursionError):
        return ()
