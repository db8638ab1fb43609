"""Compares a declared schema with a table's schema. Pure.

Each difference is either a safe evolution (Iceberg specification, "Schema Evolution"), or a conflict that an operator
must solve. A column that was renamed or dropped is not added again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.transforms import IdentityTransform, VoidTransform
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

from frazil.spec.column import LINE_COLUMN, METADATA_COLUMN_PROBLEM, METADATA_COLUMNS
from frazil.spec.types import SAME_NAMES, name_key

PARTITION_NAME_PROBLEM = "has the name of a partition field of the table, so engines would refuse the table"

TOP_LEVEL_ID = 0
"""The parent id of top-level columns."""
ELEMENT, VALUE = "element", "value"


@dataclass(frozen=True, slots=True)
class ColumnHistory:
    """All names and types that a table's columns and nested fields have had, by field id."""

    ids: Mapping[tuple[int, str], tuple[int, ...]]
    """The ids of all fields that have had a name, newest first, by the containing column's id and the name."""
    names: Mapping[int, frozenset[str]]
    types: Mapping[int, frozenset[str]]

    @classmethod
    def from_schemas(cls, schemas: Iterable[Schema]) -> ColumnHistory:
        """Build the history from a table's schemas, oldest first."""
        ids: dict[tuple[int, str], list[int]] = defaultdict(list)
        names: dict[int, set[str]] = defaultdict(set)
        types: dict[int, set[str]] = defaultdict(set)
        for schema in reversed(tuple(schemas)):
            parents = schema._lazy_id_to_parent
            for field_id, field in schema._lazy_id_to_field.items():
                same_name = ids[parents.get(field_id, TOP_LEVEL_ID), field.name]
                if field_id not in same_name:
                    same_name.append(field_id)
                names[field_id].add(field.name)
                types[field_id].add(str(field.field_type))
        return cls(
            {key: tuple(values) for key, values in ids.items()},
            {field_id: frozenset(values) for field_id, values in names.items()},
            {field_id: frozenset(values) for field_id, values in types.items()},
        )


Path = tuple[str, ...]
"""The names from a top-level column to a nested field."""

ACCEPTED_SCHEMA = "frazil.accepted-schema"
"""Property with the id of the oldest schema whose column names are still checked. An operator sets it."""


@dataclass(frozen=True, slots=True)
class Addition:
    """An optional column or field of a struct that the table does not have yet."""

    path: Path
    type: IcebergType
    doc: str | None

    def full_names(self) -> set[str]:
        """Return Iceberg's names of the column and of all fields in it."""
        within = index_name_by_id(Schema(NestedField(-1, self.path[-1], self.type))).values()
        return {".".join((*self.path[:-1], inside)) for inside in within}


@dataclass(frozen=True, slots=True)
class Promotion:
    """A column whose type becomes wider."""

    path: Path
    type: IcebergType


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A required column that becomes optional."""

    path: Path


@dataclass(frozen=True, slots=True)
class Conflict:
    """A difference without a safe evolution. `message` describes both sides and the remedy."""

    path: Path
    message: str


Change = Addition | Promotion | Relaxation
Difference = Change | Conflict


def find_differences(
    declared: Schema, existing: Schema, former: Iterable[Schema] = (), *, user_columns: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Return the differences that prevent rows of the declared schema from fitting the table. The table may have other
    optional columns, and wider types. `former` has the table's schemas, oldest first. Messages suggest changing the
    declaration only for columns in `user_columns`.
    """
    history = ColumnHistory.from_schemas((*former, existing))
    comparison = SchemaComparison(existing, history, frozenset(user_columns))
    return tuple(comparison.compare_structs(declared.as_struct(), existing.as_struct(), path=(), parent=TOP_LEVEL_ID))


