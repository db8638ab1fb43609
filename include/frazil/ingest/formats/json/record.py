"""Reads single JSON records: the reference implementation.

It also reads each record about which the compiled loop is not certain, and creates all error classes and texts. Records
are strict JSON (RFC 8259), except for NaN, Infinity and Inf. A field of the schema may occur once; other fields only
need valid syntax.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
from frazil.ingest.formats.json.values import (
    MISSING,
    TYPE_MISMATCH,
    InvalidValue,
    OutOfRange,
    describe,
    find_conversion,
    mismatch,
)

Row = list[Any]
Conversion = Callable[[bytes], Any]
"""Converts a value's JSON text to a value that Arrow accepts. Raises InvalidValue."""
_BYTE = re.compile(r"(?<=\(byte )[0-9]+")
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


ColumnChange = tuple[Path, str | None]
"""The path of a column that needs a wider type, and the type's name; None for a column that must become optional."""


class RecordReader:
    def __init__(
        self, schema: iceberg.StructType, units: Units, hidden: Collection[Path] = (), *, collects_changes: bool = False
    ) -> None:
        """`hidden` has the lower-case paths of fields that a `rest` column omits.

        With `collects_changes`, a record that needs changed columns is accepted, and `changes` lists the changes.
        """
        self._schema, self._units = schema, units
        self.changes: list[ColumnChange] = []
        """The changes of columns that the last record needs."""
        self._convert = _Conversions(units, hidden, self.changes if collects_changes else None).of_struct(schema)

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
        self.changes.clear()
        try:
            members = _decode_members(plain)
            if (path := find_duplicate_key(plain, members, self._schema, self._units)) is not None:
                return RecordError(TYPE_MISMATCH, f"{path}: given twice")
            return [*self._convert(plain, members).values()]
        except InvalidValue as wrong:
            return RecordError(wrong.error_class, f"{wrong.path}: {wrong.text}")
        except msgspec.DecodeError as error:
            message = _BYTE.sub(lambda at: str(len(decode_special_numbers(plain[: int(at[0])]))), str(error))
            return RecordError("InvalidJson", malformed_text(text, message))


class _Conversions:
    """Creates the conversions for the types of one schema."""

    def __init__(self, units: Units, hidden: Collection[Path], changes: list[ColumnChange] | None) -> None:
        """`changes` receives the changes of columns that values need; None rejects such values."""
        self._units, self._hidden, self._changes = units, hidden, changes

    def _of(self, field: iceberg.NestedField) -> Conversion:
        unit = self._units.get(field.field_id)
        match kind := field.field_type:
            case iceberg.StructType() if unit == LISTED:
                elements = _Conversions(self._units, self._hidden, None)
                convert_fields = elements._of_fields({int(f.name): f for f in kind.fields})
                return lambda text: convert_fields(dict(enumerate(_elements(text))))
            case iceberg.StructType():
                return self.of_struct(kind)
            case iceberg.ListType():
                convert = self._of_fields({0: kind.element_field})
                return lambda text: [convert({0: raw})[kind.element_field.name] for raw in _elements(text)]
            case iceberg.MapType():
                convert = self._of_fields({0: kind.value_field})
                return lambda text: [
                    (key, convert({0: raw})[kind.value_field.name]) for key, raw in _members(text).items()
                ]
        return find_conversion(kind, unit)

    def of_struct(self, kind: iceberg.StructType) -> Callable[..., dict[str, Any]]:
        """Return a conversion whose second argument may have the parsed members of the object."""
        rest = next((field.name for field in kind.fields if is_rest(field, self._units)), None)
        part = column_parts(kind, self._units, self._hidden)
        convert_fields = self._of_fields({f.name: f for f in kind.fields if f.name != rest}, may_miss=True)
        names = [field.name for field in kind.fields]

        def convert(text: bytes, members: dict[str, msgspec.Raw] | None = None) -> dict[str, Any]:
            row = convert_fields(_members(text) if members is None else members)
            if rest is None or part is None:
                return row
            return dict.fromkeys(names) | row | {rest: rest_of(decode_special_numbers(text), part)}

        return convert

    def _of_fields(
        self, fields: Mapping[Any, iceberg.NestedField], *, may_miss: bool = False
    ) -> Callable[[Mapping[Any, msgspec.Raw]], dict[str, Any]]:
        """Return a conversion for the parts of a value, by the keys of `fields`.

        `may_miss`: whether a missing required part is collected as a change of its column, or is an error.
        """
        changes = self._changes
        missing = _refuse_null if changes is None or not may_miss else lambda name: changes.append(((name,), None))
        conversions = [(key, f.name, f.required, self._noting_changes(f)) for key, f in fields.items()]

        def convert(parts: Mapping[Any, msgspec.Raw]) -> dict[str, Any]:
            row: dict[str, Any] = {}
            name = ""
            try:
                for key, name, required, convert_part in conversions:
                    if (raw := parts.get(key)) is None or (text := bytes(raw)) == b"null":
                        row[name] = missing(name) if required else None
                    else:
                        row[name] = convert_part(text)
            except InvalidValue as wrong:
                raise wrong.within(name) from None
            return row

        return convert

    def _noting_changes(self, field: iceberg.NestedField) -> Conversion:
        convert, changes = self._of(field), self._changes
        if changes is None:
            return convert

        def convert_noting(text: bytes) -> Any:
            value, before = None, len(changes)
            try:
                value = convert(text)
            except OutOfRange as error:
                if not error.wider:
                    raise
                changes.append(((), error.wider))
            changes[before:] = [((field.name, *path), wider) for path, wider in changes[before:]]
            return value

        return convert_noting


def _refuse_null(_: str) -> None:
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
