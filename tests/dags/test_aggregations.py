"""The aggregations' DAG file: the DAGs it contains, when their days start, and what a run of each does."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowSkipException

from frazil.aggregate.day_input import WaitingDay
from frazil.airflow.aggregations.reconcile import REQUESTED, find_days_to_request, reconcile
from frazil.airflow.lineage_parent import CLUSTER_PREFIXES
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window, windows_between
from frazil.signals.signal_table import Append, Signal, SignalState, TableSignals, append_signals
from frazil.table.catalogs import load_catalog
from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess

CHECKOUT = Path(__file__).resolve().parents[2]
FILE = str(CHECKOUT / "dags" / "aggregations.py")
Parse = Callable[..., dict[str, Any]]
SALES = """
source: shop.sales
event-time: at
target: shop.sales_per_day
sql: SELECT count(*) AS sales FROM source_day
"""
HOURS = [f"2013-12-30T{hour:02}" for hour in range(24)]
STREAM = """
name: {name}
source: {{topics: [t], bootstrap-servers: "127.0.0.1:1"}}
table: shop.{name}
schema: {{at: timestamptz not null}}
event-time: at
partition-by: [day(at)]
complete: {complete}
"""
SPARK_SUBMIT = """#!/bin/sh
echo "$@" >> "$SUBMITTED"
echo "$OPENLINEAGE_PARENT_ID" >> "$SUBMITTED.parents"
"""


def test_an_aggregation_has_a_dag_for_its_days_and_dags_for_reopened_and_late_days(parsed: dict[str, Any]) -> None:
    daily, reopened = parsed["dags"]["frazil_daily_flights_per_day"], parsed["dags"]["frazil_reopened_flights_per_day"]
    assert daily["tasks"] == {"inputs": "FrazilTask", "aggregate": "SubmitOperator"}
    assert reopened["tasks"] == {"again": "FrazilTask"}
    reconcile = parsed["dags"]["frazil_reconcile_flights_per_day"]
    assert reconcile["tasks"] == {"ask_for_late_days": "FrazilTask"}
    assert reconcile["outlets"] == {"ask_for_late_days": ["frazil.again.flights_per_day"]}
    assert daily["timetable"] == reopened["timetable"] == "PartitionedAssetTimetable"
    assert daily["max_active_runs"] == 1
    about = ["table:demo.flights", "table:demo.flights_per_day"]
    assert daily["tags"] == reopened["tags"] == ["daily", "frazil", *about]
    assert daily["outlets"] == {"aggregate": ["demo.flights_per_day"]}
    assert reopened["outlets"] == {"again": ["frazil.again.flights_per_day"]}
    assert "demo.flights" in daily["doc"]


def test_a_stream_with_a_broken_declaration_keeps_its_dag_and_breaks_no_other_dag(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path)
    folder = tmp_path / "aggregations"
    (folder / "typo.yaml").write_text(SALES.replace("target", "tagret"))
    (folder / "unfed.yaml").write_text(SALES.replace("shop.sales\n", "shop.returns\n"))
    (folder / "Odd Name.yaml").write_text(SALES)
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(SALES.replace("shop.sales_per_day", "shop.both"))
    monkeypatch.setenv("FRAZIL_AGGREGATIONS", str(folder))
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path / "streams")
    assert [Path(file).name for file in found["errors"]] == ["declarations.py"], "which has no DAG"
    assert "broken" not in found["dags"]["frazil_daily_sales"]["tags"]
    problems = {
        "typo": "tagret",
        "unfed": "writes to the table 'shop.returns'",
        "Odd-Name": "the file's name is the aggregation's",
        "one": "another aggregation has the same target 'shop.both'; change one of them",
        "two": "another aggregation has the same target 'shop.both'; change one of them",
    }
    for name, problem in problems.items():
        broken = found["dags"][f"frazil_daily_{name}"]
        assert ("broken" in broken["tags"], broken["timetable"]) == (True, "NullTimetable")
        assert problem in broken["doc"]
        assert f"frazil_reopened_{name}" not in found["dags"]


def test_a_typo_changes_no_dag_and_is_an_import_error_until_it_is_fixed(parse: Parse, tmp_path: Path) -> None:
    declare(tmp_path)
    files = [tmp_path / "streams" / "sales.yaml", tmp_path / "aggregations" / "sales.yaml"]
    valid = [file.read_text() for file in files]
    before = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path / "streams")
    daily = {dag for dag in before["dags"] if "_daily_" in dag}
    assert daily == {"frazil_daily_sales", "frazil_daily_visits"}, "of the folder beside, alone"
    files[0].write_text(valid[0] + "maintenance: {compactoin: off}\n")
    files[1].write_text(valid[1].replace("target", "tagret"))
    broken = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path / "streams")
    assert before["errors"] == {}
    ((file, said),) = broken["errors"].items()
    assert file.endswith("dags/declarations.py")
    assert "compactoin" in said
    assert "tagret" in said
    assert {dag_id: _shape(dag) for dag_id, dag in broken["dags"].items()} == {
        dag_id: _shape(dag) for dag_id, dag in before["dags"].items()
    }
    assert "tagret" in broken["dags"]["frazil_daily_sales"]["doc"]


def _shape(dag: dict[str, Any]) -> dict[str, Any]:
    """The structure on which Airflow's roll-ups and runs depend."""
    return {key: dag[key] for key in ("tasks", "timetable", "schedule", "params", "outlets", "max_active_runs")}


