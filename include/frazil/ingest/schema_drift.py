"""Schema drift: new fields of records, and values that need wider or optional columns. The merged
drift of records does not depend on their order: `merge_types` is associative, commutative and idempotent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from heapq import nsmallest
from itertools import count
from typing import Any, NamedTuple

import msgspec
from pyiceberg import types as iceberg

from frazil.spec.iceberg import iceberg_type
from frazil.spec.types import SAME_NAMES, name_key
from frazil.typed_json import convert

Path = tuple[str, ...]
"""Names of the fields that lead to a value. `element` and `value` lead into lists and maps, as in Iceberg's schemas."""

MIXED = "mixed"
"""The type of values without a common type."""
MAX_NESTING = 20
"""Maximum nesting depth. Deeper values are MIXED."""
MAX_OBJECT_FIELDS = 1_000
"""Maximum number of an object's fields. A larger object is MIXED, because its keys are probably data."""
TOO_MANY_FIELDS = "\0"
"""Replaces the names of an object's new fields if there are too many. It is never a column's name."""
MAX_NEW_FIELDS = 10_000
MAX_REPORTED_NAMES = 8
"""Maximum number of field names to report for records that fill no column."""
MAX_NAME_CHARACTERS = 64
_LONGS = range(-(2**63), 2**63)
_NUMBERS = ("int", "long", "float", "double")


class ListOf(msgspec.Struct, frozen=True, tag="list"):
    element: FoundType


class StructOf(msgspec.Struct, frozen=True, tag="struct"):
    fields: Mapping[str, FoundType]


class MapOf(msgspec.Struct, frozen=True, tag="map"):
    """The type of a map with string keys."""

    value: FoundType


FoundType = None | str | ListOf | StructOf | MapOf
"""The type of observed values: a primitive type's name, MIXED, or a nested type. None if all values were null."""


class DriftScope(NamedTuple):
    """A struct of the records that is searched for new fields. Their paths are relative to the struct."""

    path: Path = ()
    selector: str = ""
    """A field next to the struct. Only records are searched that have one of `values` in this field; empty for all."""
    values: frozenset[str] = frozenset()


WHOLE_RECORD = (DriftScope(),)


