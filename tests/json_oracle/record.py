"""Reads single JSON records without the compiled loop: the oracle of its laws.

Records are strict JSON (RFC 8259), except for NaN, Infinity and Inf. A field of the schema may occur once; other fields
only need valid syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.decode import DecodedChunk, Rejection
from frazil.ingest.formats.json.rest import Path, column_parts, is_rest
from frazil.ingest.formats.json.text import (
    RecordError,
    decode_special_numbers,
    encode_special_numbers,
    explain_invalid,
    strip_message,
)
from frazil.ingest.formats.json.types import LISTED, Units, inner_fields
from tests.json_oracle.keys import find_duplicate_keys
from tests.json_oracle.rest import rest_of
from tests.json_oracle.values import (
    MISSING,
    TYPE_MISMATCH,
    InvalidValue,
    OutOfRange,
    find_conversion,
    mismatch,
)

Row = list[Any]
Conversion = Callable[[bytes], Any]
"""Converts a value's JSON text to a value that Arrow accepts. Raises InvalidValue."""
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
        self._errors: list[tuple[Path, InvalidValue]] = []
        changes = self.changes if collects_changes else None
        self._convert = _Conversions(units, hidden, self._errors, changes).of_struct(schema)
        self._order = {path: k for k, path in enumerate(_paths(schema))}

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
        self._errors.clear()
        try:
            members = _decode_members(plain)
            if duplicates := find_duplicate_keys(plain, members, self._schema, self._units):
                path, key = min(duplicates, key=lambda found: self._order[found[0]])
                return RecordError(TYPE_MISMATCH, f"{'.'.join(path)}{key}: given twice")
            row = [*self._convert(plain, members).values()]
        except msgspec.DecodeError:
            return RecordError(*(explain_invalid(text) or ("", "")))
        if self._errors:
            path, wrong = min(self._errors, key=lambda found: self._order[found[0]])
            return RecordError(wrong.error_class, f"{'.'.join(path)}: {wrong.text}")
        return row


def _paths(kind: iceberg.IcebergType) -> Iterator[Path]:
    """Return the paths of the parts of a type, outer ones first: the order in which errors are reported."""
    for field in inner_fields(kind):
        yield (field.name,)
        yield from ((field.name, *path) for path in _paths(field.field_type))


class _Conversions:
    """Creates the conversions for the types of one schema."""

    def __init__(
        self,
        units: Units,
        hidden: Collection[Path],
        errors: list[tuple[Path, InvalidValue]],
        changes: list[ColumnChange] | None,
    ) -> None:
        """`changes` receives the changes of columns that values need; None rejects such values."""
        self._units, self._hidden, self._errors, self._changes = units, hidden, errors, changes

    def _of(self, field: iceberg.NestedField) -> Conversion:
        unit = self._units.get(field.field_id)
        match kind := field.field_type:
            case iceberg.StructType() if unit == LISTED:
                elements = _Conversions(self._units, self._hidden, self._errors, None)
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
            if rest is None or part is None or self._errors:
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
            for key, name, required, convert_part in conversions:
                before, row[name] = len(self._errors), None
                try:
                    if (raw := parts.get(key)) is None or (text := bytes(raw)) == b"null":
                        row[name] = missing(name) if required else None
                    else:
                        row[name] = convert_part(text)
                except InvalidValue as wrong:
                    self._errors.append(((), wrong))
                self._errors[before:] = [((name, *path), wrong) for path, wrong in self._errors[before:]]
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


def decode_alone(
    schema: Schema, values: Sequence[bytes | None], units: Units, hidden: Collection[Path] = ()
) -> DecodedChunk:
    """Decode each value by itself."""
    rows: list[Row] = []
    kept: list[int] = []
    rejections: list[Rejection] = []
    for index, found in enumerate(RecordReader(schema.as_struct(), units, hidden).read_all(values)):
        if isinstance(found, RecordError):
            rejections.append(Rejection(index, found.error_class, found.error))
        else:
            rows.append(found)
            kept.append(index)
    arrow = schema_to_pyarrow(schema, include_field_ids=True)
    columns = zip(*rows, strict=True) if rows else [()] * len(arrow)
    arrays = [_to_array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return DecodedChunk(pa.Table.from_arrays(arrays, schema=arrow), np.array(kept, np.int64), rejections)


def _to_array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    storage = _storage_type(kind)
    array = pa.array(values, storage)
    return array if storage == kind else array.cast(kind)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without extension types, which Arrow cannot build inside nested values."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_storage_type(field.type)) for field in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_storage_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_storage_type(kind.item_type)))
    return kind
