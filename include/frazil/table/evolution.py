"""What a declared schema asks of the table's: nothing, a safe evolution, or the impossible. Pure.

Safe is what keeps every file and every reader valid: new optional columns, int to long, float to double, a
decimal's precision wider (Iceberg specification, "Schema Evolution"). All else is a person's decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Addition:
    """An optional column, or an optional field of a struct, that the table lacks."""

    path: Path
    type: IcebergType
    doc: str | None


@dataclass(frozen=True, slots=True)
class Promotion:
    """A column whose type becomes wider."""

    path: Path
    type: IcebergType


@dataclass(frozen=True, slots=True)
class Conflict:
    """A difference that no safe evolution covers; `message` names both sides and the ways out."""

    path: Path
    message: str


Difference = Addition | Promotion | Conflict


def differences(declared: Schema, existing: Schema) -> tuple[Difference, ...]:
    """Everything that differs; empty when rows of the declared schema fit the table as it stands.

    A table's optional column that is not declared is no difference: its values stay null.
    """
    return tuple(_structs(declared.as_struct(), existing.as_struct(), path=()))


def _structs(declared: StructType, existing: StructType, *, path: Path) -> Iterator[Difference]:
    table_fields = {field.name: field for field in existing.fields}
    for field in declared.fields:
        here = (*path, field.name)
        if field.name in table_fields:
            yield from _fields(field, table_fields[field.name], path=here)
        elif field.required:
            yield Conflict(
                here,
                f"is declared {field.field_type} not null, and the table has no such column, so its rows lack a "
                "value; declare it without 'not null'",
            )
        else:
            yield Addition(here, field.field_type, field.doc)
    declared_names = {field.name for field in declared.fields}
    for name, field in table_fields.items():
        if field.required and name not in declared_names:
            yield Conflict(
                (*path, name),
                f"is {field.field_type} not null in the table and is not declared; declare it, or make it optional "
                "in the table",
            )


def _fields(declared: NestedField, existing: NestedField, *, path: Path) -> Iterator[Difference]:
    if declared.required and not existing.required:
        yield Conflict(
            path,
            f"is declared {declared.field_type} not null, and is {existing.field_type} (optional) in the table; "
            "declare it without 'not null', or make it required in the table",
        )
    elif existing.required and not declared.required:
        yield Conflict(
            path,
            f"is declared {declared.field_type} (optional), and is {existing.field_type} not null in the table; "
            "declare it 'not null', or make it optional in the table",
        )
    yield from _types(declared.field_type, existing.field_type, path=path)


def _types(declared: IcebergType, existing: IcebergType, *, path: Path) -> Iterator[Difference]:
    if isinstance(declared, StructType) and isinstance(existing, StructType):
        yield from _structs(declared, existing, path=path)
    elif isinstance(declared, ListType) and isinstance(existing, ListType):
        yield from _types(declared.element_type, existing.element_type, path=(*path, "element"))
    elif isinstance(declared, MapType) and isinstance(existing, MapType):
        yield from _types(declared.key_type, existing.key_type, path=(*path, "key"))
        yield from _types(declared.value_type, existing.value_type, path=(*path, "value"))
    elif declared == existing:
        return
    elif _widens(existing, declared):
        yield Promotion(path, declared)
    else:
        yield Conflict(
            path,
            f"is declared {declared}, and is {existing} in the table; declare it {existing}, write to a new table, "
            "or add a column of another name",
        )


def _widens(existing: IcebergType, declared: IcebergType) -> bool:
    """PyIceberg's own promotion rules, less those that change what a value is (string to binary)."""
    if isinstance(existing, IntegerType):
        return isinstance(declared, LongType)
    if isinstance(existing, FloatType):
        return isinstance(declared, DoubleType)
    if isinstance(existing, DecimalType) and isinstance(declared, DecimalType):
        try:
            promote(existing, declared)
        except ResolveError:
            return False
        return True
    return False