@dataclass(frozen=True, slots=True)
class SchemaComparison:
    table: Schema
    history: ColumnHistory
    user_columns: frozenset[str]

    def compare_structs(
        self, declared: StructType, existing: StructType, *, path: Path, parent: int
    ) -> Iterator[Difference]:
        table_fields = {field.name: field for field in existing.fields}
        found_ids: set[int] = set()
        for field in declared.fields:
            column_path = (*path, field.name)
            if field.name not in table_fields:
                found_ids.update(self.history.ids.get((parent, field.name), ()))
                yield self.compare_missing(field, existing, path=column_path, parent=parent)
            elif conflict := self._find_reused_name(table_fields[field.name], path=column_path, parent=parent):
                yield conflict
            else:
                yield from self._compare_fields(field, table_fields[field.name], path=column_path)
        declared_names = {field.name for field in declared.fields}
        for name, field in table_fields.items():
            is_filled = not path and field.write_default is not None  # as `default_of` fills columns
            if field.required and not is_filled and name not in declared_names and field.field_id not in found_ids:
                yield Conflict(
                    (*path, name),
                    f"is {field.field_type} not null in the table, but is not declared; declare it. "
                    "Without 'not null', it becomes optional in the table",
                )

    def compare_missing(
        self, declared: NestedField, existing: StructType, *, path: Path, parent: int
    ) -> Addition | Conflict:
        """Return an addition for a missing declared column; a conflict if it was renamed or dropped."""
        name, can_declare = declared.name, path[0] in self.user_columns
        optional = " and declare it without 'not null'" if declared.required and can_declare else ""
        former_ids = self.history.ids.get((parent, name), ())
        if current_name := self._find_current_name(former_ids):
            remedy = f", declare {current_name} if records use that name" if can_declare else ""
            return Conflict(
                path,
                f"was renamed to {current_name} in the table; rename it back{remedy}, or add a new optional column "
                f"{name} to the table{optional}",
            )
        if former_ids:
            remedy = "remove it from the declaration, or " if can_declare else ""
            return Conflict(
                path,
                f"was dropped from the table; {remedy}add it to the table again, as an optional "
                f"{declared.field_type}{optional}",
            )
        if alike := next((f.name for f in existing.fields if name_key(f.name) == name_key(name)), None):
            return Conflict(path, f"is called {alike} in the table, and {SAME_NAMES}; declare {alike}")
        if declared.required:
            return Conflict(
                path,
                f"is declared {declared.field_type} not null, but the table does not have this column, so existing "
                "rows have no value; declare it without 'not null'",
            )
        return Addition(path, declared.field_type, declared.doc)

    def _find_reused_name(self, existing: NestedField, *, path: Path, parent: int) -> Conflict | None:
        """Return a conflict if another column now has the declared column's name."""
        had_others = self.history.names[existing.field_id] != {existing.name}
        current_name = self._find_current_name(
            i for i in self.history.ids[parent, existing.name] if i != existing.field_id
        )
        if not (had_others and current_name):
            return None
        return Conflict(
            path,
            f"is not the same column as before: the earlier column was renamed to {current_name} in the table, and "
            f"a new column has its name. Rename both columns back, or accept the table's columns as they are: set the "
            f"table property {ACCEPTED_SCHEMA} to {self.table.schema_id}",
        )

    def _find_current_name(self, field_ids: Iterable[int]) -> str | None:
        names = (self.table.find_column_name(field_id) for field_id in field_ids)
        return next((name for name in names if name), None)

    def _compare_fields(self, declared: NestedField, existing: NestedField, *, path: Path) -> Iterator[Difference]:
        if declared.required and not existing.required:
            yield Conflict(
                path,
                f"is declared {declared.field_type} not null, but is {existing.field_type} (optional) in the table; "
                "declare it without 'not null', or make it required in the table",
            )
        elif existing.required and not declared.required:
            if path[0] in self.user_columns and existing.field_id not in self.table.identifier_field_ids:
                yield Relaxation(path)
            else:
                yield Conflict(
                    path,
                    f"is declared {declared.field_type} (optional), but is {existing.field_type} not null in the "
                    "table, as identifier fields and frazil's columns are; declare it 'not null'",
                )
        yield from self._compare_types(declared, existing, path=path)

    def _compare_types(self, declared: NestedField, existing: NestedField, *, path: Path) -> Iterator[Difference]:
        wanted, current = declared.field_type, existing.field_type
        if isinstance(wanted, StructType) and isinstance(current, StructType):
            yield from self.compare_structs(wanted, current, path=path, parent=existing.field_id)
        elif isinstance(wanted, ListType) and isinstance(current, ListType):
            yield from self._compare_types(wanted.element_field, current.element_field, path=(*path, "element"))
        elif isinstance(wanted, MapType) and isinstance(current, MapType):
            yield from self._compare_types(wanted.key_field, current.key_field, path=(*path, "key"))
            yield from self._compare_types(wanted.value_field, current.value_field, path=(*path, "value"))
        elif wanted == current or (
            str(wanted) in self.history.types[existing.field_id] and widens(wanted, existing.field_type)
        ):
            return
        elif widens(current, wanted):
            yield Promotion(path, wanted)
        else:
            yield Conflict(
                path,
                f"is declared {wanted}, but is {current} in the table; declare it {current}, write to a new table, "
                "or add a column of another name",
            )


