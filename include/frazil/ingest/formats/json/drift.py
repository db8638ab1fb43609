"""Finds fields of JSON records that the schema does not have, and columns that must become wider or optional."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.text import SPECIALS, RecordError, encode_special_numbers, strip_message
from frazil.ingest.schema_drift import (
    MAX_OBJECT_FIELDS,
    TOO_MANY_FIELDS,
    DriftScope,
    FoundType,
    Path,
    SchemaDrift,
    join_drift,
    merge_types,
    type_of_value,
)

_TOO_LARGE = object()
"""Replaces numbers that are too large for a double, so that their type is MIXED."""
_SPECIAL_NUMBERS = {number.decode(): float(name) for name, number in SPECIALS.items()}


def _parse_number(text: str) -> object:
    value = _SPECIAL_NUMBERS.get(text)
    return value if value is not None else float(text) if isfinite(float(text)) else _TOO_LARGE


_decode_untyped = msgspec.json.Decoder(float_hook=_parse_number).decode


class DriftFinder:
    def __init__(self, schema: iceberg.StructType, within: Sequence[DriftScope]) -> None:
        self._within = within
        self._examined: iceberg.IcebergType = schema
        for name in within[0].path:
            assert isinstance(self._examined, iceberg.StructType)
            self._examined = next(f.field_type for f in self._examined.fields if f.name == name)

    def find_new_fields(self, values: Iterable[bytes | None]) -> dict[Path, FoundType]:
        """Return the type of each field that has no column, by path. The table or its wider form accepts the values."""
        fields: dict[Path, FoundType] = {}
        for value in values:
            for part in self._examined_parts(_parse(value)):
                for path, found_type in _new_fields(part, self._examined, ()):
                    fields[path] = merge_types(fields.get(path), found_type)
        return fields

    def _examined_parts(self, record: object) -> Iterator[object]:
        for part in self._within:
            around, value = None, record
            for name in part.path:
                around, value = value, value.get(name) if isinstance(value, dict) else None
            if not part.selector or (isinstance(around, dict) and around.get(part.selector) in part.values):
                yield value

    def find_changes(self, value: bytes, drift: SchemaDrift) -> SchemaDrift:
        """Return the column changes in `drift`, which would accept a rejected record, and the record's new fields.

        Empty if none of the changes is in an examined struct of the record.
        """
        changes = drift.within(self._within)
        if not changes or not any(True for _ in self._examined_parts(_parse(value))):
            return SchemaDrift()
        new = self.find_new_fields([value])
        return join_drift([changes, SchemaDrift(new, records=bool(new))])


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
            declared = {field.name for field in kind.fields}
            new = {name: part for name, part in value.items() if name not in declared and part is not None}
            if len(new) > MAX_OBJECT_FIELDS:
                new = {TOO_MANY_FIELDS: ""}
            yield from (((*path, name), type_of_value(part)) for name, part in new.items())


def _parse(value: bytes | None) -> object:
    """Parse the record without a schema. Returns None if the parser rejects it."""
    try:
        return _decode_untyped(encode_special_numbers(strip_message(value)))
    except (RecordError, msgspec.DecodeError, RecursionError):
        return None