def test_a_day_is_scheduled_by_24_hour_signals_or_by_one_repeat_request(tmp_path: Path) -> None:
    declare(tmp_path)
    requested = [
        ("frazil_daily_sales", "shop.sales", "2013-12-30T15"),
        ("frazil_daily_sales", "frazil.again.sales", "2013-12-30"),
        ("frazil_reopened_sales", "shop.sales.reopened", "2013-12-30T15"),
        ("frazil_daily_visits", "shop.visits", "2013-12-30"),
        ("frazil_reopened_visits", "shop.visits.reopened", "2013-12-30"),
    ]
    process = airflow(tmp_path)
    reported = process.call(in_airflow.schedules, FILE, requested)
    process.end()
    assert {key: value for key, value in reported.items() if " " in key} == {
        f"{dag_id} {asset}": ["2013-12-30", HOURS if (dag_id, asset) == requested[0][:2] else None]
        for dag_id, asset, _ in requested
    }
    assert '"any"' in reported["frazil_daily_sales"], "either is enough"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, airflow_database: Path) -> dict[str, Any]:
    """Runs for days of a real table: the 29th, of which a gate holds an hour; the 30th; the 31st, which is open.

    Spark is not run here: what it would have received is written down.
    """
    folder = tmp_path_factory.mktemp("aggregations")
    declare(folder)
    (folder / "spark-submit").write_text(SPARK_SUBMIT)
    (folder / "spark-submit").chmod(0o755)
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"properties-file": "/spark.conf"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAZIL_HOME", str(folder / "home"))
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("SUBMITTED", str(folder / "submitted"))
        patch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
        patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
        snapshot_id = sell()
        days = [f"2013-12-{day}" for day in (29, 30, 31)]
        requested = [("frazil_daily_sales", day) for day in (*days[:2], f"{days[2]}@events", f"{days[2]}@cleared")]
        requested += [("frazil_reconcile_sales", number) for number in ("1", "2", "3")]
        requested += [("frazil_reopened_sales", day) for day in days]
        process = airflow(folder, database=airflow_database)
        reported = {" ".join(one): process.call(in_airflow.run_for_day, FILE, *one) for one in requested}
        process.end()
    submitted = {name: (folder / name).read_text() for name in ("submitted", "submitted.parents")}
    return {**reported, "snapshot": snapshot_id, "in": folder, **submitted}


