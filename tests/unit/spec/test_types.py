"""Iceberg's types as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.spec.types import PRIMITIVE_NAMES, Field, List, Map, Primitive, Struct, Type, parse_type

primitives = st.one_of(
    st.sampled_from(PRIMITIVE_NAMES).map(Primitive),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: Primitive("decimal", (p, s)))),
    st.integers(1, 1000).map(lambda n: Primitive("fixed", (n,))),
)


def _structs(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    names = st.lists(st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True), min_size=1, max_size=4, unique=True)
    return names.flatmap(
        lambda ns: st.tuples(*(st.builds(Field, st.just(n), inner, st.booleans()) for n in ns)).map(Struct)
    )


all_types: st.SearchStrategy[Type] = st.recursive(
    primitives, lambda inner: st.one_of(inner.map(List), st.builds(Map, inner, inner), _structs(inner)), max_leaves=8
)


@given(all_types)
def test_every_type_is_read_back_from_its_own_text(declared: Type) -> None:
    assert parse_type(str(declared)) == declared


def test_a_nested_type_may_be_written_without_spaces() -> None:
    assert str(parse_type("map<string,list<struct<a:int not null,b:decimal(9,2)>>>")) == (
        "map<string, list<struct<a: int not null, b: decimal(9, 2)>>>"
    )


@pytest.mark.parametrize(
    ("foreign", "iceberg"),
    [
        ("varchar", "string"),
        ("bigint", "long"),
        ("timestamp_ntz", "timestamp"),
        ("timestamp with time zone", "'timestamptz'"),
        ("timestamp(6) without time zone", "as 'timestamp'"),
        ("list<timestamp with time zone>", "'timestamptz'"),
        ("double precision", "'double'"),
        ("Double Precision not null", "SQL's 'Double Precision', which Iceberg writes as 'double'"),
        ("list<double precision>", "'double'"),
        ("character varying", "'string'"),
        ("struct<a: character varying(10)>", "SQL's 'character varying', which Iceberg writes as 'string'"),
        ("character", "'string'"),
        ("national character varying", "'string'"),
        ("binary varying", "'binary'"),
        ("Int", "int"),
        ("bool", "boolean"),
        ("array<string>", "list<type>"),
        ("list<int64>", "long"),
        ("decimal", "decimal"),
        ("varchar(10)", "string"),
    ],
)
def test_a_type_name_of_another_system_is_refused_with_icebergs_name(foreign: str, iceberg: str) -> None:
    with pytest.raises(ValueError, match=iceberg):
        parse_type(foreign)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("strng", "did you mean 'string'"),
        ("decimal(39,2)", "1 to 38"),
        ("decimal(4,5)", "scale"),
        ("decimal(10", "quote a type that contains a comma"),
        ("fixed[0]", "1 or more"),
        ("timestamp_ns", "format version 3: Spark 4.1 could not read"),
        ("list<variant>", "variant inside another type; make the whole column a variant"),
        ("struct<a: int, A: long>", "twice"),
        ("struct<>", "name"),
        ("int long", "after the type's end"),
        ("list<int", "too early"),
        ("int;", "';'"),
        ("", "too early"),
    ],
)
def test_an_unreadable_type_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_type(text)


@given(st.text(max_size=30))
def test_any_text_is_a_type_or_a_value_error(text: str) -> None:
    try:
        parsed = parse_type(text)
    except ValueError:
        return
    assert parse_type(str(parsed)) == parsed
