"""Parses Avro schemas (Avro specification 1.12), and compares them with a table's schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pyiceberg import types as iceberg

from frazil.ingest.formats.json.text import is_too_deep
from frazil.ingest.schema_drift import MAX_NESTING, MIXED, FoundType, ListOf, MapOf, Path, SchemaDrift, struct_of

DEBEZIUM_JSON = "io.debezium.data.Json"
UINT64 = "uint64"
"""The kind of Protobuf's unsigned integers of 64 bits. Other kinds are Avro's own."""
WRAPPER = "wrapper"
"""The logical type of records with one field that may fill a column themselves: Protobuf's wrappers."""
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL_TYPES = {
    **dict.fromkeys(("date", "time-millis"), ("int",)),
    **dict.fromkeys(("time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"), ("long",)),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"), ("long",)),
    "decimal": ("bytes", "fixed"),
    "big-decimal": ("bytes",),
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
    """A primitive's name, or `fixed`, `enum`, `array`, `map`, `record` or `union`; MIXED if no column can hold it."""
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
    """The types of a record's fields, a union's branches, an array's elements, or a map's values (in Protobuf, followed
    by its entries).
    """

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
    if any(is_too_deep(schema.encode("utf-8", "replace"), MAX_SCHEMA_DEPTH) for schema in (*references, text)):
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
                named_type = self._add_named("enum", declared, namespace)
                named_type.symbols = tuple(map(_require_name, declared["symbols"]))
                return named_type
            case "fixed":
                named_type = self._add_named("fixed", declared, namespace)
                value = declared["size"]
                if type(value) is not int or not 0 <= value < 2**31:
                    raise UnreadableSchema(f"{value!r} is not a size")
                named_type.size = value
                return _apply_logical(named_type, declared)
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
        record = self._add_named("record", declared, namespace)
        inside = record.name.rpartition(".")[0]
        fields = declared["fields"]
        record.fields = tuple(
            (_require_name(declared["name"]), *map(_require_name, declared.get("aliases", ()))) for declared in fields
        )
        if len({names[0] for names in record.fields}) < len(fields):
            raise UnreadableSchema(f"the record {record.name} has a field twice")
        for part in fields:
            record.parts.append(self.parse_type(part["type"], inside))
        return record

    def _add_named(self, kind: str, declared: dict[str, Any], namespace: str) -> AvroType:
        full = _full_name(_require_name(declared["name"]), declared.get("namespace", namespace))
        if full in self._named:
            raise UnreadableSchema(f"it has the type {full} twice")
        named_type = self._named[full] = AvroType(kind, name=full)
        return named_type


def _apply_logical(avro_type: AvroType, declared: dict[str, Any]) -> AvroType:
    """Set the type's declared logical type, and return the type. Ignores unknown and invalid logical types."""
    avro_type.is_json = declared.get("connect.name") == DEBEZIUM_JSON
    logical = declared.get("logicalType")
    if isinstance(logical, str) and avro_type.kind in _LOGICAL_TYPES.get(logical, ()):
        if logical == "decimal":
            precision, scale = declared.get("precision"), declared.get("scale", 0)
            if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or not precision:
                return avro_type
            avro_type.precision, avro_type.scale = precision, scale
        avro_type.logical = logical
    return avro_type


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _require_name(value: object) -> str:
    if not isinstance(value, str):
        raise UnreadableSchema(f"{value!r} is not a name")
    return value


def filled_columns(written: AvroType, names_wanted: Iterable[str]) -> dict[int, str]:
    """Return the name of the column that each field fills, by the field's index."""
    names_wanted = set(names_wanted)
    filled = {i: names[0] for i, names in enumerate(written.fields) if names[0] in names_wanted}
    for i, names in enumerate(written.fields):
        if i not in filled:
            alias = next((a for a in names[1:] if a in names_wanted and a not in filled.values()), None)
            if alias is not None:
                filled[i] = alias
    return filled


_SCALAR_TYPES = {
    **{name: name for name in ("boolean", "int", "long", "float", "double", "string")},
    "bytes": "binary",
    "enum": "string",
    UINT64: "decimal(20, 0)",
    MIXED: MIXED,
}
_WIDER_TYPES: dict[tuple[str, type[iceberg.IcebergType]], str] = {
    ("long", iceberg.IntegerType): "long",
    ("double", iceberg.FloatType): "double",
}
_MAX_DIGITS = 38
_MAX_PARTS = 10_000


def find_drift(written: AvroType, struct: iceberg.StructType, *, allows_wider: bool) -> SchemaDrift:
    changes = [*_find_changes(written, struct, (), frozenset())]
    new = {path: found_type for path, found_type, _ in changes if found_type is not None}
    return SchemaDrift(new, {path: kind for path, _, kind in changes if kind} if allows_wider else {})


def _find_changes(
    written: AvroType, kind: iceberg.IcebergType, path: Path, inside: frozenset[int]
) -> Iterator[tuple[Path, FoundType, str]]:
    """Yield `(path, type, "")` for a new field, and `(path, None, wider type)` for a column that needs a wider type."""
    if written.kind == "union" or (written.logical == WRAPPER and not isinstance(kind, iceberg.StructType)):
        for branch in written.parts:
            yield from _find_changes(branch, kind, path, inside)
        return
    match written.kind, kind:
        case "record", iceberg.StructType():
            columns, within = {field.name: field.field_type for field in kind.fields}, inside | {id(written)}
            filled = filled_columns(written, columns)
            for i, (part, names) in enumerate(zip(written.parts, written.fields, strict=True)):
                if i in filled:
                    yield from _find_changes(part, columns[filled[i]], (*path, filled[i]), within)
                else:
                    yield (*path, names[0]), column_type_of(part, within), ""
        case "array", iceberg.ListType():
            yield from _find_changes(written.parts[0], kind.element_type, (*path, "element"), inside)
        case "map", iceberg.MapType():
            yield from _find_changes(written.parts[0], kind.value_type, (*path, "value"), inside)
        case "map", iceberg.ListType() if len(written.parts) > 1:
            yield from _find_changes(written.parts[1], kind.element_type, (*path, "element"), inside)
        case _, iceberg.DecimalType() if written.logical == "decimal" and written.scale == kind.scale:
            if kind.precision < written.precision <= _MAX_DIGITS:
                yield path, None, f"decimal({written.precision}, {written.scale})"
        case _ if not written.logical and (wider := _WIDER_TYPES.get((written.kind, type(kind)))):
            yield path, None, wider


def column_type_of(written: AvroType, inside: frozenset[int] = frozenset()) -> FoundType:
    """Return the type for an Avro type; None for `null`, MIXED if it is recursive or too large.

    `inside` has the enclosing types' ids.
    """
    try:
        return _type_of(written, inside, count())
    except TooLarge:
        return MIXED


def _type_of(written: AvroType, inside: frozenset[int], numbers: Iterator[int]) -> FoundType:  # noqa: PLR0911, PLR0912 - a table
    """Return the type. `numbers` counts the parts; a named type counts each time that it is used. Raises TooLarge."""
    if next(numbers) >= _MAX_PARTS:
        raise TooLarge(f"it has more than {_MAX_PARTS:,} parts")
    if id(written) in inside or len(inside) > MAX_NESTING:
        return MIXED
    within = inside | {id(written)}
    match written.kind if not written.logical else "":
        case "null":
            return None
        case "union":
            branches = [part for part in written.parts if part.kind != "null"]
            return None if not branches else _type_of(branches[0], within, numbers) if len(branches) == 1 else MIXED
        case "record":
            names = (names[0] for names in written.fields)
            parts = (_type_of(part, within, numbers) for part in written.parts)
            return struct_of(dict(zip(names, parts, strict=True)))
        case "array":
            return ListOf(_type_of(written.parts[0], within, numbers))
        case "map":
            return MapOf(_type_of(written.parts[0], within, numbers))
    match written.logical:
        case logical if logical == WRAPPER:
            return _type_of(written.parts[0], within, numbers)
        case "date":
            return "date"
        case "decimal":
            fits = written.precision <= _MAX_DIGITS
            return f"decimal({written.precision}, {written.scale})" if fits else MIXED
        case "time-millis" | "time-micros" | "big-decimal":
            return MIXED  # Spark cannot read a table with a column of times; each big decimal has its own scale
        case logical if logical:
            return "timestamp" if logical.startswith("local-") else "timestamptz"
    if written.kind == "fixed":
        return f"fixed[{written.size}]" if written.size else MIXED  # Parquet has no column of length 0
    return _SCALAR_TYPES[written.kind]
