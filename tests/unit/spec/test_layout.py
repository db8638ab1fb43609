"""Partition and sort terms as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform

from frazil.spec.iceberg import iceberg_type
from frazil.spec.layout import TRANSFORMS, Term, can_transform, parse_sort_term, parse_term
from frazil.spec.types import PRIMITIVE_NAMES, Primitive

WIDTHS = {"bucket": 16, "truncate": 4}


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("carrier", Term("identity", "carrier")),
        ("identity(carrier)", Term("identity", "carrier")),
        ("day(ts)", Term("day", "ts")),
        ("Hour( payload.ts )", Term("hour", "payload.ts")),
        ("bucket(16, id)", Term("bucket", "id", 16)),
        ("truncate(4,s)", Term("truncate", "s", 4)),
        ("void(x)", Term("void", "x")),
    ],
)
def test_every_transform_of_iceberg_can_be_written(text: str, term: Term) -> None:
    assert parse_term(text) == term
    assert parse_term(str(term)) == term


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("days(ts)", "did you mean day"),
        ("bucket(id)", "integer above 0"),
        ("bucket(0, id)", "above 0"),
        ("bucket(2147483648, id)", "at most 2147483647"),
        (f"truncate({'9' * 5000}, id)", "at most 2147483647"),
        ("day(ts", "term"),
        ("day(2, ts)", "which day does not take"),
        ("", "term"),
        ("bucket(x, id)", "integer above 0"),
        ("a, b", "term"),
    ],
)
def test_an_unreadable_partition_or_sort_term_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_term(text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("a", "a asc nulls first"),
        ("a desc", "a desc nulls last"),
        ("a DESC NULLS FIRST", "a desc nulls first"),
        ("bucket(16, id) asc nulls last", "bucket(16, id) asc nulls last"),
        ("a nulls last", "a asc nulls last"),
        ("Event Time  desc", "Event Time desc nulls last"),
        ("day( Event Time ) nulls first", "day(Event Time) asc nulls first"),
        ("desc", "desc asc nulls first"),
        ("asc desc nulls first", "asc desc nulls first"),
    ],
)
def test_a_sort_term_has_icebergs_defaults(text: str, whole: str) -> None:
    assert str(parse_sort_term(text)) == whole
    assert parse_sort_term(whole) == parse_sort_term(text)


@pytest.mark.parametrize("text", ["a desc nulls", "a asc desc", "nulls last", "day(a) b", "a, b", ""])
def test_a_sort_term_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="term"):
        parse_sort_term(text)


@given(st.text(max_size=25))
def test_any_text_is_a_partition_term_or_a_value_error(text: str) -> None:
    for parse in (parse_term, parse_sort_term):
        try:
            assert parse(str(parse(text))) == parse(text)
        except ValueError:
            continue


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", [*PRIMITIVE_NAMES, "decimal", "fixed"])
def test_a_partition_transform_accepts_the_same_types_as_pyiceberg(transform: str, name: str) -> None:
    arguments = {"decimal": (9, 2), "fixed": (4,)}.get(name, ())
    theirs = parse_transform(f"{transform}[{WIDTHS[transform]}]" if transform in WIDTHS else transform)
    declared = Primitive(name, arguments)
    assert can_transform(transform, declared) == theirs.can_transform(iceberg_type(str(declared)))
