"""What a table can take of the changes that records ask for, and what it refuses and why. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.spec.coordinates import LINE, METADATA_COLUMNS, OF_ICEBERG
from frazil.table.evolution import Addition, Change, Conflict, Path, Promotion, Relaxation, differences, widens

ELEMENT, VALUE = "element", "value"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field of records that becomes no column; `reason` follows its name in a sentence."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Growth:
    changes: tuple[Change, ...]
    refused: tuple[Refusal, ...] = ()


def growth(
    table: Schema,
    former: Iterable[Schema],
    asked: Sequence[Change],
    *,
    max_columns: int,
    fixed: Collection[str] = (),
) -> Growth:
    """The changes to make, without those that the table has already.

    `former` are the table's schemas from the oldest to the newest. A table of `max_columns` columns, nested fields
    included, gets no more. The top-level columns that are `fixed` stay required.
    """
    former = tuple(former)
    changes: list[Change] = []
    refused: list[Refusal] = []
    columns = len(index_by_id(table))
    for change in sorted(asked, key=lambda c: c.path):
        here = _found(table, change.path)
        match change:
            case Promotion() if here is not None and widens(here.field_type, change.type):
                changes.append(change)
            case Relaxation() if here is not None and here.required:
                if change.path[0] not in fixed and here.field_id not in table.identifier_field_ids:
                    changes.append(change)
            case Addition() if here is None and _parent(table, change.path) is not None:
                size = len(index_by_id(Schema(NestedField(-1, change.path[-1], change.type))))
                if reason := _taken(change.path) or _why_not(table, former, [*changes, change], change.path):
                    refused.append(Refusal(change.path, reason))
                elif columns + size > max_columns:
                    what = f"would be column {columns + size} of the table, and evolution.max-columns is {max_columns}"
                    refused.append(Refusal(change.path, what))
                else:
                    columns += size
                    changes.append(change)
    return Growth(tuple(changes), tuple(refused))


def _taken(path: Path) -> str | None:
    """Why no table can have this column, whatever else it has."""
    match tuple(map(str.lower, path)):
        case (name,) if name == LINE:
            return "has the name of a column that frazil adds"
        case (name,) if name in METADATA_COLUMNS:
            return OF_ICEBERG
    return None


def _why_not(table: Schema, former: Sequence[Schema], changes: Sequence[Change], path: Path) -> str | None:
    """Why the last of these changes cannot be made beside the others; None if it can."""
    added = {change.path: change for change in changes if isinstance(change, Addition)}
    siblings = [other[-1] for other in added if other[:-1] == path[:-1] and other != path]
    if alike := next((name for name in siblings if name.lower() == path[-1].lower()), None):
        return f"has the name of the new column {alike} in other case, and names are case-insensitive"
    there = (field.name for field in parent.fields) if (parent := _parent(table, path)) else ()
    if alike := next((name for name in there if name.lower() == path[-1].lower()), None):
        return f"has the name of the column {alike} in other case, which it does not fill; write it as {alike}"
    try:
        Schema(*grown(table.as_struct(), (), added).fields)
        wanted = Schema(*grown(table.as_struct(), (), {path: added[path]}).fields)
    except ValueError:  # PyIceberg's, and Iceberg has the same rule
        return "would have the full name of another field: Iceberg joins the names of nested fields with dots"
    conflicts = [d for d in differences(wanted, table, former) if isinstance(d, Conflict) and d.path == path]
    return conflicts[0].message if conflicts else None


def grown(kind: StructType, path: Path, added: Mapping[Path, Addition]) -> StructType:
    """A struct with the new fields in it, at every level."""
    new = [
        NestedField(-1, where[-1], addition.type, required=False)
        for where, addition in added.items()
        if where[:-1] == path
    ]
    fields = [f.model_copy(update={"field_type": _inside(f.field_type, (*path, f.name), added)}) for f in kind.fields]
    return StructType(*fields, *new)


def _inside(kind: IcebergType, path: Path, added: Mapping[Path, Addition]) -> IcebergType:
    if not any(where[: len(path)] == path for where in added):
        return kind
    match kind:
        case ListType():
            element = _inside(kind.element_type, (*path, ELEMENT), added)
            return ListType(kind.element_id, element, element_required=kind.element_required)
        case MapType():
            value = _inside(kind.value_type, (*path, VALUE), added)
            return MapType(kind.key_id, kind.key_type, kind.value_id, value, value_required=kind.value_required)
        case StructType():
            return grown(kind, path, added)
    return kind


def _parent(table: Schema, path: Path) -> StructType | None:
    """The struct that has, or would have, this field."""
    kind: IcebergType = table.as_struct()
    for name in path[:-1]:
        field = _child(kind, name)
        if field is None:
            return None
        kind = field.field_type
    return kind if isinstance(kind, StructType) else None


def _found(table: Schema, path: Path) -> NestedField | None:
    kind: IcebergType = table.as_struct()
    field: NestedField | None = None
    for name in path:
        field = _child(kind, name)
        if field is None:
            return None
        kind = field.field_type
    return field


def _child(kind: IcebergType, name: str) -> NestedField | None:
    match kind:
        case StructType():
            return next((field for field in kind.fields if field.name == name), None)
        case ListType() if name == ELEMENT:
            return kind.element_field
        case MapType() if name == VALUE:
            return kind.value_field
    return None
