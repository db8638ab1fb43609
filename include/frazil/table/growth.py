"""Decides which schema changes a table accepts for its records, and why it refuses others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.spec.column import LINE_COLUMN, METADATA_COLUMN_PROBLEM, METADATA_COLUMNS
from frazil.table.evolution import (
    TOP_LEVEL_ID,
    Addition,
    Change,
    ColumnHistory,
    Conflict,
    Path,
    Promotion,
    Relaxation,
    SchemaComparison,
    widens,
)

ELEMENT, VALUE = "element", "value"


@dataclass(frozen=True, slots=True)
class RefusedField:
    """A field without a column. `reason` completes a sentence that begins with the field's name."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class SchemaGrowth:
    changes: tuple[Change, ...]
    refused: tuple[RefusedField, ...] = ()


def plan_growth(
    table: Schema, former: Iterable[Schema], wanted: Sequence[Change], *, max_columns: int, fixed: Collection[str] = ()
) -> SchemaGrowth:
    """Return the allowed changes. `max_columns` includes nested fields; `fixed` columns stay required."""
    growing = _ColumnNames(table, tuple(former))
    changes: list[Change] = []
    refused: list[RefusedField] = []
    for change in sorted(wanted, key=lambda c: c.path):
        here = growing.fields.get(change.path)
        match change:
            case Promotion() if here is not None and widens(here.field_type, change.type):
                changes.append(change)
            case Relaxation() if here is not None and here.required:
                if change.path[0] not in fixed and here.field_id not in table.identifier_field_ids:
                    changes.append(change)
            case Addition() if here is None and growing.parent(change.path) is not None:
                if reason := _reserved_name_problem(change.path) or growing.add(change, max_columns):
                    refused.append(RefusedField(change.path, reason))
                else:
                    changes.append(change)
    return SchemaGrowth(tuple(changes), tuple(refused))


class _ColumnNames:
    def __init__(self, table: Schema, former: Sequence[Schema]) -> None:
        self.fields = dict(walk_fields(table.as_struct(), ()))
        self._top = table.as_struct()
        self._comparison = SchemaComparison(table, ColumnHistory.from_schemas((*former, table)), frozenset())
        self._full_names = set(index_name_by_id(table).values())
        self._names = {(path[:-1], path[-1].lower()): path[-1] for path in self.fields}
        self._new: dict[tuple[Path, str], str] = {}

    def parent(self, path: Path) -> StructType | None:
        """Return the struct of the field at this path, which may not exist yet."""
        if len(path) == 1:
            return self._top
        field = self.fields.get(path[:-1])
        return field.field_type if field is not None and isinstance(field.field_type, StructType) else None

    def add(self, change: Addition, max_columns: int) -> str | None:
        """Reserve a new column's name, or return why the column cannot be added."""
        path, name = change.path, (change.path[:-1], change.path[-1].lower())
        within = index_name_by_id(Schema(NestedField(-1, path[-1], change.type))).values()
        full_names = {".".join((*path[:-1], inside)) for inside in within}
        columns = len(self._full_names) + len(full_names)
        if alike := self._new.get(name):
            return f"differs from the new column {alike} only in upper and lower case, and names are case-insensitive"
        if alike := self._names.get(name):
            return f"differs from the column {alike} only in upper and lower case, so it is not stored; name it {alike}"
        if not self._full_names.isdisjoint(full_names):  # a rule of PyIceberg and Iceberg
            return "would have the full name of another field: Iceberg joins the names of nested fields with dots"
        if columns > max_columns:
            return f"would be column {columns} of the table, but evolution.max-columns is {max_columns}"
        if reason := self._history_problem(change):
            return reason
        self._full_names |= full_names
        self._new[name] = path[-1]
        return None

    def _history_problem(self, change: Addition) -> str | None:
        if (parent := self.parent(change.path)) is None:
            return None
        parent_id = TOP_LEVEL_ID if len(change.path) == 1 else self.fields[change.path[:-1]].field_id
        field = NestedField(-1, change.path[-1], change.type, required=False)
        found = self._comparison.compare_missing(field, parent, path=change.path, parent=parent_id)
        return found.message if isinstance(found, Conflict) else None


def _reserved_name_problem(path: Path) -> str | None:
    match tuple(map(str.lower, path)):
        case (name,) if name == LINE_COLUMN:
            return "has the name of a column that frazil adds"
        case (name,) if name in METADATA_COLUMNS:
            return METADATA_COLUMN_PROBLEM
    return None


def walk_fields(kind: IcebergType, path: Path) -> Iterator[tuple[Path, NestedField]]:
    """Yield a type's fields with their paths, except fields in map keys."""
    match kind:
        case StructType():
            fields = [(field.name, field) for field in kind.fields]
        case ListType():
            fields = [(ELEMENT, kind.element_field)]
        case MapType():
            fields = [(VALUE, kind.value_field)]
        case _:
            return
    for name, field in fields:
        yield (*path, name), field
        yield from walk_fields(field.field_type, (*path, name))
