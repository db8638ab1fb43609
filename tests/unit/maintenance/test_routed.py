"""Routed tables are maintained like others, whether declared or created from the template."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema

from frazil.commit.journal import bare_path
from frazil.commit.marker import read_marker
from frazil.errors import SpecError
from frazil.maintenance.due import Action
from frazil.maintenance.measure import NotMadeByRoute, measure, measure_due_table, route_tables
from frazil.maintenance.orphan_cleanup import clean_orphans, load_all_folders
from frazil.maintenance.plans import MaintenancePlanner
from frazil.maintenance.tables import (
    TableKind,
    find_maintained,
    group_by_session,
    maintained_tables,
    routes_by_name,
    template_table,
)
from frazil.table.catalogs import load_catalog
from tests.made_routes import MadeRoute, shop

pytestmark = pytest.mark.usefixtures("frazil_home")

EAGER = {"expiry": {"keep": "1ms", "at-least": 1}, "compaction": {"min-files": 2}, "orphans": {"older-than": "1ms"}}


@pytest.fixture
def made() -> MadeRoute:
    stream = MadeRoute(shop(maintenance=EAGER), time.time_ns() // 1_000_000)
    stream.begin_route("a", "b")
    for _ in range(3):
        stream.run({"main": 1, "shop.orders": 2, "shop.raw_a": 3})
        stream.now_ms += 1000
    return stream


def somebody_elses(name: str, **properties: str) -> None:
    load_catalog(None).create_table(name, Schema(), properties=properties)


def test_the_tables_of_a_route_are_those_that_it_names_and_those_that_it_has_made(made: MadeRoute) -> None:
    somebody_elses("shop.raw_others")
    catalog, specs = load_catalog(None), [made.spec]
    found = {table.name: table for table in route_tables(catalog, made.spec, specs)}
    assert list(found) == ["shop.orders", "shop.raw_a", "shop.raw_b", "shop.raw_others"]
    assert {table.kind for table in found.values()} == {TableKind.ROUTED}
    with pytest.raises(NotMadeByRoute, match="maintenance skips it"):
        measure(catalog, found["shop.raw_others"], now_ms=made.now_ms)
    with pytest.raises(NotMadeByRoute):
        clean_orphans(catalog, found["shop.raw_others"], now_ms=made.now_ms)
    with pytest.raises(NotMadeByRoute):
        MaintenancePlanner(catalog, found["shop.raw_others"], made.now_ms).expiry()


def test_tables_named_in_declarations_are_listed_without_a_catalog() -> None:
    spec = shop()
    assert [(t.name, t.kind) for t in maintained_tables([spec])] == [
        ("shop.orders", TableKind.ROUTED),
        ("shop.other", TableKind.MAIN),
        ("shop.other_dead_letters", TableKind.DEAD_LETTERS),
    ]
    assert list(group_by_session([spec])) == ["shop.other"], "the route has a turn of its own"
    assert list(routes_by_name([spec])) == ["route of shop"]
    assert find_maintained([spec], "shop.raw_a").kind is TableKind.ROUTED
    for name in ("shop.raw_", "shop.a", "route of shop"):
        with pytest.raises(SpecError, match="no declared stream uses the table"):
            find_maintained([spec], name)


@pytest.mark.parametrize(
    ("elsewhere", "made", "named"),
    [
        ({"table": {"identifier": "far.ticks", "catalog": "away"}, "route": None}, "shop.raw_a", "shop.orders"),
        (
            {"table": {"identifier": "shop.raw_a", "catalog": "away"}, "route": None},
            "default.shop.raw_a",
            "shop.orders",
        ),
        ({"table": {"identifier": "shop.other", "catalog": "away"}}, "default.shop.raw_a", "default.shop.orders"),
    ],
)
def test_a_templated_table_is_found_by_its_name_with_and_without_its_catalog(
    elsewhere: dict[str, Any], made: str, named: str
) -> None:
    specs = [shop(), shop(name="elsewhere", **elsewhere)]
    assert template_table(specs[0], "shop.raw_a", specs).name == made
    for name in (made, named):
        assert (found := find_maintained(specs, name)).kind is TableKind.ROUTED
        assert (found.name, found.catalog) == (name, None)


def test_a_table_named_by_two_routes_is_maintained_once() -> None:
    others: dict[str, Any] = {"name": "another", "table": "shop.another"}
    specs = [shop(), shop(**others)]
    catalog = load_catalog(None)
    assert [t.name for t in route_tables(catalog, specs[1], specs)] == ["shop.orders"]
    assert route_tables(catalog, specs[0], specs) == []
    (table,) = [t for t in maintained_tables(specs) if t.kind is TableKind.ROUTED]
    assert [spec.name for spec in table.streams] == ["another", "shop"]


def test_due_maintenance_is_reported_per_table_and_the_neediest_has_the_most_new_files(made: MadeRoute) -> None:
    catalog, later_ms = load_catalog(None), made.now_ms + 60_000
    evaluated = {
        table.name: measure_due_table(catalog, table, actions=tuple(Action), now_ms=later_ms)
        for table in route_tables(catalog, made.spec, [made.spec])
    }
    a, b = evaluated["shop.raw_a"], evaluated["shop.raw_b"]
    assert a is not None
    assert b is not None
    assert {Action.COMPACTION, Action.EXPIRY} <= set(a.reasons)
    assert Action.COMPACTION not in b.reasons
    assert a.urgency > b.urgency


def test_full_checks_of_routed_tables_are_spread_over_the_day() -> None:
    spec = shop()
    times = {find_maintained([spec], f"shop.raw_{n}").full_check_at for n in range(100)}
    assert len(times) > 90
    assert all(timedelta(0) <= at < timedelta(days=1) for at in times)
    assert find_maintained([spec], "shop.other").full_check_at == timedelta(0)


def test_expiry_keeps_the_snapshot_of_a_routed_tables_marker(made: MadeRoute) -> None:
    catalog = load_catalog(None)
    found = find_maintained([made.spec], "shop.raw_a")
    table, plan = MaintenancePlanner(catalog, found, made.now_ms + 60_000).expiry()
    marker = read_marker(table.properties, "shop")
    assert marker is not None
    assert plan.expire
    assert marker.snapshot_id not in plan.expire


def test_the_orphan_cleanup_of_a_routed_table_leaves_rows_that_wait(made: MadeRoute) -> None:
    """The files of a batch that the default table has decided, and its table has not, are in no snapshot."""
    waiting = made.batch({"main": 1, "shop.raw_a": 4})
    spec = shop(maintenance={"orphans": {"older-than": "24h", "max-share": 100}})
    catalog, found = load_catalog(None), find_maintained([spec], "shop.raw_a")
    (file,) = waiting.staged_for("shop.raw_a")
    waits = Path(bare_path(file.path))
    stray = Path(bare_path(catalog.load_table("shop.raw_a").location())) / "data" / "stray.parquet"
    stray.touch()
    for path in (waits, stray):
        os.utime(path, (time.time() - 5 * 86_400,) * 2)
    now_ms = time.time_ns() // 1_000_000
    report = clean_orphans(catalog, found, now_ms=now_ms, dry_run=True, neighbours=load_all_folders(catalog))
    assert (report.refused, report.registered, report.candidates) == (None, 1, 1)
    assert str(stray).endswith(report.examples[0].rsplit("/", 1)[-1])
    made.follow()
    assert catalog.load_table("shop.raw_a").scan().count() == 13
