"""Declarations of a route, the error message for each mistake, and distinct created tables for distinct values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frazil.errors import SpecError
from frazil.spec.load import check_other_streams, find_stream, load_stream
from frazil.spec.route import MAX_VALUE_CHARACTERS_IN_NAME, Route, derive_name_part
from frazil.spec.sinks import APPEND, Sinks
from tests.strict_streams import load_streams

Declare = Callable[..., Path]


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ({"by": "field", "tables": {"a": "n.a"}}, "is missing the name of the field; add name"),
        ({"by": "topic", "name": "x", "tables": {"a": "n.a"}}, "has a name, which is not used with by: topic"),
        ({"by": "header", "name": "x"}, "has neither tables nor a template"),
        (
            {"by": "header", "name": "x", "tables": {"a": "n.a"}, "limit": 3},
            "has allow or limit, which only apply to a template",
        ),
        ({"by": "header", "name": "x", "tables": {"a": "a"}}, "'a' for 'a', which is not an identifier"),
        ({"by": "header", "name": "x", "template": "n.a"}, "is not a template; write namespace.{value}"),
        ({"by": "header", "name": "x", "template": "{value}.a"}, "is not a template; write namespace.{value}"),
        (
            {"by": "field", "name": "carier", "template": "n.{value}"},
            "route.name: 'carier' is not a column of the schema",
        ),
        (
            {"by": "field", "name": "departed", "template": "n.{value}"},
            "is a column of type timestamptz; a route needs",
        ),
        ({"by": "topic", "tables": {"flight": "n.a"}}, "'flight' is not a topic of the stream"),
        ({"by": "header", "name": "x", "tables": {"a": "demo.flights"}}, "is the stream's own table"),
        (
            {"by": "header", "name": "x", "tables": {"a": "demo.flights_dead_letters"}},
            "is the table of its dead letters",
        ),
        ({"by": "header", "name": "x", "template": "n.{value}", "limit": 0}, "route.limit"),
    ],
)
def test_a_mistake_is_reported_with_its_key(declare: Declare, route: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        load_stream(declare(schema={"carrier": "string", "departed": "timestamptz"}, route=route))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("value", "kind", "answer"),
    [
        ("02", "int", "'02' is never a value of the column carrier; write 2"),
        ("0x1f", "long", "'0x1f' is never a value of the column carrier; write 31"),
        ("1_000", "int", "'1_000' is never a value of the column carrier; write 1000"),
        ("two", "int", "'two' is not an integer, but the column carrier has integers"),
        ("-2", "int", None),
        ("02", "string", None),
    ],
)
def test_a_route_value_in_a_number_format_that_no_record_has_is_refused(
    declare: Declare, value: str, kind: str, answer: str | None
) -> None:
    route = {"by": "field", "name": "carrier", "tables": {value: "n.a"}}
    path = declare(schema={"carrier": kind, "departed": "timestamptz"}, route=route)
    if answer is None:
        assert load_stream(path).route is not None
    else:
        with pytest.raises(SpecError, match=f"route.tables: {answer}$"):
            load_stream(path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"mode": "upsert", "key": ["departed"]}, "route.name: 'carrier' is not in the key"),
        (
            {"distribution": "hash"},
            "distribution: 'hash' divides rows by the sizes of the default table's recent batches",
        ),
        (
            {"source": {"topics": "x", "bootstrap-servers": "a:1", "format": {"type": "json", "lines": True}}},
            "source.format.lines: 'true' could send rows of one record to several tables",
        ),
        (
            {"commit": {"align": "watermark"}, "partition-by": ["day(departed)"]},
            "commit.align: 'watermark' shows a window with the table's next commit",
        ),
    ],
)
def test_settings_that_cannot_be_combined_with_a_route_are_refused(
    declare: Declare, more: dict[str, Any], message: str
) -> None:
    route = {"by": "field", "name": "carrier", "template": "n.{value}"}
    with pytest.raises(SpecError) as raised:
        load_stream(declare(schema={"carrier": "string not null", "departed": "timestamptz"}, route=route, **more))
    assert message in str(raised.value)


def test_streams_that_share_a_routed_table_declare_full_evolution_both_or_neither(
    declare: Declare, tmp_path: Path
) -> None:
    schema = {"carrier": "string not null", "departed": "timestamptz"}
    for number, evolution in ((1, "additive"), (2, "full")):
        route, table = {"by": "field", "name": "carrier", "tables": {"a": "demo.a"}}, f"demo.of_{number}"
        source = {"topics": f"t{number}", "format": "json", "bootstrap-servers": "a:1"}
        path = f"{number}.yaml"
        declare(path, name=f"s{number}", table=table, source=source, schema=schema, route=route, evolution=evolution)
    with pytest.raises(
        SpecError, match=r"2\.yaml: evolution: full, but .*1\.yaml, which also writes to demo\.a, has: add"
    ):
        load_streams(tmp_path)


@pytest.mark.parametrize(
    ("atomic", "route", "message"),
    [
        (["demo.a"], None, "commit.atomic: 'demo.a' lists tables, but route.tables has none"),
        ([], {"a": "demo.a"}, "commit.atomic: '' lists tables"),
        (["demo.b"], {"a": "demo.a"}, "commit.atomic: 'demo.b' is neither a table of the stream nor in route.tables"),
    ],
)
def test_an_atomic_commit_may_list_only_tables_of_the_route(
    declare: Declare, atomic: list[str], route: dict[str, str] | None, message: str
) -> None:
    more = {} if route is None else {"route": {"by": "field", "name": "carrier", "tables": route}}
    schema = {"carrier": "string not null", "departed": "timestamptz"}
    with pytest.raises(SpecError) as raised:
        load_stream(declare(schema=schema, commit={"atomic": atomic}, **more))
    assert message in str(raised.value)


def test_the_default_table_and_its_dead_letters_can_also_be_listed_for_atomic_commits(declare: Declare) -> None:
    route = {"by": "field", "name": "carrier", "tables": {"a": "demo.a", "b": "demo.b"}}
    schema = {"carrier": "string not null", "departed": "timestamptz"}
    listed = ["demo.a", "demo.flights", "demo.flights_dead_letters"]
    assert load_stream(declare(schema=schema, route=route, commit={"atomic": listed})).commit.atomic == tuple(listed)


def test_declaring_a_route_restarts_the_writer(declare: Declare) -> None:
    schema = {"carrier": "string", "departed": "timestamptz"}
    plain = load_stream(declare(schema=schema))
    routed = load_stream(declare(schema=schema, route={"by": "field", "name": "carrier", "template": "n.{value}"}))
    assert plain.fingerprint() != routed.fingerprint()


def test_a_plain_value_is_used_unchanged_in_a_table_name() -> None:
    route = Route(by="topic", template="shop.raw_{value}")
    assert route.derive_table_name("orders") == "shop.raw_orders"
    assert derive_name_part("a" * MAX_VALUE_CHARACTERS_IN_NAME) == "a" * MAX_VALUE_CHARACTERS_IN_NAME


@given(st.sampled_from(["a", "ab_c", "A", "a b", "a_0123456789ab", ""]))
def test_a_plain_value_can_be_recovered_from_its_table_name(value: str) -> None:
    route = Route(by="topic", template="shop.raw_{value}_v1")
    sinks = Sinks("shop", "shop.main", "shop.dead", APPEND, (), route)
    shown = sinks.extract_value(route.derive_table_name(value))
    assert shown == (value if derive_name_part(value) == value else None)


@given(st.text(max_size=80), st.text(max_size=80))
@example("Orders", "orders")
@example("a b", "a_b")
@example("a-b", "a.b")
@example("", "value")
@example("a" * 65, "a" * 66)
def test_different_values_give_different_table_names_that_every_catalog_accepts(one: str, other: str) -> None:
    assert (derive_name_part(one) == derive_name_part(other)) == (one == other)
    assert (derive_name_part(derive_name_part(one)) == derive_name_part(other)) == (derive_name_part(one) == other)
    name = derive_name_part(one)
    assert name.isascii()
    assert name.replace("_", "a").isalnum()
    assert name == name.lower()
    assert len(name) <= MAX_VALUE_CHARACTERS_IN_NAME + 13


def test_no_writer_starts_that_would_write_into_another_streams_table(declare: Declare, tmp_path: Path) -> None:
    schema = {"carrier": "string", "departed": "timestamptz"}
    route = {"by": "field", "name": "carrier", "tables": {"AA": "demo.other"}}
    declare("1.yaml", schema=schema, route=route)
    declare("2.yaml", schema=schema, name="other", table="demo.other")
    (tmp_path / "3.yaml").write_text("name: broken\nschema: 7\n")
    with pytest.raises(SpecError, match=r"1\.yaml: route\.tables\.AA: 'demo\.other' is a table of the stream in"):
        check_other_streams(tmp_path, find_stream(tmp_path, "flights"))
    check_other_streams(tmp_path, find_stream(tmp_path, "other"))


def test_a_required_column_of_one_stream_of_a_table_is_refused_with_both_files_and_the_way_out(
    declare: Declare, tmp_path: Path
) -> None:
    declare("1.yaml", schema={"departed": "timestamptz"})
    required = {"carrier": "string not null", "departed": "timestamptz"}
    declare("2.yaml", name="other", schema=required, source={"topics": "o", "bootstrap-servers": "b:1"})
    for name, file, another in (("flights", "1.yaml", "2.yaml"), ("other", "2.yaml", "1.yaml")):
        with pytest.raises(SpecError) as refused:
            check_other_streams(tmp_path, find_stream(tmp_path, name))
        assert str(refused.value).startswith(f"{tmp_path / file}: schema.carrier: ")
        assert f"but the stream in {tmp_path / another}, which also writes to demo.flights, has: " in str(refused.value)
        assert str(refused.value).endswith("; declare the column in both streams, or without 'not null'")


def test_no_writer_starts_that_would_make_another_streams_required_column_optional(
    declare: Declare, tmp_path: Path
) -> None:
    required = {"carrier": "string not null", "departed": "timestamptz"}
    declare("1.yaml", schema={**required, "carrier": "string"})
    declare("2.yaml", name="other", schema=required, source={"topics": "o", "bootstrap-servers": "b:1"})
    declare("3.yaml", name="third", schema=required, table="demo.third")
    said = (
        r"1\.yaml: schema\.carrier: string, but the stream in \S+2\.yaml, which also writes to demo\.flights, has: "
        "string not null; remove or add 'not null' in all streams of the table together"
    )
    with pytest.raises(SpecError, match=said):
        check_other_streams(tmp_path, find_stream(tmp_path, "flights"))
    check_other_streams(tmp_path, find_stream(tmp_path, "other"))
    check_other_streams(tmp_path, find_stream(tmp_path, "third"))
    (tmp_path / "_defaults.yaml").write_text("table: demo.flights\n")
    for file in ("1.yaml", "2.yaml"):
        (tmp_path / file).write_text((tmp_path / file).read_text().replace("table: demo.flights\n", ""))
    with pytest.raises(SpecError, match=said):
        check_other_streams(tmp_path, find_stream(tmp_path, "flights"))


def test_a_table_of_a_route_cannot_be_the_table_of_another_stream(declare: Declare, tmp_path: Path) -> None:
    schema = {"carrier": "string", "departed": "timestamptz"}
    route = {"by": "field", "name": "carrier", "tables": {"AA": "demo.other_dead_letters"}}
    declare("1.yaml", schema=schema, route=route)
    declare("2.yaml", schema=schema, name="other", table="demo.other")
    with pytest.raises(SpecError, match=r"route\.tables\.AA: 'demo\.other_dead_letters' is a table of the stream in"):
        load_streams(tmp_path)
