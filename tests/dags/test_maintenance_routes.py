"""A route's tables share one entry in the maintenance DAG, and one alert for each health rule."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from frazil import clock
from frazil.airflow.health import subjects as health_routes
from frazil.airflow.health import tasks as table_health
from frazil.airflow.health.subjects import RUNS_PER_ROUND, RouteFindings, select_share
from frazil.airflow.maintenance import tasks as route_care
from frazil.airflow.maintenance import tasks as table_care
from frazil.airflow.maintenance.due import MaintenanceRun, due_tables
from frazil.airflow.maintenance.tasks import RouteTables
from frazil.errors import FrazilError
from frazil.maintenance import measure, orphan_cleanup
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from tests.dags.test_maintenance import Store
from tests.made_routes import MadeRoute

ROUTE = "route of shop"
ACTIONS = ("compaction", "manifests", "expiry")
STREAM = """
name: shop
source: {{topics: [shop], bootstrap-servers: "127.0.0.1:1"}}
table: shop.other
schema: {{kind: string, at: timestamptz}}
event-time: at
route: {{by: field, name: kind, tables: {{order: shop.orders}}, template: "shop.raw_{{value}}"}}
maintenance: {maintenance}
"""
EAGER = "{alerts: {hold: 1ms, snapshots: 3}, expiry: {keep: 1ms, at-least: 1}, orphans: {older-than: 1h}}"


@pytest.fixture
def made(frazil_home: Path, tmp_path: Path) -> MadeRoute:  # noqa: ARG001
    """`shop.raw_b` has most snapshots; `shop.raw_c` was only created; `shop.raw_x` has another owner."""
    (tmp_path / "shop.yaml").write_text(STREAM.format(maintenance=EAGER))
    stream = MadeRoute(load_stream(tmp_path / "shop.yaml"), time.time_ns() // 1_000_000 - 60_000)
    stream.begin_route("a", "b", "c")
    for batch in range(5):
        stream.run({"main": 1, "shop.raw_b": 2, **({"shop.raw_a": 1, "shop.orders": 1} if batch < 3 else {})})
        stream.now_ms += 1000
    load_catalog(None).create_table("shop.raw_x", Schema())
    return stream


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Tables that cannot be measured."""
    broken: set[str] = set()
    real = measure._measure_table

    def measured(table: Any, *args: Any, **kwargs: Any) -> Any:
        if ".".join(table.name()) in broken:
            raise OSError("the storage is on fire")
        return real(table, *args, **kwargs)

    monkeypatch.setattr(measure, "_measure_table", measured)
    return broken


def tables_of(made: MadeRoute) -> RouteTables:
    return RouteTables(ROUTE, made.spec, [made.spec])


def test_one_check_passes_a_route_on_by_one_name_while_any_of_its_tables_needs_maintenance(
    made: MadeRoute, tmp_path: Path
) -> None:
    assert made
    run = MaintenanceRun("run-1", 0, (), ACTIONS, dry_run=False, is_manual=False)
    assert ROUTE in due_tables(["shop.other", ROUTE], tmp_path, run, Store(), lambda _: {})
    (tmp_path / "shop.yaml").write_text(STREAM.format(maintenance="off"))
    assert due_tables(["shop.other", ROUTE], tmp_path, run, Store(), lambda _: {}) == []


@pytest.mark.usefixtures("made")
def test_maintenance_gives_spark_the_neediest_tables_up_to_the_limit_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = table_care.find_tables_with_due_rewrites(ROUTE, tmp_path, actions=ACTIONS, dry_run=False)
    assert found == ["shop.raw_b", "shop.orders", "shop.raw_a"]
    assert "did not create them: shop.raw_x" in caplog.text
    monkeypatch.setattr(route_care, "MAX_TABLES_PER_RUN", 1)
    assert table_care.find_tables_with_due_rewrites(ROUTE, tmp_path, actions=ACTIONS, dry_run=False) == ["shop.raw_b"]
    with pytest.raises(AirflowSkipException, match=r"^dry run; 1 table needs a rewrite$"):
        table_care.find_tables_with_due_rewrites(ROUTE, tmp_path, actions=ACTIONS, dry_run=True)


def test_unmeasurable_tables_are_checked_last_and_are_one_error_if_all_fail(made: MadeRoute, breaks: set[str]) -> None:
    breaks.add("shop.raw_b")
    assert tables_of(made).due(ACTIONS)[-1] == "shop.raw_b"
    assert tables_of(made).due(["orphans"]) == []
    breaks.update({"shop.raw_a", "shop.raw_c", "shop.orders"})
    with pytest.raises(FrazilError, match="none of the 4 tables of the route of shop could be measured"):
        tables_of(made).due(ACTIONS)