def widens(narrow: IcebergType, wide: IcebergType) -> bool:
    """Return whether Iceberg version 2 allows the promotion. PyIceberg would allow more."""
    if isinstance(narrow, IntegerType):
        return isinstance(wide, LongType)
    if isinstance(narrow, FloatType):
        return isinstance(wide, DoubleType)
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    return False


def relax(declared: NestedField, existing: NestedField) -> NestedField:
    """Return the declared column. The column and its nested fields become optional where the table's fields are."""
    kind = declared.field_type
    if isinstance(kind, StructType) and isinstance(existing.field_type, StructType):
        fields = {field.name: field for field in existing.field_type.fields}
        kind = StructType(*(relax(f, fields[f.name]) if f.name in fields else f for f in kind.fields))
    return declared.model_copy(update={"field_type": kind, "required": declared.required and existing.required})


@dataclass(frozen=True, slots=True)
class RefusedField:
    """A field that cannot become a column. `reason` completes a sentence that begins with the field's name."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class SchemaGrowth:
    changes: tuple[Change, ...]
    refused: tuple[RefusedField, ...] = ()


def plan_growth(  # noqa: PLR0913 - the limits of a table and of a stream
    table: Schema,
    former: Iterable[Schema],
    wanted: Sequence[Change],
    *,
    max_columns: int,
    fixed: Collection[str] = (),
    partition_names: Collection[str] = (),
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
                if reason := _reserved_name_problem(change, partition_names) or growing.add(change, max_columns):
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
        self._names = {(path[:-1], name_key(path[-1])): path[-1] for path in self.fields}

    def parent(self, path: Path) -> StructType | None:
        """Return the struct of the field at this path, which may not exist yet."""
        if len(path) == 1:
            return self._top
        field = self.fields.get(path[:-1])
        return field.field_type if field is not None and isinstance(field.field_type, StructType) else None

    def add(self, change: Addition, max_columns: int) -> str | None:
        """Reserve a new column's name, or return why the column cannot be added."""
        path, name = change.path, (change.path[:-1], name_key(change.path[-1]))
        full_names = change.full_names()
        columns = len(self._full_names) + len(full_names)
        if alike := self._names.get(name):
            problem = f"has the same name as the column {alike}, because {SAME_NAMES}"
            return f"{problem}. Its values are not stored; rename the field"
        if not self._full_names.isdisjoint(full_names):  # a rule of PyIceberg and Iceberg
            return "would have the full name of another field: Iceberg joins the names of nested fields with dots"
        if columns > max_columns:
            return f"would be column {columns} of the table, but evolution.max-columns is {max_columns}"
        if reason := self._history_problem(change):
            return reason
        self._full_names |= full_names
        self._names[name] = path[-1]
        return None

    def _history_problem(self, change: Addition) -> str | None:
        """Return why a column cannot be added again, if it was renamed or dropped."""
        if (parent := self.parent(change.path)) is None:
            return None
        parent_id = TOP_LEVEL_ID if len(change.path) == 1 else self.fields[change.path[:-1]].field_id
        field = NestedField(-1, change.path[-1], change.type, required=False)
        difference = self._comparison.compare_missing(field, parent, path=change.path, parent=parent_id)
        return difference.message if isinstance(difference, Conflict) else None


def partition_names(specs: Iterable[PartitionSpec], *, source_id: int | None = None) -> set[str]:
    """Return the partition fields' names, which columns must not have. Omits those allowed for column `source_id`."""
    same_value = (IdentityTransform, VoidTransform)
    fields = (field for spec in specs for field in spec.fields)
    return {f.name for f in fields if f.source_id != source_id or not isinstance(f.transform, same_value)}


def _reserved_name_problem(change: Addition, partition_names: Collection[str]) -> str | None:
    if not change.full_names().isdisjoint(partition_names):
        return PARTITION_NAME_PROBLEM
    name = name_key(change.path[0])
    if len(change.path) > 1 or name not in {LINE_COLUMN, *METADATA_COLUMNS}:
        return None
    return "has the name of a column that frazil adds" if name == LINE_COLUMN else METADATA_COLUMN_PROBLEM


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
