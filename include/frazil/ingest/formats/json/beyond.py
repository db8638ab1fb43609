"""Finds what JSON records have beyond a schema: new fields, and columns that must be wider or optional."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.record import RecordReader, Row
from frazil.ingest.formats.json.text import Refused, stripped, without_specials
from frazil.ingest.formats.json.types import Units
from frazil.ingest.formats.json.widening import NOTHING, Widening, demanded, widened
from frazil.ingest.schema_drift import (
    CROWD,
    MAX_OBJECT_FIELDS,
    WHOLE,
    Path,
    SchemaDrift,
    Seen,
    Within,
    joined_drift,
    merged,
    seen_in,
)

_untyped = msgspec.json.Decoder().decode
_MAX_REFUSED = 1000
"""Maximum number of rejected records of a chunk that are examined. The others mostly fail in the same way."""


class BeyondSchema:
    """Examines single records for fields and types that one schema does not have."""

    def __init__(
        self, schema: iceberg.StructType, units: Units, *, widening: bool, within: Sequence[Within] = WHOLE
    ) -> None:
        self._schema, self._units, self._widening, self._within = schema, units, widening, within
        self._fields = _Known.of(schema).at(within[0].path)
        self._readers: dict[Widening, RecordReader] = {}

    def __call__(self, values: Sequence[bytes | None], read: Sequence[Row | Refused]) -> SchemaDrift:
        """Return the fields and types that the schema needs for records that were read one by one. `read` has their
        results.
        """
        found = [(value, row) for value, row in zip(values, read, strict=True) if value is not None]
        sound = [value for value, row in found if not isinstance(row, Refused)]
        records = 0
        new: dict[Path, Seen] = {}
        for value in sound:
            here = self.new([value])
            records += bool(here)
            _add(new, here.items())
        refused = [value for value, row in found if isinstance(row, Refused)][:_MAX_REFUSED]
        parts = [self._wider(value) for value in refused] if self._widening else []
        return joined_drift([SchemaDrift(new, records=records), *parts])

    def new(self, values: Iterable[bytes | None]) -> dict[Path, Seen]:
        """Return the fields of valid records that are not columns, by path."""
        found: dict[Path, Seen] = {}
        for value in values:
            for part in self._parts(_parsed(value)):
                _add(found, _new(part, self._fields, ()))
        return found

    def _parts(self, record: object) -> Iterator[object]:
        """Yield the parts of a record that are examined for new fields."""
        for part in self._within:
            around, found = None, record
            for name in part.path:
                around, found = found, found.get(name) if isinstance(found, dict) else None
            if not part.beside or (isinstance(around, dict) and around.get(part.beside) in part.values):
                yield found

    def _wider(self, value: bytes) -> SchemaDrift:
        """Return which columns must change so that a rejected record becomes a row; empty if no change would
        suffice.
        """
        record = _parsed(value)
        if not any(True for _ in self._parts(record)):
            return SchemaDrift()
        wanted = demanded(record, self._schema)
        if wanted == NOTHING:
            return SchemaDrift()
        if (reader := self._readers.get(wanted)) is None:
            reader = self._readers[wanted] = RecordReader(widened(self._schema, wanted), self._units)
        if isinstance(reader(value), Refused):
            return SchemaDrift()
        return SchemaDrift(wider=dict(wanted.wider), optional=wanted.optional).within(self._within)


@dataclass(frozen=True, slots=True)
class _Known:
    """The known fields of a type, by name. The entries of a list are named `element`, those of a map `value`."""

    fields: Mapping[str, _Known]
    entries: str = ""

    @classmethod
    def of(cls, kind: iceberg.IcebergType) -> _Known:
        match kind:
            case iceberg.StructType():
                return cls({field.name: cls.of(field.field_type) for field in kind.fields})
            case iceberg.ListType():
                return cls({"element": cls.of(kind.element_type)}, "element")
            case iceberg.MapType():
                return cls({"value": cls.of(kind.value_type)}, "value")
        return cls({})

    def at(self, path: Path) -> _Known:
        found = self
        for name in path:
            found = found.fields[name]
        return found


def _new(value: object, known: _Known, path: Path) -> Iterator[tuple[Path, Seen]]:
    if known.entries:
        inside = known.fields[known.entries]
        parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        if inside.fields:
            for part in parts:
                yield from _new(part, inside, (*path, known.entries))
    elif isinstance(value, dict) and (known.fields or not path):
        new = {}
        for name, part in value.items():
            if (field := known.fields.get(name)) is None:
                if part is not None:
                    new[name] = part
            elif field.fields:
                yield from _new(part, field, (*path, name))
        if len(new) > MAX_OBJECT_FIELDS:
            new = {CROWD: ""}
        yield from (((*path, name), seen_in(part)) for name, part in new.items())


def _add(found: dict[Path, Seen], more: Iterable[tuple[Path, Seen]]) -> None:
    for path, seen in more:
        found[path] = merged(found.get(path), seen)


def _parsed(value: bytes | None) -> object:
    """Return the record parsed without a schema; None if the parser rejects it."""
    try:
        text = stripped(value)
        try:
            return _untyped(text)
        except msgspec.DecodeError:
            return _untyped(without_specials(text))
    except (Refused, msgspec.DecodeError, RecursionError):
        return None
