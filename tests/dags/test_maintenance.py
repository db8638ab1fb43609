"""The maintenance DAG file: the DAG it contains, and what its tasks do with real tables."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frazil.airflow import declared_streams
from frazil.airflow.health import dag as health
from frazil.airflow.health import subjects as watched
from frazil.airflow.health import tasks as table_health
from frazil.airflow.maintenance import tasks as table_care
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window, windows_between
from frazil.signals.signal_table import Append, Signal, SignalState, TableSignals, append_signals
from frazil.spec.last_valid import MAX_FILE_ABSENCE_MS, MAX_FOLDER_ABSENCE_MS
from frazil.spec.load import load_stream
from frazil.spec.maintenance import Alerts
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream

CHECKOUT = Path(__file__).resolve().parents[2]
Parse = Callable[..., dict[str, Any]]
STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{at: timestamptz}}
event-time: at
maintenance: {maintenance}
"""
EAGER = "{alerts: {hold: 1ms, snapshots: 3}, expiry: {keep: 1ms, at-least: 1}, orphans: {older-than: 1h}}"


class Store(dict[str, Any]):
    """Airflow's store of an asset, as far as tasks use it."""

    set = dict.__setitem__


@pytest.fixture
def made(frazil_home: Path, tmp_path: Path) -> MadeStream:  # noqa: ARG001
    declare(tmp_path, EAGER)
    stream = MadeStream(load_stream(tmp_path / "made.yaml"), time.time_ns() // 1_000_000, partitions=1)
    for batch in range(5):
        stream.land({0: (batch * 10, batch * 10 + 10)})
    return stream


def declare(folder: Path, maintenance: str, *, name: str = "made") -> None:
    (folder / f"{name}.yaml").write_text(STREAM.format(name=name, maintenance=maintenance))


def test_one_dag_maintains_all_tables_and_one_watches_them(parsed: dict[str, Any]) -> None:
    maintenance = parsed["dags"]["frazil_maintenance"]
    assert set(maintenance["tasks"]) == {"check_due", "table.rewrite", "table.orphans"}
    assert maintenance["catchup"] is False
    every = ["compaction", "manifests", "expiry", "orphans"]
    assert maintenance["params"] == {"tables": [], "actions": every, "dry-run": False}
    assert not any(dag_id.startswith("frazil_maintenance_") for dag_id in parsed["dags"])
    watched = parsed["dags"]["frazil_health"]
    assert set(watched["tasks"]) == {"measure", "changed", "alerts", "resolved"}
    assert watched["outlets"] == {"changed": ["frazil.health"]}


def test_maintenance_has_the_lowest_priority_in_the_spark_pool(parsed: dict[str, Any]) -> None:
    tasks = [
        ("frazil_daily_flights_per_day", "aggregate"),
        ("frazil_backfill", "stage"),
        ("frazil_maintenance", "table.rewrite"),
    ]
    weights = [parsed["dags"][dag]["weights"][task] for dag, task in tasks]
    assert weights == [[weight, "absolute"] for weight in (30, 20, 1)]


@pytest.mark.usefixtures("made")
def test_alerts_fire_once_remain_active_and_resolve(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    assert table_health.measure_all(tmp_path, store)["active"] == []  # the hold begins
    fired = table_health.measure_all(tmp_path, store)
    assert [alert["rule"] for alert in fired["fired"]] == ["snapshots"]
    stands = table_health.measure_all(tmp_path, store)
    assert (stands["fired"], [alert["rule"] for alert in stands["active"]]) == ([], ["snapshots"])
    with pytest.raises(AirflowFailException, match=r"active alerts \(1\): snapshots"), caplog.at_level(logging.ERROR):
        health.alerts(stands)
    assert "frazil maintain demo.made --actions expiry" in caplog.messages[-1]
    declare(tmp_path, "{alerts: {hold: 1ms, snapshots: 300}}")
    with caplog.at_level(logging.INFO):
        over = table_health.measure_all(tmp_path, store)
    assert [alert["rule"] for alert in over["resolved"]] == ["snapshots"]
    assert "resolved" in caplog.text
    with pytest.raises(AirflowSkipException):
        health.alerts(over)


@pytest.mark.usefixtures("made")
def test_a_table_that_cannot_be_measured_is_an_alert_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, measure = Store(), table_health.measure
    table_health.measure_all(tmp_path, store)
    assert [alert["rule"] for alert in table_health.measure_all(tmp_path, store)["fired"]] == ["snapshots"]

    def broken(catalog: Any, table: Any, **options: Any) -> Any:
        if table.identifier == "demo.made":
            raise OSError("the storage is on fire")
        return measure(catalog, table, **options)

    monkeypatch.setattr(table_health, "measure", broken)
    begins, fires, stands = (table_health.measure_all(tmp_path, store) for _ in range(3))
    assert begins["fired"] == []
    assert [(alert["table"], alert["rule"]) for alert in fires["fired"]] == [("demo.made", "unmeasured")]
    assert "the storage is on fire" in fires["fired"][0]["sentence"]
    assert (stands["fired"], {alert["rule"] for alert in stands["active"]}) == ([], {"snapshots", "unmeasured"})
    monkeypatch.setattr(table_health, "measure", measure)
    well = table_health.measure_all(tmp_path, store)
    assert [(alert["rule"], alert["value"]) for alert in well["resolved"]] == [("unmeasured", "measured again")]
    assert [alert["rule"] for alert in well["active"]] == ["snapshots"]
    declare(tmp_path, "{alerts: false}")
    off = table_health.measure_all(tmp_path, store)
    assert [(alert["rule"], alert["value"]) for alert in off["resolved"]] == [("snapshots", "no longer watched")]


@pytest.mark.usefixtures("made")
def test_alerts_of_a_removed_stream_resolve_and_those_of_a_broken_file_stay_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    for _ in range(2):
        table_health.measure_all(tmp_path, store)
    (tmp_path / "made.yaml").write_text("name: made\ntable: 7\n")
    broken = [table_health.measure_all(tmp_path, store) for _ in range(2)][-1]
    assert {alert["rule"]: alert["table"] for alert in broken["active"]} == {
        "snapshots": "demo.made",
        "declaration": "stream made",
    }
    (tmp_path / "made.yaml").unlink()
    gone = table_health.measure_all(tmp_path, store)
    assert {alert["rule"] for alert in gone["active"]} == {"snapshots", "declaration"}, "for a moment, perhaps"
    monkeypatch.setattr(
        declared_streams, "clock", SimpleNamespace(now_ms=lambda: time.time_ns() // 1_000_000 + MAX_FOLDER_ABSENCE_MS)
    )
    removed = table_health.measure_all(tmp_path, store)
    assert {alert["rule"] for alert in removed["resolved"]} == {"snapshots", "declaration"}
    assert "no stream declares it" in removed["resolved"][0]["sentence"]
    assert store["tables"] == []


@pytest.mark.usefixtures("made")
def test_days_from_before_an_aggregation_was_first_checked_are_no_alert(tmp_path: Path) -> None:
    aggregations = tmp_path / "aggregations"
    aggregations.mkdir()
    (aggregations / "daily.yaml").write_text(
        "source: demo.made\nevent-time: at\ntarget: demo.daily\nsql: SELECT count(*) AS n FROM source_day\n"
    )
    store, again = Store(), Store()

    def alerts() -> list[str]:
        found = table_health.measure_all(tmp_path, store, aggregations=aggregations, again={"daily": again})
        return [alert["sentence"] for alert in found["active"] if alert["table"] == "aggregation daily"]

    assert (alerts(), again) == ([], {}), "nothing is signalled yet"
    signal_days("demo.made", "2013-12-28", 2)
    assert (alerts(), again) == ([], {"frazil.first-day": "2013-12-30"})
    signal_days("demo.made", "2013-12-30", 1)
    (late,) = alerts()
    assert "demo.daily is missing 2013-12-30 (complete since" in late


def signal_days(table: str, first: str, count: int) -> None:
    """Days that were complete in 1970."""
    catalog, begin_us = load_catalog(None), Window.parse(first).start_us
    seen, end_us = TableSignals.load(catalog, table), begin_us + count * Grain.DAY.us
    signals = [
        Signal(
            table=table, partition=w.key, start_us=w.start_us, end_us=w.end_us, revision=1, rows=1, dead_letters=0,
            late_rows=0, watermark_us=w.end_us, snapshot_id=1, sequence_number=1, signalled_at_ms=0,
            state=SignalState.COMPLETE,
        )
        for w in windows_between(Grain.DAY, begin_us, end_us)
    ]  # fmt: skip
    cursor = seen.cursor or Cursor(Grain.DAY, begin_us, end_us, 1)
    assert append_signals(catalog, Append(seen, signals, dataclasses.replace(cursor, through_us=end_us)), clock_ms=0)


def test_failed_runs_are_counted_up_to_the_number_that_an_alert_needs() -> None:
    subject = watched.WatchedSubject(Alerts(failed_runs=7), list, ("frazil_audits",))

    def beyond(failed: int) -> bool:
        seen = watched.read_subjects({"s": subject}, lambda _, limit: min(failed, limit), timeout_s=60)["s"]
        assert not isinstance(seen, str)
        return seen[0].is_beyond

    assert (beyond(7), beyond(8), beyond(100)) == (False, True, True)


def test_a_paused_shared_dag_is_an_alert_although_none_of_its_runs_failed() -> None:
    subjects = {
        dag_id: watched.WatchedSubject(Alerts(), list, (dag_id,)) for dag_id in (*watched.SHARED_DAGS, "frazil_other")
    }
    seen = watched.read_subjects(subjects, lambda *_: 0, lambda _: True, timeout_s=60)
    pairs = {name: both for name, both in seen.items() if not isinstance(both, str)}
    assert pairs.keys() == subjects.keys()
    readings = {name: one for name, (one, _) in pairs.items()}
    assert not any(unread.is_beyond for _, unread in pairs.values())
    assert {name for name, one in readings.items() if one.is_beyond} == set(watched.SHARED_DAGS)
    assert readings["frazil_audits"].sentence == (
        "the DAG frazil_audits is paused in Airflow, so its work is not done: unpause it"
    )


def test_removing_one_of_several_streams_is_not_an_alert_while_it_may_be_temporary(
    frazil_home: Path,  # noqa: ARG001 - it sets the environment
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(tmp_path, "{alerts: {hold: 1ms}}")
    declare(tmp_path, "{alerts: {hold: 1ms}}", name="other")
    store = Store()
    table_health.measure_all(tmp_path, store)
    (tmp_path / "made.yaml").unlink()
    for lookback_ms in (0, 1_000, MAX_FILE_ABSENCE_MS, MAX_FOLDER_ABSENCE_MS):
        now_ms = time.time_ns() // 1_000_000 + lookback_ms
        monkeypatch.setattr(declared_streams, "clock", SimpleNamespace(now_ms=lambda at=now_ms: at))
        active = table_health.measure_all(tmp_path, store)["active"]
        assert "declaration" not in {alert["rule"] for alert in active}
        declared_streams.check_declarations(tmp_path, aggregations=tmp_path / "aggregations")


@pytest.mark.parametrize("left", ["name: made\ntable: 7\n", None])
def test_a_worker_without_any_valid_declaration_fails_instead_of_maintaining_nothing(
    frazil_home: Path,  # noqa: ARG001 - it sets the environment
    tmp_path: Path,
    left: str | None,
) -> None:
    if left:
        (tmp_path / "made.yaml").write_text(left)
    with pytest.raises(AirflowFailException, match=r"demo\.made: not maintained, because this worker has never read"):
        table_care.due_messages(["demo.made"], tmp_path, actions=["compaction"], dry_run=False)
    with pytest.raises(AirflowFailException, match=str(tmp_path)):
        table_care.clean_tables(["demo.made"], tmp_path, Store(), dry_run=False)


@pytest.mark.usefixtures("made")
def test_due_maintenance_is_logged_for_each_action(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = table_care.due_messages(
            ["demo.made", "demo.none"], tmp_path, actions=["compaction", "expiry"], dry_run=False
        )
    assert [sentence.split(":")[0] for sentence in found] == ["demo.made"] * len(found)
    assert any("expiry is due" in sentence for sentence in found)
    assert "manifests" not in caplog.text, "nobody asked for it"


def test_a_dry_run_reports_what_would_be_done_and_does_nothing(
    made: MadeStream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    due = pytest.raises(AirflowSkipException, match=r"^dry run; demo\.made: expiry is due: ")
    with caplog.at_level(logging.INFO), due:
        table_care.find_tables_with_due_rewrites("demo.made", tmp_path, actions=["expiry"], dry_run=True)
    assert "expiry would be: " in caplog.text
    assert len(made.tables.main.refresh().metadata.snapshots) == 6


@pytest.mark.usefixtures("made")
def test_orphans_are_searched_for_once_a_day(tmp_path: Path) -> None:
    store = Store()
    reports = table_care.clean_tables(["demo.made"], tmp_path, store, dry_run=False)
    assert reports["demo.made"]["refused"] is None
    with pytest.raises(AirflowSkipException, match="less than a day ago"):
        table_care.clean_tables(["demo.made"], tmp_path, store, dry_run=False)
    assert table_care.clean_tables(["demo.made"], tmp_path, store, dry_run=True)


@pytest.mark.usefixtures("made")
def test_a_cleanup_that_refuses_to_delete_needs_attention(tmp_path: Path) -> None:
    declare(tmp_path, "{orphans: {max-listed: 1}}")
    with pytest.raises(AirflowFailException, match="max-listed"):
        table_care.clean_tables(["demo.made"], tmp_path, Store(), dry_run=False)
