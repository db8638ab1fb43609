"""The partition DAGs: their structure, and the events that Airflow gets for complete, reopened and held windows."""

from __future__ import annotations

import asyncio
import json
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import TaskSkippedEvent

from frazil.airflow.aggregations.dag import daily_dags
from frazil.airflow.declared_streams import has_no_stream
from frazil.airflow.health.tasks import measure_all
from frazil.airflow.partitions import dag
from frazil.airflow.partitions.dag import partition_dags
from frazil.airflow.partitions.sensor import CompletionTrigger
from frazil.airflow.partitions.tasks import find_gate, signals_to_send
from frazil.errors import SpecError
from frazil.partitions.windows import Grain, Window
from frazil.signals.completion import GateOutcome, assess_group, assess_table, resend_signals, signal_windows
from frazil.signals.signal_table import Signal, SignalState
from frazil.spec.load import load_stream
from frazil.spec.routed_stream import is_template_view, view_from_table
from frazil.table.catalogs import load_catalog
from tests.dags.test_maintenance import Store
from tests.made_batches import EventTimes, MadeStream
from tests.made_routes import MadeRoute, shop

CHECKOUT = Path(__file__).resolve().parents[2]
STREAM = """
name: made
source: {topics: [made], bootstrap-servers: "127.0.0.1:1"}
table: demo.made
schema: {at: timestamptz}
event-time: at
complete: hour
complete-from: 2013-12-30T12:00:00Z
"""
NOW_MS = time.time_ns() // 1_000_000
"""Signals are held against Airflow's events, which bear this machine's time."""
NOON = 1_388_404_800_000_000
HOUR = Grain.HOUR.us
TEN_MINUTES = HOUR // 6


FOREIGN: list[Any] = [
    {"from_rest_api": True},
    {},
    {"note": None},
    {"2013-12-30T14": {"number": True}},
    {"2013-12-30T14": {"number": 2**70}},
    {"2013-12-30T14": "3", "number": 3},
    {"from_rest_api": True, "2013-12-30T14": {"number": 3}},
]
"""Extras of events from others; the last two resemble ours."""


class World:
    """A table whose records come by hand, ten minutes of event time apart; and an Airflow that runs a DAG at a time."""

    def __init__(self, folder: Path, dag_runner: Callable[[Path], Any]) -> None:
        (folder / "made.yaml").write_text(STREAM)
        self.made = MadeStream(load_stream(folder / "made.yaml"), NOW_MS, partitions=1)
        self.airflow = dag_runner(folder)
        self.sent = 0

    def land(self, first: int, last: int, *, windows: dict[int, int] | None = None) -> None:
        """Records of `[first, last)`, in tens of minutes after noon."""
        times = [NOON + n * TEN_MINUTES for n in range(first, last)]
        self.made.columns = lambda _: {"at": pa.array(times)}
        begin, self.sent = self.sent, self.sent + len(times)
        self.made.land({0: (begin, self.sent)}, times=EventTimes({0: max(times)}, windows))

    def run(self, dag_id: str = "frazil_partitions_demo.made", **conf: str) -> dict[str, Any]:
        return self.airflow.run(dag_id, conf=conf or None)

    def put(self, **what: Any) -> None:
        """Store other users' entries in Airflow: `events`, `store`, or a run that is `queued` for the events so far."""
        self.airflow.put("demo.made", **what)


@pytest.fixture
def world(frazil_home: Path, tmp_path: Path, dag_runner: Callable[[Path], Any]) -> World:  # noqa: ARG001
    (tmp_path / "streams").mkdir()
    return World(tmp_path / "streams", dag_runner)


def test_every_table_with_windows_has_a_dag_that_always_checks_once_at_a_time(parsed: dict[str, Any]) -> None:
    flights = parsed["dags"]["frazil_partitions_demo.flights"]
    assert set(flights["tasks"]) == {"watch", "complete", "reopened", "held"}
    assert flights["outlets"] == {"complete": ["demo.flights"], "reopened": ["demo.flights.reopened"]}
    assert (flights["timetable"], flights["max_active_runs"]) == ("ContinuousTimetable", 1)
    assert "frazil partitions demo.flights" in flights["doc"]
    assert parsed["dags"]["frazil_release"]["params"]["table"] == "demo.flights"


