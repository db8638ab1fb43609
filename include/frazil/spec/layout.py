"""Parses partition and sort terms such as `day(ts)` or `bucket(16, id) desc nulls last`, without PyIceberg. The allowed
types are those of Iceberg's specification, "Partition Transforms".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from frazil.spec.types import Primitive, Type

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
    "year": _TIMES | {"date"},
    "month": _TIMES | {"date"},
    "day": _TIMES | {"date"},
    "hour": _TIMES,
}
"""Column types to which a transform can be applied. Other transforms can be applied to all primitive types."""
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
    if not isinstance(source, Primitive):
        return False
    return source.name in _TYPES_BY_TRANSFORM[transform] if transform in _TYPES_BY_TRANSFORM else True


def list_transformable_types(transform: str) -> str:
    return (
        ", ".join(sorted(_TYPES_BY_TRANSFORM[transform]))
        if transform in _TYPES_BY_TRANSFORM
        else "any type but struct, list and map"
    )


def _parse_width(transform: str, text: str | None) -> int | None:
    if transform not in {"bucket", "truncate"}:
        if text is not None:
            raise ValueError(f"has a number, which {transform} does not take; write {transform}(column)")
        return None
    if text is None or not text.isdecimal() or len(text) > len(str(MAX_WIDTH)) or not 0 < int(text) <= MAX_WIDTH:
        raise ValueError(f"needs an integer above 0 and at most {MAX_WIDTH}, such as {transform}(16, column)")
    return int(text)
