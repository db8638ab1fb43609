"""Derives columns from the schemas that a schema registry has for a topic."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frazil.errors import SpecError
from frazil.infer.columns import TIME_TYPES, ProposedColumn, find_column_problem
from frazil.infer.sample import Sample
from frazil.ingest.formats.avro.schema import AvroType, UnreadableSchema, column_type_of, parse_schema
from frazil.ingest.formats.json.lines import FRAME_BYTES
from frazil.ingest.schema_drift import (
    MAX_NESTING,
    MIXED,
    FoundType,
    ListOf,
    MapOf,
    StructOf,
    merge_all,
    type_of_value,
)
from frazil.registry.client import SchemaRegistry, SchemaText, UnknownSchema
from frazil.spec.formats import Registry
from frazil.spec.types import name_key

MAX_SCHEMA_IDS = 50
"""Maximum number of ids to request, most frequent first. Values without an id look like many different ids."""
_MAX_PARTS = 10_000
"""Maximum number of parts that are read from a JSON Schema: nested references can multiply parts exponentially."""
_STRING_FORMATS = {"date-time": "timestamptz", "date": "date", "uuid": "uuid"}


@dataclass(frozen=True, slots=True)
class RegisteredSchemas:
    registry: Registry
    schemas: tuple[SchemaText, ...]
    """Schemas of one type: first the newest version of `<topic>-value`, if it exists."""
    is_framed: bool
    """Whether most sampled values, if any, begin with a schema id."""
    unknown: tuple[int, ...] = ()

    @property
    def type(self) -> str:
        return self.schemas[0].type


def fetch_registered_schemas(sample: Sample, declared: Registry, client: SchemaRegistry) -> RegisteredSchemas | None:
    """Fetch the newest schema of `<topic>-value`, and the schemas with ids in the sample; None if none exists.

    Raises RegistryUnavailable, and SpecError if the schemas have different types.
    """
    values = [record.value for record in sample.records if record.value]
    framed = [value for value in values if value[0] == 0 and len(value) > FRAME_BYTES]
    is_framed = 2 * len(framed) > len(values) or not values
    ids = Counter(int.from_bytes(value[1:FRAME_BYTES], signed=True) for value in framed if is_framed)
    schemas: dict[SchemaText, None] = {}
    if (newest := client.newest(f"{sample.topic}-value")) is not None:
        schemas[newest] = None
    unknown = []
    for schema_id, _ in ids.most_common(MAX_SCHEMA_IDS):
        try:
            schemas[client.get(schema_id)] = None
        except UnknownSchema:
            unknown.append(schema_id)
    if not schemas:
        return None
    if len(types := {schema.type for schema in schemas}) > 1:
        raise SpecError(
            f"the registry has schemas of several types for {sample.topic}: {', '.join(sorted(types))}. A stream has "
            "one format, so write the declaration by hand"
        )
    return RegisteredSchemas(declared, tuple(schemas), is_framed, tuple(unknown))


def derive_avro_columns(schemas: Sequence[SchemaText]) -> tuple[ProposedColumn, ...]:
    """Return a column for each field. Raises SpecError if a schema is not a record."""
    return _merge_columns([_read_avro_fields(schema) for schema in schemas])


def derive_json_columns(schemas: Sequence[SchemaText], sampled: Sequence[ProposedColumn]) -> tuple[ProposedColumn, ...]:
    """Return a column for each property of JSON Schemas, and for each field that only the sample has.

    Only the sample shows which numbers and strings are times, and in which unit.
    """
    by_name = {column.name: column for column in sampled}
    written = _merge_columns([dict(_JsonSchema(schema).fields()) for schema in schemas])
    names = {column.name for column in written}
    beyond = [
        replace(c, required=False, remark=_join_remarks(c.remark, "not in the schema"))
        for c in sampled
        if c.name not in names
    ]
    return (*(_add_sampled_facts(column, by_name.get(column.name)) for column in written), *beyond)


def _add_sampled_facts(column: ProposedColumn, sampled: ProposedColumn | None) -> ProposedColumn:
    """Complete a column with facts from the sample: times, units, and missing types."""
    if sampled is None or sampled.type is None:
        return column
    typed = replace(column, distinct=sampled.distinct, distance_s=sampled.distance_s)
    if column.type is None or column.remark == _NO_TYPE:
        return replace(
            sampled, required=column.required, remark=_join_remarks(sampled.remark, "the schema gives no type")
        )
    if column.type == "long" and sampled.unit:
        return replace(typed, type=sampled.type, unit=sampled.unit)
    if column.type == "string" and sampled.type not in {"string", "binary"} and not sampled.remark:
        remark = f"string in the schema, but each sampled value is a {sampled.type}"
        return replace(typed, type=sampled.type, remark=_join_remarks(column.remark, remark))
    return typed


def _join_remarks(remark: str, other: str) -> str:
    return f"{remark}; {other}" if remark else other


@dataclass(frozen=True, slots=True)
class _Field:
    found_type: FoundType
    required: bool


_NO_TYPE = "no type is known"


def _merge_columns(schemas: Sequence[Mapping[str, _Field]]) -> tuple[ProposedColumn, ...]:
    """Return a column for each field. A column is required if every schema has its field and requires it."""
    names = dict.fromkeys(name for fields in schemas for name in fields)
    by_lower_name: dict[str, str] = {}
    columns = []
    for name in names:
        if reason := find_column_problem(name, by_lower_name, allows_dots=True):
            columns.append(ProposedColumn(name, None, remark=reason))
            continue
        by_lower_name[name_key(name)] = name
        having = [fields[name] for fields in schemas if name in fields]
        found_type = merge_all(field.found_type for field in having)
        kind = _format_type(found_type)
        remark = "" if found_type is not None else _NO_TYPE
        if kind is None:
            remark = "no column type can store all values that the schemas allow"
        elif len(having) < len(schemas):
            remark = _join_remarks(remark, f"in {len(having)} of {len(schemas)} schemas")
        required = len(having) == len(schemas) and all(field.required for field in having)
        near_s = 0.0 if kind in TIME_TYPES else float("inf")
        columns.append(ProposedColumn(name, kind, required and kind is not None, remark=remark, distance_s=near_s))
    return tuple(columns)


def _format_type(found_type: FoundType) -> str | None:
    """Return the declared form of a type; None if no column type fits. Omits struct fields that no column type fits."""
    match found_type:
        case None:
            return "string"
        case ListOf():
            return None if (inside := _format_type(found_type.element)) is None else f"list<{inside}>"
        case MapOf():
            return None if (inside := _format_type(found_type.value)) is None else f"map<string, {inside}>"
        case StructOf():
            plain = [name for name in found_type.fields if re.fullmatch(r"[A-Za-z_]\w*", name)]
            distinct = {name_key(name): name for name in reversed(plain)}  # of equal names, the first
            kinds = {name: _format_type(found_type.fields[name]) for name in plain if name in distinct.values()}
            inside = ", ".join(f"{name}: {kind}" for name, kind in kinds.items() if kind is not None)
            return f"struct<{inside}>" if inside else None
    return None if found_type == MIXED else found_type


def _read_avro_fields(schema: SchemaText) -> dict[str, _Field]:
    try:
        written = parse_schema(schema.text, [text for _, text in schema.references])
    except UnreadableSchema as error:
        raise SpecError(f"the registry's schema is not a valid Avro schema: {error}") from None
    if written.kind != "record":
        raise SpecError(f"the registry's schema is {written}, but must be a record, whose fields become columns")
    parts = zip(written.fields, written.parts, strict=True)
    return {names[0]: _Field(column_type_of(part), not _is_nullable(part)) for names, part in parts}


def _is_nullable(written: AvroType) -> bool:
    return written.kind == "null" or (written.kind == "union" and any(part.kind == "null" for part in written.parts))


class _JsonSchema:
    def __init__(self, schema: SchemaText) -> None:
        """Raises SpecError if the text is not JSON."""
        try:
            self._root = json.loads(schema.text)
            self._references = {name: json.loads(text) for name, text in schema.references}
        except (ValueError, RecursionError) as error:
            raise SpecError(f"the registry's schema is not a JSON Schema: {error}") from None
        self._read = 0
        self._inside: set[int] = set()

    def fields(self) -> Iterator[tuple[str, _Field]]:
        root = self._resolve_reference(self._root, self._root)
        self._inside.add(id(root[0]))
        for name, (found_type, nullable) in self._read_properties(*root, depth=0).items():
            value = root[0].get("required")
            yield name, _Field(found_type, not nullable and name in (value if isinstance(value, list) else []))

    def _read_properties(
        self, node: Mapping[str, Any], document: Any, *, depth: int
    ) -> dict[str, tuple[FoundType, bool]]:
        by_name = {}
        for part in [*_select_mappings(node.get("allOf")), node]:
            inner, its = self._resolve_reference(part, document)
            properties = inner.get("properties")
            for name, schema in properties.items() if isinstance(properties, dict) else ():
                by_name[str(name)] = self._read_type(schema, its, depth + 1)
        return by_name

    def _read_type(self, node: Any, document: Any, depth: int) -> tuple[FoundType, bool]:
        """Return a value's type (MIXED if it is recursive or too large), and whether it may be null."""
        node, document = self._resolve_reference(node, document)
        self._read += 1
        if depth > MAX_NESTING or self._read > _MAX_PARTS or id(node) in self._inside:
            return MIXED, True
        self._inside.add(id(node))
        try:
            return self._read_resolved_type(node, document, depth)
        finally:
            self._inside.discard(id(node))

    def _read_resolved_type(  # noqa: PLR0911 - a table
        self, node: Mapping[str, Any], document: Any, depth: int
    ) -> tuple[FoundType, bool]:
        if choices := [*_select_mappings(node.get("oneOf")), *_select_mappings(node.get("anyOf"))]:
            return self._merge_choices([self._read_type(choice, document, depth + 1) for choice in choices])
        kinds = node.get("type")
        if isinstance(kinds, list):
            return self._merge_choices([self._read_type({**node, "type": kind}, document, depth + 1) for kind in kinds])
        match kinds:
            case "null":
                return None, True
            case "string":
                return _STRING_FORMATS.get(str(node.get("format")), "string"), False
            case "integer" | "number" | "boolean":
                return {"integer": "long", "number": "double", "boolean": "boolean"}[kinds], False
            case "array":
                items = node.get("items")
                if isinstance(items, list) or "prefixItems" in node:
                    return MIXED, False  # a tuple: each element has its own type
                return ListOf(
                    self._read_type(items, document, depth + 1)[0] if isinstance(items, dict) else None
                ), False
        if kinds == "object" or "properties" in node or "allOf" in node:
            properties = self._read_properties(node, document, depth=depth)
            if properties:
                return StructOf({name: found_type for name, (found_type, _) in properties.items()}), False
            values = node.get("additionalProperties")
            return (
                MapOf(self._read_type(values, document, depth + 1)[0]) if isinstance(values, dict) else MIXED
            ), False
        constants = node["enum"] if isinstance(node.get("enum"), list) else [node["const"]] if "const" in node else []
        return self._merge_choices([(type_of_value(value), value is None) for value in constants])

    def _merge_choices(self, choices: Sequence[tuple[FoundType, bool]]) -> tuple[FoundType, bool]:
        found_type = merge_all(found_type for found_type, _ in choices)
        return found_type, not choices or any(nullable for _, nullable in choices)

    def _resolve_reference(self, node: Any, document: Any) -> tuple[dict[str, Any], Any]:
        """Follow a node's `$ref`. Return the target (empty if it is missing) and the document that contains it."""
        for _ in range(MAX_NESTING):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                break
            where, _, pointer = node["$ref"].partition("#")
            document = self._references.get(where) if where else document
            node = document
            for step in pointer.split("/")[1:]:
                key = step.replace("~1", "/").replace("~0", "~")
                node = node.get(key) if isinstance(node, dict) else None
        return (node if isinstance(node, dict) else {}), document


def _select_mappings(value: Any) -> list[dict[str, Any]]:
    return [branch for branch in value if isinstance(branch, dict)] if isinstance(value, list) else []