def test_airflow_gets_one_event_for_each_window_and_revision_however_often_runs_repeat(world: World) -> None:
    world.land(0, 13)
    first = world.run()
    assert first["tasks"] == {"watch": "success", "complete": "success", "reopened": "skipped", "held": "skipped"}
    assert {(name, key) for name, key, _ in first["events"]} == {
        ("demo.made", "2013-12-30T12"),
        ("demo.made", "2013-12-30T13"),
    }
    assert len(first["events"]) == 2
    facts = first["events"][0][2]["2013-12-30T12"]
    assert (facts["revision"], facts["rows"], facts["late_rows"], facts["dead_letters"]) == (1, 6, 0, 0)
    assert facts["watermark"] == "2013-12-30T14:00:00Z"
    assert facts["snapshot_id"] == world.made.tables.main.refresh().current_snapshot().snapshot_id
    world.land(13, 14, windows={NOON: 1})
    reopened = world.run()["events"][2:]
    assert [(name, key, extra[key]["revision"]) for name, key, extra in reopened] == [
        ("demo.made.reopened", "2013-12-30T12", 2)
    ]
    windows = [Window(NOON + n * HOUR, Grain.HOUR) for n in range(2)]
    resend_signals(load_catalog(None), "demo.made", windows, note="sent again", clock_ms=NOW_MS)
    resent = world.run()["events"][3:]
    assert {(name, key, extra[key]["revision"]) for name, key, extra in resent} == {
        ("demo.made", "2013-12-30T12", 2),
        ("demo.made", "2013-12-30T13", 1),
    }
    # A row that was written, and whose event never reached Airflow.
    world.land(14, 20)
    seen = assess_table(load_catalog(None), [world.made.spec])
    assert seen is not None
    assert len(signal_windows(load_catalog(None), seen, clock_ms=NOW_MS)) == 1
    assert [(name, key) for name, key, _ in world.run()["events"][5:]] == [("demo.made", "2013-12-30T14")]


@pytest.mark.rotates(2)
def test_foreign_events_and_values_in_the_store_stop_nothing_and_hide_nothing(world: World) -> None:
    world.land(0, 13)
    assert len(world.run()["events"]) == 2
    keys = ["2013-12-30T14", "no window", "9" * 250, None, "2013-12-30"]
    world.put(events=[(extra, key) for extra in FOREIGN for key in keys])
    world.land(13, 19)
    ran = world.run()
    assert ran["tasks"]["complete"] == "success"
    assert [(key, extra[key]["number"]) for _, key, extra in ran["events"][2 + len(FOREIGN) * len(keys) :]] == [
        ("2013-12-30T14", 3)
    ]
    sent = len(ran["events"])
    for n, value in enumerate(["text", -1, 2**62, True, [], {"a": 1}, 1.5]):
        world.put(store={"frazil.sent-to": value, "frazil.published-to": value, "frazil.sending": value})
        world.land(19 + 6 * n, 25 + 6 * n)
        ran = world.run()
        assert (ran["state"], len(ran["events"])) == ("success", sent + n + 1), value


@pytest.mark.rotates(2)
def test_a_consumer_whose_run_stays_queued_stops_nothing(world: World) -> None:
    world.land(0, 13)
    world.run()
    world.put(queued=True)
    for n in range(3):
        world.land(13 + 6 * n, 19 + 6 * n)
        ran = world.run()
        assert [key for _, key, _ in ran["events"]][2:] == [f"2013-12-30T{hour}" for hour in range(14, 15 + n)]