def test_a_dropped_table_is_never_due_for_maintenance(made: MadeRoute) -> None:
    load_catalog(None).drop_table("shop.orders")
    assert "shop.orders" not in tables_of(made).due(ACTIONS)


def test_orphan_cleanup_spreads_the_tables_of_a_route_over_runs_and_then_pauses_for_a_day(
    made: MadeRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cleaned, real = Store(), list[str](), orphan_cleanup.clean_orphans

    def seen(catalog: Any, table: Any, **kwargs: Any) -> Any:
        cleaned.append(table.name)
        return real(catalog, table, **kwargs)

    monkeypatch.setattr(route_care, "clean_orphans", seen)
    monkeypatch.setattr(route_care, "MAX_TABLES_PER_RUN", 2)
    route, left = tables_of(made), []
    while route.orphans_due(store):
        left.append(route.clean(store, dry_run=False)["tables-left"])
    assert cleaned == ["shop.orders", "shop.raw_a", "shop.raw_b", "shop.raw_c", "shop.raw_x"]
    assert left == [3, 1, 0]
    with pytest.raises(AirflowSkipException):
        route.clean(store, dry_run=False)
    store[f"orphans:{ROUTE}"] = "nonsense"
    assert route.orphans_due(store), "what somebody else wrote is as if nothing were there"


def test_a_table_that_cannot_be_cleaned_stops_no_other_and_fails_the_task(
    made: MadeRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cleaned = orphan_cleanup.clean_orphans, list[str]()

    def breaks(catalog: Any, table: Any, **kwargs: Any) -> Any:
        if table.name == "shop.orders":
            raise OSError("the storage is on fire")
        cleaned.append(table.name)
        return real(catalog, table, **kwargs)

    monkeypatch.setattr(route_care, "clean_orphans", breaks)
    store = Store()
    with pytest.raises(AirflowFailException, match=r"shop\.orders: OSError"):
        tables_of(made).clean(store, dry_run=False)
    assert "shop.raw_c" in cleaned
    assert not tables_of(made).orphans_due(store)


def test_health_raises_one_alert_per_rule_for_all_tables_created_by_a_route(
    made: MadeRoute, breaks: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made
    store, now_ms = Store(), clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms)
    table_health.measure_all(tmp_path, store)
    breaks.add("shop.raw_c")
    table_health.measure_all(tmp_path, store)
    now_ms += 2  # longer than the alerts' hold
    active = {(a["table"], a["rule"]): a for a in table_health.measure_all(tmp_path, store)["active"]}
    assert active[ROUTE, "snapshots"]["value"] == "2 tables"
    assert "shop.raw_a, shop.raw_b" in active[ROUTE, "snapshots"]["sentence"]
    assert "cannot be measured: shop.raw_c" in active[ROUTE, "unmeasured"]["sentence"]
    assert ("shop.orders", "snapshots") in active, "a table that a person named has alerts of its own"
    assert json.loads(json.dumps(store[table_health.ROUTED_TABLES_KEY]))[ROUTE]["beyond"]["shop.raw_b"] == ["snapshots"]
    breaks.clear()
    for name in ("shop.raw_a", "shop.raw_b"):
        load_catalog(None).drop_table(name)
    resolved = table_health.measure_all(tmp_path, store)["resolved"]
    assert {(a["table"], a["rule"]) for a in resolved} == {(ROUTE, "snapshots"), (ROUTE, "unmeasured")}


def test_health_findings_of_a_table_are_kept_until_its_next_slot(
    made: MadeRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_routes, "MIN_TABLES_PER_RUN", 1)
    found, turns = RouteFindings({}), []
    for _ in range(4):
        found, _ = health_routes.measure_route_share(made.spec, [made.spec], found, now_ms=made.now_ms)
        turns.append(found.after)
    assert turns == ["shop.raw_a", "shop.raw_b", "shop.raw_c", "shop.raw_x"]
    assert found.beyond == {"shop.raw_a": ["snapshots"], "shop.raw_b": ["snapshots"]}


def test_findings_not_written_by_frazil_are_left_out() -> None:
    assert RouteFindings.from_json({"after": 3, "beyond": {"a": "x", "b": ["snapshots"]}}).to_json() == {
        "after": "",
        "beyond": {"b": ["snapshots"]},
    }
    assert RouteFindings.from_json({"beyond": []}) == RouteFindings({})


@given(st.sets(st.text("abc", min_size=1), max_size=300), st.text("abc"))
def test_every_routed_table_gets_a_slot_within_one_round_of_runs(names: set[str], last: str) -> None:
    seen: list[str] = []
    for _ in range(RUNS_PER_ROUND):
        turn = select_share(last, sorted(names))
        assert len(set(turn)) == len(turn)
        seen += turn
        last = turn[-1] if turn else last
    assert set(seen) == names
