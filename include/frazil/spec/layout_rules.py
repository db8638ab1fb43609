"""Rules that relate a table's columns to its partitioning and sort order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from frazil.spec import layout
from frazil.spec.coordinates import COORDINATES, LINE_COLUMN
from frazil.spec.types import Primitive, Struct, Type, parse_type
from frazil.spec.values import Problem, suggest_names

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec

ColumnTypes = Mapping[str, Type | None]
"""Types of columns by name; None for a type that cannot be parsed."""


def find_partitioning_problems(spec: StreamSpec) -> Iterator[Problem]:
    columns, terms = _collect_types(spec), [layout.parse_term(text) for text in spec.partition_by]
    for index, term in enumerate(terms):
        yield from _find_term_problems(f"partition-by.{index}", term, columns)
        yield from _find_field_problems(f"partition-by.{index}", term, terms[:index], columns)


def find_sorting_problems(spec: StreamSpec) -> Iterator[Problem]:
    for index, text in enumerate(spec.sort_by):
        yield from _find_term_problems(f"sort-by.{index}", layout.parse_sort_term(text).term, _collect_types(spec))


def _collect_types(spec: StreamSpec) -> ColumnTypes:
    declared: dict[str, Type | None] = {c.name: parse_type(c.type) if c.type else None for c in spec.columns}
    lines = {LINE_COLUMN: Primitive("int")} if spec.has_lines else {}
    return declared | COORDINATES | lines if spec.coordinates else declared


def _find_term_problems(key: str, term: layout.Term, columns: ColumnTypes) -> Iterator[Problem]:
    if columns.get(term.column.split(".")[0], Primitive("")) is None:
        return
    source = _find_type(term.column, columns)
    if source is None:
        bare = term.transform == "identity" and term.column in layout.TIME_TRANSFORMS
        hint = f"; write {term.column}(column)" if bare else suggest_names(term.column, columns)
        yield Problem(key, str(term), f"refers to {term.column!r}, which is not a column{hint}")
    elif not layout.can_transform(term.transform, source):
        yield Problem(
            key,
            str(term),
            f"does not fit: {term.column} is {source}, but {term.transform} takes "
            f"{layout.list_transformable_types(term.transform)}",
        )


def _find_field_problems(
    key: str, term: layout.Term, before: list[layout.Term], columns: ColumnTypes
) -> Iterator[Problem]:
    """Yield a problem if Iceberg or Spark refuses the partition field, or if a term in `before` makes it redundant."""
    other, source = next((t for t in before if t.field_name == term.field_name), None), _find_type(term.column, columns)
    if other is not None:
        yield Problem(key, str(term), f"creates the same partition field {term.field_name} as {other}; keep one")
    elif term.transform != "identity" and term.field_name in columns:
        yield Problem(
            key, str(term), f"creates the partition field {term.field_name}, which is also a column; rename the column"
        )
    elif term.transform == "identity" and isinstance(source, Primitive) and source.name == "fixed":
        yield Problem(
            key,
            str(term),
            f"has values of {source}, with which Spark 4.1 and Iceberg 1.12 cannot read the table's manifests; "
            f"write bucket(16, {term.column}), or declare the column binary",
        )
    elif term.transform in layout.TIME_TRANSFORMS:
        clash = next((t for t in before if t.column == term.column and t.transform in layout.TIME_TRANSFORMS), None)
        if clash is not None:
            yield Problem(key, str(term), f"is redundant next to {clash}; keep the finer one")


def _find_type(path: str, columns: ColumnTypes) -> Type | None:
    """Return the type at a path; None if no column has this path. As in Iceberg, a path may only go through structs."""
    first, *rest = path.split(".")
    found = columns.get(first)
    for name in rest:
        fields = found.fields if isinstance(found, Struct) else ()
        found = next((field.type for field in fields if field.name == name), None)
    return found