def test_a_check_of_a_table_whose_streams_were_removed_ends_without_a_worker(
    frazil_home: Path,
    tmp_path: Path,
    settled: None,  # noqa: ARG001
) -> None:
    folder = tmp_path / "streams"
    folder.mkdir()
    (folder / "made.yaml").write_text(STREAM)
    check = CompletionTrigger(table="demo.made", streams=str(folder), number=0, poll_seconds=0.0)
    assert has_no_stream(folder, "demo.made") is False
    assert not (check.attempt()[0] or {}).get("removed")
    (folder / "made.yaml").write_text("name: made\n# of demo.made\n")
    assert has_no_stream(folder, "demo.made") is False, "it is broken, not gone"
    (folder / "made.yaml").unlink()
    (folder / "other.yaml").write_text(STREAM.replace("made", "other"))
    assert has_no_stream(folder, "demo.made") is False, "for a moment, perhaps"
    for record in (frazil_home / "declared").glob("*/made.yaml.json"):
        record.unlink()
    assert has_no_stream(folder, "demo.made") is True

    async def events() -> list[Any]:
        return [event async for event in check.run()]

    (ended,) = asyncio.run(events())
    assert isinstance(ended, TaskSkippedEvent)


def one(number: int, **changes: Any) -> Signal:
    window = Window(NOON + changes.pop("hour", 0) * HOUR, Grain.HOUR)
    values = {"revision": 1, "state": SignalState.COMPLETE, **changes}
    return Signal(
        table="t", partition=window.key, start_us=window.start_us, end_us=window.end_us, rows=1, dead_letters=0,
        late_rows=0, watermark_us=0, snapshot_id=1, sequence_number=1, signalled_at_ms=0, number=number, **values,
    )  # fmt: skip


def reported(*numbers: int) -> set[tuple[str, int]]:
    """Signals as `test_only_what_airflow_lacks…` numbers them."""
    return {(one(number, hour=number - 1).partition, number) for number in numbers}


def to_send(signals: list[Signal], sent: set[tuple[str, int]], *, reopened: bool) -> list[int]:
    keyed = {(s.partition, s.number): s for s in signals}
    return [s.number for s in signals_to_send(keyed, sent, reopened=reopened).values()]


def test_only_signals_that_airflow_is_missing_are_sent_and_only_the_newest_of_each_window() -> None:
    signals = [one(1), one(2, hour=1), one(3, revision=2), one(4, revision=3), one(5, hour=2, state=SignalState.HELD)]
    assert to_send(signals, reported(1), reopened=False) == [2]
    assert to_send(signals, set(), reopened=True) == [4]
    assert to_send(signals, reported(1, 2), reopened=False) == []
    released = one(6, hour=2, state=SignalState.RELEASED)
    assert to_send([*signals, released], reported(1, 2), reopened=False) == [6]
    requested = one(7, revision=2, state=SignalState.AGAIN)
    assert to_send([requested], reported(1, 2), reopened=False) == [7]
    assert to_send([requested], reported(1, 2), reopened=True) == []


ROUTED = """
name: shop
source: {topics: [shop], bootstrap-servers: "127.0.0.1:1"}
table: shop.other
schema: {kind: string, at: timestamptz}
event-time: at
complete: hour
route: {by: field, name: kind, tables: {order: shop.orders, payment: shop.payments}, complete: [shop.orders]}
"""


def test_declared_windows_of_routed_tables_get_a_dag_and_other_aggregations_report_the_gap(
    tmp_path: Path,
) -> None:
    streams, aggregations = tmp_path / "streams", tmp_path / "aggregations"
    streams.mkdir()
    aggregations.mkdir()
    (streams / "shop.yaml").write_text(ROUTED)
    found = partition_dags(streams)
    assert list(found) == ["frazil_partitions_shop.other", "frazil_partitions_shop.orders", "frazil_release"]
    assert not has_no_stream(streams, "shop.orders")
    for source in ("orders", "payments"):
        text = f"source: shop.{source}\nevent-time: at\ntarget: shop.{source}_day\nsql: SELECT 1 AS n FROM source_day\n"
        (aggregations / f"{source}.yaml").write_text(text)
    dags = daily_dags(aggregations, streams=streams)
    assert "frazil_reconcile_orders" in dags
    assert "frazil_reconcile_payments" not in dags
    assert "add it to route.complete of stream 'shop'" in str(dags["frazil_daily_payments"].doc_md)


TEMPLATE = "shop.raw_{value}"


