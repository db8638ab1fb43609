"""Collects the current and former names and types of a table's columns, by field id, from the schemas in its
metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

TOP = 0
"""The parent id of top-level columns; no field has this id."""


@dataclass(frozen=True, slots=True)
class ColumnHistory:
    """All names and types that a table's columns have had.

    Nested fields count as columns. The parent of a nested field is the struct, list or map that contains it.
    """

    ids: Mapping[tuple[int, str], tuple[int, ...]]
    """Ids of the fields that have had a name, newest first. The key is the parent's field id and the name."""
    names: Mapping[int, frozenset[str]]
    types: Mapping[int, frozenset[str]]

    @classmethod
    def from_schemas(cls, schemas: Iterable[Schema]) -> ColumnHistory:
        """Build the history from a table's schemas, ordered from oldest to newest."""
        ids: dict[tuple[int, str], list[int]] = defaultdict(list)
        names: dict[int, set[str]] = defaultdict(set)
        types: dict[int, set[str]] = defaultdict(set)
        for schema in reversed(tuple(schemas)):
            for parent, field in _columns(schema.as_struct(), TOP):
                bore = ids[parent, field.name]
                if field.field_id not in bore:
                    bore.append(field.field_id)
                names[field.field_id].add(field.name)
                types[field.field_id].add(str(field.field_type))
        return cls(
            {key: tuple(found) for key, found in ids.items()},
            {field_id: frozenset(found) for field_id, found in names.items()},
            {field_id: frozenset(found) for field_id, found in types.items()},
        )


def _columns(kind: IcebergType, parent: int) -> Iterator[tuple[int, NestedField]]:
    fields: tuple[NestedField, ...] = ()
    if isinstance(kind, StructType):
        fields = kind.fields
    elif isinstance(kind, ListType):
        fields = (kind.element_field,)
    elif isinstance(kind, MapType):
        fields = (kind.key_field, kind.value_field)
    for field in fields:
        yield parent, field
        yield from _columns(field.field_type, field.field_id)
