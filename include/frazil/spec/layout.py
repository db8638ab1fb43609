"""Parses partition and sort terms such as `day(ts)` or `bucket(16, id) desc nulls last`, without PyIceberg, and checks
them against the columns. The allowed types are those of Iceberg's specification, "Partition Transforms".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from frazil.spec.column import COORDINATES, LINE_COLUMN
from frazil.spec.types import Primitive, Struct, Type, find_type, parse_type
from frazil.spec.values import Problem, suggest_names

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec

TIME_TRANSFORMS = frozenset({"year", "month", "day", "hour"})
TRANSFORMS = ("identity", "bucket", "truncate", "year", "month", "day", "hour", "void")
ALLOWED_TERMS = "column, year/month/day/hour(column), bucket(n, column), truncate(n, column), void(column)"

MAX_WIDTH = 2**31 - 1
"""Maximum width, or number of buckets: Iceberg's Java library stores them as `int`."""

_TIMES = frozenset({"timestamp", "timestamptz"})
_BUCKETS = _TIMES | {"int", "long", "decimal", "date", "time", "string", "uuid", "fixed", "binary"}
_TYPES_BY_TRANSFORM = {
    "bucket": _BUCKETS,
    "truncate": frozenset({"int", "long", "decimal", "string", "binary"}),
    **dict.fromkeys(("year", "month", "day"), _TIMES | {"date"}),
    "hour": _TIMES,
}
"""Column types that a transform can have. Transforms that are not listed can have all primitive types."""
_TERM = re.compile(
    r"(?:(?P<transform>\w+)\s*\(\s*(?:(?P<width>[^,()]+?)\s*,\s*)?)?(?P<column>[^\s,()][^,()]*+)(?P<close>\))?"
)
_UNFINISHED_SORT_TERM = re.compile(r"\s(?:asc|desc|nulls)$", re.IGNORECASE)
"""The end of an incomplete direction. A name alone, such as `desc`, may be a column."""


@dataclass(frozen=True, slots=True)
class Term:
    """A transform of a column. `width` is set for `bucket` (number of buckets) and `truncate` (width)."""

    transform: str
    column: str
    width: int | None = None

    @property
    def field_name(self) -> str:
        """The partition field's name that Iceberg's Java `PartitionSpec.Builder` chooses, such as `ts_day`."""
        suffix = {"identity": "", "truncate": "_trunc", "void": "_null"}.get(self.transform, f"_{self.transform}")
        return f"{self.column}{suffix}"

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({f'{self.width}, ' if self.width else ''}{self.column})"


@dataclass(frozen=True, slots=True)
class SortTerm:
    """A term with its order. The default order of nulls is Iceberg's: first if ascending, last if descending."""

    term: Term
    direction: Literal["asc", "desc"]
    nulls: Literal["first", "last"]

    def __str__(self) -> str:
        return f"{self.term} {self.direction} nulls {self.nulls}"


def parse_term(text: str) -> Term:
    """Parse one partition term. A column name alone is the identity. Raises ValueError with the allowed forms."""
    match = _TERM.fullmatch(text.strip())
    if match is None or bool(match["transform"]) != bool(match["close"]):
        raise ValueError(f"is not a partition or sort term; write one of: {ALLOWED_TERMS}")
    name = (match["transform"] or "identity").lower()
    if name not in TRANSFORMS:
        close = get_close_matches(name, TRANSFORMS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"has {name!r}, which is not an Iceberg transform{hint} (allowed: {ALLOWED_TERMS})")
    return Term(name, match["column"].rstrip(), _parse_width(name, match["width"]))


def parse_sort_term(text: str) -> SortTerm:
    """Parse one sort term, such as `bucket(16, id) asc nulls last`. Raises ValueError with the allowed forms."""
    head = text.strip()
    direction: Literal["asc", "desc"] = "asc"
    nulls: Literal["first", "last"] | None = None
    words = head.rsplit(None, 2)
    if len(words) > 1 and words[-2].lower() == "nulls" and words[-1].lower() in {"first", "last"}:
        head, nulls = " ".join(words[:-2]), "first" if words[-1].lower() == "first" else "last"
    words = head.rsplit(None, 1)
    if len(words) > 1 and words[-1].lower() in {"asc", "desc"}:
        head, direction = words[0], "asc" if words[-1].lower() == "asc" else "desc"
    if not head or _UNFINISHED_SORT_TERM.search(head):
        raise ValueError("is not a sort term; write a column or transform, then asc or desc, then nulls first or last")
    by_default: Literal["first", "last"] = "first" if direction == "asc" else "last"
    return SortTerm(parse_term(head), direction, nulls or by_default)


