"""What a declared schema asks of the table's: nothing, a safe evolution, or the impossible. Pure.

Safe is what keeps every file and every reader valid: new optional columns, int to long, float to double, a
decimal's precision wider (Iceberg specification, "Schema Evolution"). All else is a person's decision. So is a name
that the table had once: whether others renamed its column or dropped it, it is not added again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
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

from frazil.table.column_history import TOP, ColumnHistory

Path = tuple[str, ...]

ACCEPTED_SCHEMA = "frazil.accepted-schema"
"""A table's property: the id of the schema from which on its columns are what they should be. Set by people."""


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


def differences(
    declared: Schema, existing: Schema, former: Iterable[Schema] = (), *, declarable: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Everything that differs; empty when rows of the declared schema fit the table as it stands.

    A table's optional column that is not declared is no difference: its values stay null. Nor is a column that became
    wider than declared. `former` are the table's schemas from the oldest to the newest; `declarable` the columns that
    a person may declare otherwise, by name.
    """
    history = ColumnHistory.of((*former, existing))
    comparison = _Comparison(existing, history, frozenset(declarable))
    return tuple(comparison.structs(declared.as_struct(), existing.as_struct(), path=(), parent=TOP))


@dataclass(frozen=True, slots=True)
class _Comparison:
    table: Schema
    history: ColumnHistory
    declarable: frozenset[str]

    def structs(self, declared: StructType, existing: StructType, *, path: Path, parent: int) -> Iterator[Difference]:
        """`parent` is the field id of what the structs stand in."""
        table_fields = {field.name: field for field in existing.fields}
        told: set[int] = set()
        for field in declared.fields:
            here = (*path, field.name)
            if field.name not in table_fields:
                told.update(self.history.ids.get((parent, field.name), ()))
                yield self._missing(field, existing, path=here, parent=parent)
            elif stranger := self._stranger(table_fields[field.name], path=here, parent=parent):
                yield stranger
            else:
                yield from self._fields(field, table_fields[field.name], path=here)
        declared_names = {field.name for field in declared.fields}
        for name, field in table_fields.items():
            if field.required and name not in declared_names and field.field_id not in told:
                yield Conflict(
                    (*path, name),
                    f"is {field.field_type} not null in the table and is not declared; declare it, or make it optional "
                    "in the table",
                )

    def _missing(self, declared: NestedField, existing: StructType, *, path: Path, parent: int) -> Addition | Conflict:
        """A name that the table does not have: new, or lost."""
        name, mine = declared.name, path[0] in self.declarable
        optional = " and declare it without 'not null'" if declared.required and mine else ""
        bore = self.history.ids.get((parent, name), ())
        if now := self._now(bore):
            other = f", declare {now} if that is what records call it" if mine else ""
            return Conflict(
                path,
                f"was renamed to {now} in the table; rename it back{other}, or add a new optional column of its name "
                f"to the table{optional}",
            )
        if bore:
            other = "take it out of the declaration, or " if mine else ""
            return Conflict(
                path,
                f"was dropped from the table; {other}add it to the table again, as an optional "
                f"{declared.field_type}{optional}",
            )
        if alike := next((f.name for f in existing.fields if f.name.lower() == name.lower()), None):
            return Conflict(
                path, f"is called {alike} in the table, and case does not tell columns apart; declare {alike}"
            )
        if declared.required:
            return Conflict(
                path,
                f"is declared {declared.field_type} not null, and the table has no such column, so its rows lack a "
                "value; declare it without 'not null'",
            )
        return Addition(path, declared.field_type, declared.doc)

    def _stranger(self, existing: NestedField, *, path: Path, parent: int) -> Conflict | None:
        """Another column that others gave the name, while they renamed the one that had it."""
        had_others = self.history.names[existing.field_id] != {existing.name}
        now = self._now(i for i in self.history.ids[parent, existing.name] if i != existing.field_id)
        if not (had_others and now):
            return None
        return Conflict(
            path,
            f"is another column than it was: that one was renamed to {now} in the table, and its name given away; "
            f"rename them back, or accept the table's columns as they are by setting its property {ACCEPTED_SCHEMA} to "
            f"{self.table.schema_id}",
        )

    def _now(self, field_ids: Iterable[int]) -> str | None:
        """What the table calls the first of them that it still has."""
        names = (self.table.find_column_name(field_id) for field_id in field_ids)
        return next((name for name in names if name), None)

    def _fields(self, declared: NestedField, existing: NestedField, *, path: Path) -> Iterator[Difference]:
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
        yield from self._types(declared, existing, path=path)

    def _types(self, declared: NestedField, existing: NestedField, *, path: Path) -> Iterator[Difference]:
        wanted, found = declared.field_type, existing.field_type
        if isinstance(wanted, StructType) and isinstance(found, StructType):
            yield from self.structs(wanted, found, path=path, parent=existing.field_id)
        elif isinstance(wanted, ListType) and isinstance(found, ListType):
            yield from self._types(wanted.element_field, found.element_field, path=(*path, "element"))
        elif isinstance(wanted, MapType) and isinstance(found, MapType):
            yield from self._types(wanted.key_field, found.key_field, path=(*path, "key"))
            yield from self._types(wanted.value_field, found.value_field, path=(*path, "value"))
        elif wanted == found or self._became_wider(wanted, existing):
            return
        elif _widens(found, wanted):
            yield Promotion(path, wanted)
        else:
            yield Conflict(
                path,
                f"is declared {wanted}, and is {found} in the table; declare it {found}, write to a new table, "
                "or add a column of another name",
            )

    def _became_wider(self, declared: IcebergType, existing: NestedField) -> bool:
        """The column had the declared type, and all values of that still fit."""
        return str(declared) in self.history.types[existing.field_id] and _widens(declared, existing.field_type)


def _widens(narrow: IcebergType, wide: IcebergType) -> bool:
    """PyIceberg's own promotion rules, less those that change what a value is (string to binary)."""
    if isinstance(narrow, IntegerType):
        return isinstance(wide, LongType)
    if isinstance(narrow, FloatType):
        return isinstance(wide, DoubleType)
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        try:
            promote(narrow, wide)
        except ResolveError:
            return False
        return True
    return False
