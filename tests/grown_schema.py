"""Builds a struct with the columns that `frazil.table.evolution` adds to it."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.table.evolution import ELEMENT, VALUE, Addition, Path


def grown(kind: StructType, path: Path, added: Mapping[Path, Addition]) -> StructType:
    """Return the struct with the new fields, at every level of nesting."""
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
