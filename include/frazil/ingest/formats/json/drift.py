"""Finds fields of JSON records that the schema does not have, and columns that must become wider or optional."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.record import RecordReader, Row
from frazil.ingest.formats.json.text import RecordError, encode_special_numbers, strip_message
from frazil.ingest.formats.json.types import Units
from frazil.ingest.formats.json.values import SPECIAL_NUMBERS
from frazil.ingest.schema_drift import (
    MAX_OBJECT_FIELDS,
    TOO_MANY_FIELDS,
    WHOLE_RECORD,
    DriftScope,
    FoundType,
    Path,
    SchemaDrift,
    join_drift,
    merge_types,
    type_of_value,
    wider_of,
)

_TOO_LARGE = object()
"""Replaces numbers that are too large for a double, so that their type is MIXED."""


def _parse_number(text: str) -> object:
    value = SPECIAL_NUMBERS.get(text.encode())
    return value if value is not None else float(text) if isfinite(float(text)) else _TOO_LARGE


_decode_untyped = msgspec.json.Decoder(float_hook=_parse_number).decode
_MAX_EXAMINED_REJECTS = 1000


class DriftFinder:
    def __init__(
        self, schema: iceberg.StructType, units: Units, *, widening: bool, within: Sequence[DriftScope] = WHOLE_RECORD
    ) -> None:
        self._widening, self._within = widening, within
        self._examined: iceberg.IcebergType = schema
        for name in within[0].path:
            assert isinstance(self._examined, iceberg.StructType)
            self._examined = next(f.field_type for f in self._examined.fields if f.name == name)
        self._reader = RecordReader(schema, units, collects_changes=True)

    def __call__(self, values: Sequence[bytes | None], read: Sequence[Row | RecordError]) -> SchemaDrift:
        found = [(value, row) for value, row in zip(values, read, strict=True) if value is not None]
        valid = [value for value, row in found if not isinstance(row, RecordError)]
        refused = [value for value, row in found if isinstance(row, RecordError)][:_MAX_EXAMINED_REJECTS]
        changes = [(value, self._find_widening(value)) for value in refused] if self._widening else []
        records = 0
        new: dict[Path, FoundType] = {}
        for value in [*valid, *(value for value, change in changes if change)]:
            here = self.find_new_fields([value])
            records += bool(here)
            _merge_into(new, here.items())
        return join_drift([SchemaDrift(new, records=records), *(change for _, change in changes)])

    def find_new_fields(self, values: Iterable[bytes | None]) -> dict[Path, FoundType]:
        """Return the type of each field that has no column, by path. The table or its wider form accepts the values."""
        found: dict[Path, FoundType] = {}
        for value in values:
            for part in self._examined_parts(_parse(value)):
                _merge_into(found, _new_fields(part, self._examined, ()))
        return found

    def _examined_parts(self, record: object) -> Iterator[object]:
        for part in self._within:
            around, found = None, record
            for name in part.path:
                around, found = found, found.get(name) if isinstance(found, dict) else None
            if not part.selector or (isinstance(around, dict) and around.get(part.selector) in part.values):
                yield found

    def _find_widening(self, value: bytes) -> SchemaDrift:
        """Return the column changes that would accept a rejected record; empty if none would."""
        if not any(True for _ in self._examined_parts(_parse(value))):
            return SchemaDrift()
        if isinstance(self._reader(value), RecordError):
            return SchemaDrift()
        wider: dict[Path, str] = {}
        for path, kind in self._reader.changes:
            if kind is not None:
                wider[path] = wider_of(wider.get(path, kind), kind)
        optional = frozenset(path for path, kind in self._reader.changes if kind is None)
        return SchemaDrift(wider=wider, optional=optional).within(self._within)


def _new_fields(value: object, kind: iceberg.IcebergType, path: Path) -> Iterator[tuple[Path, FoundType]]:
    match kind:
        case iceberg.ListType() if isinstance(value, list) and not kind.element_type.is_primitive:
            for part in value:
                yield from _new_fields(part, kind.element_type, (*path, "element"))
        case iceberg.MapType() if isinstance(value, dict) and not kind.value_type.is_primitive:
            for part in value.values():
                yield from _new_fields(part, kind.value_type, (*path, "value"))
        case iceberg.StructType() if isinstance(value, dict) and (kind.fields or not path):
            for field in kind.fields:
                yield from _new_fields(value.get(field.name), field.field_type, (*path, field.name))
            known = {field.name for field in kind.fields}
            new = {name: part for name, part in value.items() if name not in known and part is not None}
            if len(new) > MAX_OBJECT_FIELDS:
                new = {TOO_MANY_FIELDS: ""}
            yield from (((*path, name), type_of_value(part)) for name, part in new.items())


def _merge_into(found: dict[Path, FoundType], more: Iterable[tuple[Path, FoundType]]) -> None:
    for path, found_type in more:
        found[path] = merge_types(found.get(path), found_type)


def _parse(value: bytes | None) -> object:
    """Parse the record without a schema. Returns None if the parser rejects it."""
    try:
        return _decode_untyped(encode_special_numbers(strip_message(value)))
    except (RecordError, msgspec.DecodeError, RecursionError):
        return None
