"""Parses Avro schemas: resolves names and logical types (Avro specification 1.12)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil.ingest.formats.json.text import is_too_deep

DEBEZIUM_JSON = "io.debezium.data.Json"
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL_TYPES = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
}
"""Supported logical types, and the Avro types that they may annotate. Other logical types are ignored."""
MAX_SCHEMA_DEPTH = 250
"""Maximum nesting in a schema's JSON, because Python limits the depth of calls."""


class UnreadableSchema(Exception):
    """A schema's text is not valid in its format."""


class TooLarge(Exception):
    """The schema is valid, but too large to be compiled."""


@dataclass(slots=True, eq=False)
class AvroType:
    """A type in an Avro schema. Types are compared by identity, because a record type may contain itself."""

    kind: str
    """A primitive's name, or `fixed`, `enum`, `array`, `map`, `record` or `union`."""
    name: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    is_json: bool = False
    """Whether a string contains JSON (Debezium's `io.debezium.data.Json`)."""
    symbols: tuple[str, ...] = ()
    fields: tuple[tuple[str, ...], ...] = ()
    """Each field's names: its own name first, then its aliases."""
    parts: list[AvroType] = field(default_factory=list)
    """The types of a record's fields, a union's branches, an array's elements, or a map's values."""

    def __str__(self) -> str:
        plain = f"{self.kind} {self.name}".strip()
        return f"{self.logical} ({plain})" if self.logical else plain


def field_names_at(written: AvroType, path: Sequence[str]) -> Iterator[str]:
    for record in written.parts if written.kind == "union" else [written]:
        for names, part in zip(record.fields, record.parts, strict=False):
            if not path:
                yield from names
            elif path[0] in names:
                yield from field_names_at(part, path[1:])


def parse_schema(text: str, references: Sequence[str] = ()) -> AvroType:
    """Parse a schema's JSON. `references` are the schemas that it uses, dependencies first. Raises UnreadableSchema."""
    if any(is_too_deep(one.encode("utf-8", "replace"), MAX_SCHEMA_DEPTH) for one in (*references, text)):
        raise UnreadableSchema(f"its JSON is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    parser = _SchemaParser()
    try:
        for reference in references:
            parser.parse_type(json.loads(reference), "")
        return parser.parse_type(json.loads(text), "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableSchema(f"{type(error).__name__}: {error}") from None


class _SchemaParser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse_type(self, declared: Any, namespace: str) -> AvroType:  # noqa: PLR0911 - one for each form
        if isinstance(declared, str):
            return self._find_type(declared, namespace)
        if isinstance(declared, list):
            branches = [self.parse_type(branch, namespace) for branch in declared]
            if not branches or any(branch.kind == "union" for branch in branches):
                raise UnreadableSchema("a union is empty, or directly inside another one")
            return AvroType("union", parts=branches)
        if not isinstance(declared, dict):
            raise UnreadableSchema(f"{declared!r} is not a type")
        kind = declared["type"]
        match kind:
            case "record" | "error":
                return self._parse_record(declared, namespace)
            case "enum":
                found = self._add_named("enum", declared, namespace)
                found.symbols = tuple(map(_require_name, declared["symbols"]))
                return found
            case "fixed":
                found = self._add_named("fixed", declared, namespace)
                value = declared["size"]
                if type(value) is not int or not 0 <= value < 2**31:
                    raise UnreadableSchema(f"{value!r} is not a size")
                found.size = value
                return _apply_logical(found, declared)
            case "array":
                return AvroType("array", parts=[self.parse_type(declared["items"], namespace)])
            case "map":
                return AvroType("map", parts=[self.parse_type(declared["values"], namespace)])
        if kind in PRIMITIVES:
            return _apply_logical(AvroType(kind), declared)
        return self.parse_type(kind, namespace)

    def _find_type(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        for full in (_full_name(name, namespace), name):
            if full in self._named:
                return self._named[full]
        raise UnreadableSchema(f"it refers to the type {name}, but does not define it")

    def _parse_record(self, declared: dict[str, Any], namespace: str) -> AvroType:
        found = self._add_named("record", declared, namespace)
        inside = found.name.rpartition(".")[0]
        fields = declared["fields"]
        found.fields = tuple(
            (_require_name(one["name"]), *map(_require_name, one.get("aliases", ()))) for one in fields
        )
        if len({names[0] for names in found.fields}) < len(fields):
            raise UnreadableSchema(f"the record {found.name} has a field twice")
        for one in fields:
            found.parts.append(self.parse_type(one["type"], inside))
        return found

    def _add_named(self, kind: str, declared: dict[str, Any], namespace: str) -> AvroType:
        full = _full_name(_require_name(declared["name"]), declared.get("namespace", namespace))
        if full in self._named:
            raise UnreadableSchema(f"it has the type {full} twice")
        found = self._named[full] = AvroType(kind, name=full)
        return found


def _apply_logical(found: AvroType, declared: dict[str, Any]) -> AvroType:
    """Set the type's declared logical type, and return the type. Ignores unknown and invalid logical types."""
    found.is_json = declared.get("connect.name") == DEBEZIUM_JSON
    logical = declared.get("logicalType")
    if isinstance(logical, str) and found.kind in _LOGICAL_TYPES.get(logical, ()):
        if logical == "decimal":
            precision, scale = declared.get("precision"), declared.get("scale", 0)
            if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or not precision:
                return found
            found.precision, found.scale = precision, scale
        found.logical = logical
    return found


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _require_name(value: object) -> str:
    if not isinstance(value, str):
        raise UnreadableSchema(f"{value!r} is not a name")
    return value