def can_transform(transform: str, source: Type) -> bool:
    allowed = _TYPES_BY_TRANSFORM.get(transform)
    return isinstance(source, Primitive) and (source.name in allowed if allowed else source.name != "variant")


def list_transformable_types(transform: str) -> str:
    return ", ".join(sorted(_TYPES_BY_TRANSFORM.get(transform, ()))) or "any type but struct, list, map and variant"


def _parse_width(transform: str, text: str | None) -> int | None:
    if transform not in {"bucket", "truncate"}:
        if text is not None:
            raise ValueError(f"has a number, which {transform} does not take; write {transform}(column)")
        return None
    if text is None or not text.isdecimal() or len(text) > len(str(MAX_WIDTH)) or not 0 < int(text) <= MAX_WIDTH:
        raise ValueError(f"needs an integer above 0 and at most {MAX_WIDTH}, such as {transform}(16, column)")
    return int(text)


ColumnTypes = Mapping[str, Type | None]


def find_partitioning_problems(spec: StreamSpec) -> Iterator[Problem]:
    columns, terms = _collect_types(spec), [parse_term(text) for text in spec.partition_by]
    for index, term in enumerate(terms):
        yield from _find_term_problems(f"partition-by.{index}", term, columns)
        yield from _find_field_problems(f"partition-by.{index}", term, terms[:index], columns)


def find_sorting_problems(spec: StreamSpec) -> Iterator[Problem]:
    for index, text in enumerate(spec.sort_by):
        yield from _find_term_problems(f"sort-by.{index}", parse_sort_term(text).term, _collect_types(spec))


def _collect_types(spec: StreamSpec) -> ColumnTypes:
    declared: dict[str, Type | None] = {c.name: parse_type(c.type) if c.type else None for c in spec.columns}
    lines = {LINE_COLUMN: Primitive("int")} if spec.has_lines else {}
    return declared | COORDINATES | lines if spec.coordinates else declared


def _find_term_problems(key: str, term: Term, columns: ColumnTypes) -> Iterator[Problem]:
    if columns.get(term.column.split(".")[0], Primitive("")) is None:
        return
    source = _find_type(term.column, columns)
    if source is None:
        bare = term.transform == "identity" and term.column in TIME_TRANSFORMS
        hint = f"; write {term.column}(column)" if bare else suggest_names(term.column, columns)
        yield Problem(key, str(term), f"refers to {term.column!r}, which is not a column{hint}")
    elif not can_transform(term.transform, source):
        text = (
            f"does not fit: {term.column} is {source}, but {term.transform} takes "
            f"{list_transformable_types(term.transform)}"
        )
        yield Problem(key, str(term), text)


def _find_field_problems(key: str, term: Term, terms: list[Term], columns: ColumnTypes) -> Iterator[Problem]:
    """Yield a problem if Iceberg or Spark refuses the partition field, or if a term in `terms` makes it redundant."""
    other, source = next((t for t in terms if t.field_name == term.field_name), None), _find_type(term.column, columns)
    if other is not None:
        yield Problem(key, str(term), f"creates the same partition field {term.field_name} as {other}; keep one")
    elif term.transform != "identity" and term.field_name in columns:
        text = f"creates the partition field {term.field_name}, which is also a column; rename the column"
        yield Problem(key, str(term), text)
    elif term.transform == "identity" and isinstance(source, Primitive) and source.name == "fixed":
        text = (
            f"has values of {source}, with which Spark 4.1 and Iceberg 1.12 cannot read the table's manifests; "
            f"write bucket(16, {term.column}), or declare the column binary"
        )
        yield Problem(key, str(term), text)
    elif term.transform in TIME_TRANSFORMS:
        clash = next((t for t in terms if t.column == term.column and t.transform in TIME_TRANSFORMS), None)
        if clash is not None:
            yield Problem(key, str(term), f"is redundant next to {clash}; keep the finer one")


def _find_type(path: str, columns: ColumnTypes) -> Type | None:
    """Return the type at a path; None if no column has this path. As in Iceberg, a path may only go through structs."""
    first, *nested = path.split(".")
    column_type = columns.get(first)
    for name in nested:
        column_type = find_type({first: column_type}, (first, name)) if isinstance(column_type, Struct) else None
    return column_type
