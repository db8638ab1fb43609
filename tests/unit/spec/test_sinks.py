"""A stream's sinks: the tables to write, and how commits apply its records."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.spec.routed_stream import view_from_table
from frazil.spec.sinks import APPEND, DEDUPLICATE, UPSERT, Mode
from tests.made_routes import shop

TEMPLATE = "shop.raw_{value}"
ROUTE = {"by": "field", "name": "kind", "tables": {"a": "shop.a", "b": "shop.a"}, "template": TEMPLATE}


@pytest.mark.parametrize(
    ("declared", "mode", "key"),
    [
        ({}, APPEND, ()),
        ({"dedupe": {"key": ["kind"], "within": "1h"}}, DEDUPLICATE, ("kind",)),
        ({"mode": "upsert", "key": ["kind"]}, UPSERT, ("kind",)),
    ],
)
def test_the_declaration_chooses_the_mode_of_all_tables(declared: Any, mode: Mode, key: tuple[str, ...]) -> None:
    sinks = shop(schema={"kind": "string not null", "at": "timestamptz not null"}, **declared).sinks
    assert (sinks.mode, sinks.key) == (mode, key)


def test_a_stream_without_a_route_has_no_routed_tables() -> None:
    sinks = shop(route=None).sinks
    assert (sinks.has_routed_tables, [*sinks.named_tables], sinks.template, sinks.field) == (False, [], None, None)
    assert not sinks.owns("shop.a", {"frazil.route.shop": "a"})
    assert not sinks.includes("shop.a", "a")
    assert sinks.may_include(sinks.default_table)
    assert sinks.may_include(sinks.dead_letter_table)


def test_a_table_belongs_to_a_route_that_names_it_or_whose_value_is_in_its_properties() -> None:
    sinks = shop(route=ROUTE).sinks
    assert [*sinks.named_tables] == ["shop.a"]
    assert sinks.owns("shop.a", {})
    assert sinks.owns("shop.raw_web", {"frazil.route.shop": "web"})
    assert not sinks.owns("shop.raw_web", {"frazil.route.shop": "app"})
    assert not sinks.owns("shop.raw_web", {"frazil.route.other": "web"})
    assert sinks.includes("shop.raw_web", "web")
    assert not sinks.includes("shop.raw_a", "a"), "the route names another table for this value"


@pytest.mark.parametrize("table", ["shop.a", "shop.raw_web", TEMPLATE])
def test_each_table_sees_the_sinks_of_the_whole_stream(table: str) -> None:
    spec = shop(route=ROUTE | {"complete": [TEMPLATE]}, complete="hour")
    view = view_from_table(spec, table)
    assert view is not None
    assert view.sinks == spec.sinks
    assert view.dead_letter_table == spec.dead_letter_table