def test_the_tables_that_a_template_makes_share_a_dag_and_an_aggregation_names_its_own(tmp_path: Path) -> None:
    streams, aggregations = tmp_path / "streams", tmp_path / "aggregations"
    streams.mkdir()
    aggregations.mkdir()
    route = f"{{by: field, name: kind, template: '{TEMPLATE}', complete: ['{TEMPLATE}', shop.raw_web]}}"
    (streams / "shop.yaml").write_text(ROUTED.partition("route:")[0] + f"route: {route}\n")
    found = partition_dags(streams)
    assert list(found) == [
        "frazil_partitions_shop.other",
        "frazil_partitions_shop",
        "frazil_partitions_shop.raw_web",
        "frazil_release",
    ]
    outlets = {o.name for task in found["frazil_partitions_shop"].tasks for o in task.outlets}
    assert outlets == {TEMPLATE, f"{TEMPLATE}.reopened"}
    assert "2013-01-01T05|namespace.table" in str(found["frazil_partitions_shop"].doc_md)
    assert not has_no_stream(streams, TEMPLATE)
    for source in ("web", "app"):
        text = f"source: shop.raw_{source}\nevent-time: at\ntarget: shop.{source}\nsql: SELECT 1 AS n FROM source_day\n"
        (aggregations / f"{source}.yaml").write_text(text)
    dags = daily_dags(aggregations, streams=streams)
    assert "frazil_reconcile_web" in dags
    assert "to route.complete of stream" in str(dags["frazil_daily_app"].doc_md)


@pytest.mark.rotates(2)
def test_airflow_gets_one_event_for_each_window_of_each_templated_table(
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
    dag_runner: Callable[[Path], Any],
) -> None:
    (tmp_path / "streams").mkdir()
    route = {"by": "field", "name": "kind", "template": TEMPLATE, "complete": [TEMPLATE]}
    spec = shop(**{"route": route, "complete": "hour", "complete-from": "2013-12-30T12:00:00Z"})
    text = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "streams" / "shop.yaml").write_text(json.dumps(text))
    made = MadeRoute(spec, NOW_MS)
    airflow = dag_runner(tmp_path / "streams")
    made.begin_route("web", "app")
    made.run({"shop.raw_web": 2, "shop.raw_app": 1}, at_us=NOON)

    def keys(ran: dict[str, Any]) -> list[tuple[str, str]]:
        assert ran["state"] == "success"
        return sorted((name, key) for name, key, _ in ran["events"])

    made.run({"main": 1}, at_us=NOON + HOUR)
    first = airflow.run("frazil_partitions_shop")
    assert keys(first) == [(TEMPLATE, f"2013-12-30T12|shop.raw_{value}") for value in ("app", "web")]
    assert {extra[key]["rows"] for _, key, extra in first["events"]} == {1, 2}
    made.begin_route("new")
    made.run({"shop.raw_new": 4, "shop.raw_web": 1}, at_us=NOON + HOUR)
    made.run({"main": 1}, at_us=NOON + 2 * HOUR)
    second = airflow.run("frazil_partitions_shop")
    assert len(second["events"]) == 2 + 4, "an hour of three tables, and another of the new one"
    made.run({"shop.raw_app": 1}, at_us=NOON)
    third = airflow.run("frazil_partitions_shop")
    assert [(name, key) for name, key, _ in third["events"][6:]] == [
        (f"{TEMPLATE}.reopened", "2013-12-30T12|shop.raw_app")
    ]