def declare(folder: Path) -> None:
    """Two aggregations: of a table whose hours complete, and of one whose days do."""
    (folder / "streams").mkdir()
    (folder / "aggregations").mkdir()
    for name, complete in (("sales", "hour"), ("visits", "day")):
        (folder / "streams" / f"{name}.yaml").write_text(STREAM.format(name=name, complete=complete))
        (folder / "aggregations" / f"{name}.yaml").write_text(SALES.replace("shop.sales", f"shop.{name}"))


def sell() -> int:
    """The table and its signals: 24 hours of the 29th and 30th, 23 of the 31st; its snapshot's id."""
    catalog, rows = load_catalog(None), pa.table({"at": [1]})
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.sales", rows.schema)
    table.append(rows)
    (snapshot,) = table.snapshots()
    begin_us = Window.parse("2013-12-29").start_us
    windows = list(windows_between(Grain.HOUR, begin_us, begin_us + 71 * Grain.HOUR.us))
    signals = [
        Signal(
            table="shop.sales",
            partition=w.key,
            start_us=w.start_us,
            end_us=w.end_us,
            revision=1,
            rows=1,
            dead_letters=0,
            late_rows=0,
            watermark_us=w.end_us,
            snapshot_id=snapshot.snapshot_id,
            sequence_number=1,
            signalled_at_ms=0,
            state=SignalState.HELD if w.key == "2013-12-29T05" else SignalState.COMPLETE,
        )
        for w in windows
    ]
    seen, cursor = TableSignals.load(catalog, "shop.sales"), Cursor(Grain.HOUR, begin_us, windows[-1].end_us, 1)
    assert append_signals(catalog, Append(seen, signals, cursor), clock_ms=0)
    return snapshot.snapshot_id


@pytest.mark.rotates(2, turn=0)
def test_an_aggregation_run_passes_its_day_and_chosen_snapshot_to_spark(ran: dict[str, Any]) -> None:
    parent_id = ran["submitted.parents"].splitlines()[0]
    assert re.fullmatch(r"default/frazil_daily_sales\.aggregate/[0-9a-f-]{36}", parent_id)
    parent = " ".join(f"--conf {prefix}.OPENLINEAGE_PARENT_ID={parent_id}" for prefix in CLUSTER_PREFIXES)
    assert ran["submitted"].splitlines(keepends=True)[0] == (
        f"--master local[2] {parent} --properties-file /spark.conf --name frazil_daily_sales "
        f"{CHECKOUT}/include/frazil/spark_apps/aggregate_daily.py sales --aggregations "
        f"{ran['in']}/aggregations --day 2013-12-30 "
        f"--snapshot-id {ran['snapshot']} --revisions 1\n"
    )
    assert ran["frazil_daily_sales 2013-12-30"] == {
        "tasks": {"inputs": "success", "aggregate": "success"},
        "events": [["shop.sales_per_day", "2013-12-30"]],
    }


@pytest.mark.rotates(2)
def test_a_day_that_a_gate_holds_is_skipped(ran: dict[str, Any]) -> None:
    assert ran["frazil_daily_sales 2013-12-29"] == {
        "tasks": {"inputs": "skipped", "aggregate": "skipped"},
        "events": [],
    }
    assert ran["frazil_reopened_sales 2013-12-29"] == {"tasks": {"again": "skipped"}, "events": []}


def test_foreign_events_start_no_aggregation_for_an_incomplete_day(ran: dict[str, Any]) -> None:
    assert ran["frazil_daily_sales 2013-12-31@events"] == {
        "tasks": {"inputs": "skipped", "aggregate": "skipped"},
        "events": [],
    }


def test_a_run_that_a_user_clears_does_the_same_as_one_that_a_user_starts(ran: dict[str, Any]) -> None:
    assert ran["frazil_daily_sales 2013-12-31@cleared"]["tasks"] == {"inputs": "success", "aggregate": "success"}
    assert "--day 2013-12-31" in ran["submitted"]