@dataclass(frozen=True, slots=True)
class SchemaDrift:
    """Fields and types that some records have, but the schema does not."""

    new: Mapping[Path, FoundType] = field(default_factory=dict)
    wider: Mapping[Path, str] = field(default_factory=dict)
    """The type (`long`, `double` or a decimal) that each too narrow column needs, by path."""
    optional: frozenset[Path] = frozenset()
    """Paths of required columns that have no value in an otherwise valid record."""
    records: int = 0
    unknown: int = 0
    """Number of records that fill no column. Counted even if the table must not evolve."""
    names: tuple[str, ...] = ()
    cast: Mapping[str, int] = field(default_factory=dict)
    """Number of values that a lenient cast converted, by column."""
    unplaced: int = 0
    """Number of change events without a position in the source's log."""

    def within(self, parts: Sequence[DriftScope]) -> SchemaDrift:
        """Return the drift inside these structs. Each path becomes relative to its struct."""
        if parts == WHOLE_RECORD:
            return self
        each = [
            SchemaDrift(
                {path[len(p) :]: found_type for path, found_type in self.new.items() if _is_in(path, p)},
                {path[len(p) :]: kind for path, kind in self.wider.items() if _is_in(path, p)},
                frozenset(path[len(p) :] for path in self.optional if _is_in(path, p)),
            )
            for p, *_ in parts
        ]
        records = self.records if any(drift.new for drift in each) else 0
        return join_drift([SchemaDrift(records=records), self.without_changes(), *each])

    def without_changes(self) -> SchemaDrift:
        """Return only the counts: unknown records, casts, and change events without a position."""
        return SchemaDrift(unknown=self.unknown, names=self.names, cast=self.cast, unplaced=self.unplaced)

    def __bool__(self) -> bool:
        return bool(self.is_change or self.unknown or self.cast or self.unplaced)

    @property
    def is_change(self) -> bool:
        """Whether a change of the table could accept more of these records."""
        return bool(self.new or self.wider or self.optional or self.records)

    def to_json(self) -> dict[str, Any]:
        pairs = {"new": [*self.new.items()], "wider": [*self.wider.items()]}  # JSON keys cannot be paths
        return {**msgspec.to_builtins(replace(self, new={}, wider={})), **msgspec.to_builtins(pairs)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SchemaDrift:
        new = convert(value["new"], list[tuple[Path, FoundType]])
        wider = convert(value["wider"], list[tuple[Path, str]])
        return replace(convert({**value, "new": {}, "wider": {}}, cls), new=dict(new), wider=dict(wider))


NO_DRIFT = SchemaDrift()


def _is_in(path: Path, part: Path) -> bool:
    return len(path) > len(part) and path[: len(part)] == part


def join_drift(parts: Iterable[SchemaDrift]) -> SchemaDrift:
    new: dict[Path, FoundType] = {}
    wider: dict[Path, str] = {}
    optional: set[Path] = set()
    records = unknown = unplaced = 0
    names: set[str] = set()
    cast: Counter[str] = Counter()
    for part in parts:
        cast.update(part.cast)
        unplaced += part.unplaced
        unknown += part.unknown
        names.update(part.names)
        for path, found_type in part.new.items():
            new[path] = merge_types(new.get(path), found_type)
        for path, kind in part.wider.items():
            wider[path] = wider_of(wider.get(path, kind), kind)
        optional |= part.optional
        records += part.records
    if len(new) > MAX_NEW_FIELDS:
        new = {path: new[path] for path in nsmallest(MAX_NEW_FIELDS, new)}
    return SchemaDrift(new, wider, frozenset(optional), records, unknown, select_names(names), dict(cast), unplaced)


def select_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(nsmallest(MAX_REPORTED_NAMES, {name[:MAX_NAME_CHARACTERS] for name in names}))


def merge_types(first: FoundType, other: FoundType) -> FoundType:  # noqa: PLR0911 - a table
    """Return the narrowest type for the values of both types; MIXED if none exists."""
    if first is None:
        return other
    if other is None or first is other:
        return first
    match first, other:
        case ListOf(), ListOf():
            element = merge_types(first.element, other.element)
            return first if element is first.element else ListOf(element)
        case StructOf(), StructOf():
            parts = {name: merge_types(first.fields.get(name), part) for name, part in other.fields.items()}
            if all(name in first.fields and first.fields[name] is part for name, part in parts.items()):
                return first
            return struct_of({**first.fields, **parts})
        case MapOf(), MapOf():
            value = merge_types(first.value, other.value)
            return first if value is first.value else MapOf(value)
        case str(), str():
            return first if first == other else _merge_primitives(first, other)
    return MIXED


def merge_all(types: Iterable[FoundType]) -> FoundType:
    return reduce(merge_types, types, None)


def struct_of(fields: Mapping[str, FoundType]) -> FoundType:
    return MIXED if len(fields) > MAX_OBJECT_FIELDS else StructOf(fields)


def _merge_primitives(first: str, other: str) -> str:
    if first in _NUMBERS and other in _NUMBERS:
        return "long" if {first, other} == {"int", "long"} else "double"
    decimals = _parse_decimal(first), _parse_decimal(other)
    if decimals[0] and decimals[1] and decimals[0][1] == decimals[1][1]:
        return wider_of(first, other)
    return MIXED


def type_of_value(value: object, depth: int = 0) -> FoundType:  # noqa: PLR0911 - a table
    """Return the type of a parsed JSON value. An integer of more than 64 bits is a double."""
    if depth > MAX_NESTING:
        return MIXED
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return "long" if value in _LONGS else "double"
        case float():
            return "double"
        case str():
            return "string"
        case list():
            return ListOf(merge_all(type_of_value(part, depth + 1) for part in value))
        case dict():
            return struct_of({name: type_of_value(part, depth + 1) for name, part in value.items()})
    return MIXED


def has_unknown_part(found_type: FoundType) -> bool:
    """Return whether a part of the type had only null or missing values."""
    match found_type:
        case ListOf():
            return has_unknown_part(found_type.element)
        case StructOf():
            return not found_type.fields or any(map(has_unknown_part, found_type.fields.values()))
        case MapOf():
            return has_unknown_part(found_type.value)
    return found_type is None


@dataclass(frozen=True, slots=True)
class NewField:
    """A field that could become a column, with temporary field ids. `type` is None if there is a `problem`."""

    path: Path
    type: iceberg.IcebergType | None
    problem: str = ""


def find_new_fields(schema_drift: SchemaDrift) -> Iterator[NewField]:
    """Yield each new field, then each problem inside it. Fields that were always null are omitted."""
    for path, found_type in sorted(schema_drift.new.items()):
        if problem := find_name_problem(path[-1]):
            yield NewField((*path[:-1], "*") if path[-1] == TOO_MANY_FIELDS else path, None, problem)
            continue
        inside: list[NewField] = []
        made = _convert_type(path, found_type, inside, count(1))
        if made is not None:
            yield NewField(path, made)
        yield from inside


def _convert_type(
    path: Path, found_type: FoundType, problems: list[NewField], ids: Iterator[int]
) -> iceberg.IcebergType | None:
    if len(path) > MAX_NESTING + 1 and found_type is not None:
        found_type = MIXED
    match found_type:
        case None:
            return None
        case ListOf():
            element = _convert_type((*path, "element"), found_type.element, problems, ids)
            return None if element is None else iceberg.ListType(next(ids), element, element_required=False)
        case MapOf():
            value = _convert_type((*path, "value"), found_type.value, problems, ids)
            key = (next(ids), iceberg.StringType(), next(ids))
            return None if value is None else iceberg.MapType(*key, value, value_required=False)
        case StructOf():
            fields = []
            names: dict[str, str] = {}
            for name, part in sorted(found_type.fields.items()):
                field_path = (*path, name)
                problem = find_name_problem(name)
                if not problem and (other := names.get(name_key(name))):
                    problem = f"has the same name as {other}, because {SAME_NAMES}"
                if problem:
                    problems.append(NewField(field_path, None, problem))
                elif (kind := _convert_type(field_path, part, problems, ids)) is not None:
                    names[name_key(name)] = name
                    fields.append(iceberg.NestedField(next(ids), name, kind, required=False))
            return iceberg.StructType(*fields) if fields else None
    if found_type == MIXED:
        sentence = f"has values that no column of one type can hold, or more than {MAX_OBJECT_FIELDS:,} fields"
        problems.append(NewField(path, None, sentence))
        return None
    return iceberg_type(found_type)


def find_name_problem(name: str) -> str:  # noqa: PLR0911 - a table
    """Return why a field's name cannot be a column's name; empty if it can."""
    if name == TOO_MANY_FIELDS:
        return (
            f"stands for more than {MAX_OBJECT_FIELDS:,} undeclared fields of one object: its field names are "
            "probably values, which cannot become columns"
        )
    if not name:
        return "has an empty name"
    if "." in name:
        return "has a dot in its name; dots separate the parts of a path"
    if name != name.strip() or not name.isprintable():
        return "has spaces around its name, or characters that cannot be printed"
    if '"' in name or "\\" in name:
        return "has a quote or a backslash in its name"
    if len(name) > 255:
        return "has a name of more than 255 characters"
    return ""


def wider_of(first: str, other: str) -> str:
    """Return the wider of two type names. The types must be equal, or decimals of equal scale."""
    return max(first, other, key=lambda kind: _parse_decimal(kind) or (0, 0))


def _parse_decimal(kind: str) -> tuple[int, int] | None:
    if not kind.startswith("decimal("):
        return None
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(", ")
    return int(precision), int(scale)