def test_a_held_window_of_a_templates_table_is_an_alert_of_the_route(frazil_home: Path, tmp_path: Path) -> None:  # noqa: ARG001
    streams = tmp_path / "streams"
    streams.mkdir()
    route = {"by": "field", "name": "kind", "template": TEMPLATE, "complete": [TEMPLATE]}
    spec = shop(**{"route": route, "complete": "hour", "complete-from": "2013-12-30T12:00:00Z"})
    text = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    (streams / "shop.yaml").write_text(json.dumps(text))
    made = MadeRoute(spec, NOW_MS)
    made.begin_route("web")
    made.run({"shop.raw_web": 2}, at_us=NOON)
    made.run({"main": 1}, at_us=NOON + HOUR)
    view = view_from_table(spec, TEMPLATE)
    assert is_template_view(view)
    seen = assess_group(load_catalog(None), view)
    failed = GateOutcome(passed=False, note="a rule is broken")
    signal_windows(load_catalog(None), *seen, clock_ms=NOW_MS, gates=lambda _, windows: dict.fromkeys(windows, failed))
    active = measure_all(streams, Store())["active"]
    (held,) = [one for one in active if "a rule is broken" in one["sentence"]]
    assert (held["table"], "2013-12-30T12|shop.raw_web" in held["sentence"]) == ("route of shop", True)


def test_the_page_of_a_tables_dag_shows_whether_its_windows_are_gated(tmp_path: Path) -> None:
    streams, suites = tmp_path / "streams", tmp_path / "suites"
    streams.mkdir()
    (streams / "shop.yaml").write_text(ROUTED)

    def description(expectations: Path | None) -> str:
        return str(partition_dags(streams, expectations=expectations)["frazil_partitions_shop.orders"].doc_md)

    assert "have no quality gate: `partition_dags` is called without" in description(None)
    assert f"have no quality gate: `{suites}` has no suite `shop.orders.json`." in description(suites)
    suites.mkdir()
    (suites / "shop.orders.json").write_text("{}")
    assert f"gate of its windows is `{suites / 'shop.orders.json'}`." in description(suites)


@pytest.mark.parametrize(("named", "folder"), [("/suites", "/suites"), ("", str(CHECKOUT / "include/expectations"))])
def test_gate_suites_are_read_from_the_folder_in_the_environment(
    named: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setenv("FRAZIL_EXPECTATIONS", named)
    monkeypatch.setattr("frazil.airflow.partition_dags", lambda _, **named: given.update(named) or {}, raising=False)
    runpy.run_path(str(CHECKOUT / "dags" / "partitions.py"))
    assert str(given["expectations"]) == folder


def test_a_deleted_suite_blocks_the_signals_of_its_table(tmp_path: Path) -> None:
    store, suite = Store(), tmp_path / "shop.orders.json"
    assert find_gate(tmp_path, "shop.orders", store) is None
    expectation = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
    suite.write_text(json.dumps({"name": "orders", "expectations": [expectation]}))
    assert find_gate(tmp_path, "shop.orders", store) is not None
    suite.rename(tmp_path / "shop.order.json")
    with pytest.raises(SpecError, match=r"shop\.orders\.json, is missing, so no window is signalled"):
        find_gate(tmp_path, "shop.orders", store)
    suite.write_text(json.dumps({"name": "orders", "expectations": []}))
    assert find_gate(tmp_path, "shop.orders", store) is not None
    suite.unlink()
    assert find_gate(tmp_path, "shop.orders", store) is None, "the gate was ended on purpose"


def test_a_suite_with_the_name_of_no_table_is_an_alert(frazil_home: Path, tmp_path: Path) -> None:  # noqa: ARG001
    streams, suites = tmp_path / "streams", tmp_path / "suites"
    streams.mkdir()
    suites.mkdir()
    (streams / "made.yaml").write_text(STREAM)
    (suites / "demo.maid.json").write_text("{}")

    def active() -> list[str]:
        return [one["sentence"] for one in measure_all(streams, Store(), expectations=suites)["active"]]

    (sentence,) = active()
    assert sentence.startswith(f"suites in {suites} that gate no window: demo.maid.json. No stream")
    (suites / "demo.maid.json").rename(suites / "demo.made.json")
    assert active() == []


def test_a_window_is_not_released_with_a_reason_that_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    form = {"table": "demo.flights", "partition": "2013-12-30T15", "reason": "\x1b[2J"}
    run = SimpleNamespace(triggering_user_name="ana")
    monkeypatch.setattr(dag, "get_current_context", lambda: {"params": form, "dag_run": run})
    with pytest.raises(AirflowFailException, match="reason: has the character"):
        dag.release("streams")