def test_only_a_day_that_was_complete_is_requested_again(ran: dict[str, Any]) -> None:
    assert ran["frazil_reopened_sales 2013-12-30"] == {
        "tasks": {"again": "success"},
        "events": [["frazil.again.sales", "2013-12-30"]],
    }
    assert ran["frazil_reopened_sales 2013-12-31"] == {"tasks": {"again": "skipped"}, "events": []}


def test_a_day_that_is_complete_and_was_not_aggregated_is_requested_once(ran: dict[str, Any]) -> None:
    # The run for 2013-12-30 only pretended: Spark never ran. A gate holds the 29th, and the 31st is open.
    runs = [ran[f"frazil_reconcile_sales {number}"] for number in (1, 2, 3)]
    assert [event for run in runs for event in run["events"]] == [["frazil.again.sales", "2013-12-30"]]
    assert runs[2]["tasks"] == {"ask_for_late_days": "skipped"}


def waiting(day: int, since_ms: int = 1_000) -> WaitingDay:
    return WaitingDay(date(2013, 12, day), "1", since_ms)


@pytest.mark.parametrize(
    ("runs", "asks"),
    [
        ([], True),
        ([("queued", 0)], False),
        ([("running", 0)], False),
        ([("success", 5_000)], True),
        ([("failed", 5_000)], False),
        ([("failed", 500)], True),
        ([(REQUESTED, 5_000)], False),
        ([(REQUESTED, 1_500)], True),
        ([("success", 500), (REQUESTED, 500), ("failed", 500)], True),
    ],
)
def test_a_late_day_is_requested_unless_a_run_for_it_exists(runs: list[tuple[str, int]], asks: bool) -> None:
    requested = find_days_to_request([waiting(30), waiting(31)], {"2013-12-30": runs}, requested_after_ms=2_000)
    assert requested == ([waiting(30)] if asks else []) + [waiting(31)]


class Listing:
    """Airflow's events of an asset while a run that they started is queued; and its outlet."""

    extra: Any = None

    def __init__(self) -> None:
        self.days: list[str] = []

    def after(self, since: str) -> list[Any]:
        raise RuntimeError(f"500 Internal Server Error for the events since {since}")

    def add_partitions(self, days: list[str]) -> None:
        self.days += days


class Store(dict[str, Any]):
    """Airflow's store of an asset, as far as tasks use it."""

    set = dict.__setitem__


def test_a_consumer_that_keeps_a_run_queued_ends_no_reconciliation(frazil_home: Path, tmp_path: Path) -> None:  # noqa: ARG001
    declare(tmp_path)
    sell()
    listing, store, going_on = Listing(), Store({"frazil.first-day": "2013-12-29"}), 1

    class Ti:
        def get_dr_count(self, dag_id: str, *, states: list[str]) -> int:
            assert (dag_id, set(states)) == ("frazil_daily_sales", {"queued", "running"})
            return going_on

    context: Any = {
        "asset_state_store": defaultdict(lambda: store),
        "inlet_events": defaultdict(lambda: listing),
        "outlet_events": defaultdict(lambda: listing),
        "ti": Ti(),
    }

    def check() -> list[str]:
        listing.days = []
        reconcile("sales", tmp_path / "aggregations", "frazil_daily_sales", context)
        return listing.days

    with pytest.raises(AirflowSkipException, match="unfinished runs"):
        check()
    going_on = 0
    assert check() == ["2013-12-30"]
    with pytest.raises(AirflowSkipException, match="were already requested"):
        check()
    store["frazil.requested-days"] = {"2013-12-30": 1, "2013-12-29": "?", "x": 5}
    assert check() == ["2013-12-30"], "that was long ago"
    assert set(store["frazil.requested-days"]) == {"2013-12-30"}


def airflow(folder: Path, *, database: Path | None = None) -> AirflowProcess:
    """An Airflow on the declarations in a folder."""
    declared = {"FRAZIL_STREAMS": str(folder / "streams"), "FRAZIL_AGGREGATIONS": str(folder / "aggregations")}
    return AirflowProcess(folder / "airflow", database=database, **declared)
