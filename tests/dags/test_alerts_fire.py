"""Alerts that no single stream causes: real failed runs, and a real catalog that refuses or hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from frazil import clock
from frazil.airflow.health import tasks
from frazil.airflow.health.tasks import measure_all
from frazil.errors import KafkaUnavailable
from frazil.maintenance import measure
from frazil.operations.overview import NOT_MEASURED
from frazil.spec.load import load_stream
from frazil.table import catalogs, rest_catalog
from frazil.table.catalog_errors import CATALOG_REMEDY
from tests.dags.test_maintenance import Store
from tests.made_batches import MadeStream
from tests.made_catalog import MadeCatalog, Mood, made_catalog

STREAM = """
name: rides
source: {topics: [rides], bootstrap-servers: "127.0.0.1:1"}
table: {identifier: city.rides, catalog: far}
schema: {at: timestamptz}
event-time: at
maintenance: {orphans: off}
"""
HALF = timedelta(minutes=8)
"""Half of the hold time, and a little more."""


@pytest.fixture
def far(frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeCatalog]:  # noqa: ARG001
    with made_catalog() as catalog:
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", catalog.url)
        yield catalog


@pytest.fixture
def streams(far: MadeCatalog, tmp_path: Path) -> Path:
    """A stream whose table is both in the catalog `far` and in the embedded one."""
    folder = tmp_path / "streams"
    folder.mkdir()
    file = folder / "rides.yaml"
    file.write_text(STREAM.replace(", catalog: far", ""))
    made = MadeStream(load_stream(file), clock.now_ms(), partitions=1)
    made.land({0: (0, 10)})
    for table in (made.tables.main, made.tables.dead_letters):
        far.show(".".join(table.current().name()), table.current())
    file.write_text(STREAM)
    return folder


def rules(alerts: list[dict[str, Any]]) -> set[str]:
    return {alert["rule"] for alert in alerts}


@pytest.mark.rotates(2)
def test_maintenance_that_fails_twice_is_an_alert_until_a_run_succeeds(
    far: MadeCatalog, streams: Path, dag_runner: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local"}')
    monkeypatch.setenv("FRAZIL_DEFAULT_ARGS", '{"retries": 0}')
    airflow, begin = dag_runner(streams), datetime.now(UTC)
    far.mood = Mood.REFUSES
    for number in (1, 2):
        failed = airflow.run("frazil_maintenance", moment=begin + timedelta(seconds=number))
        assert failed["tasks"]["table.rewrite[city.rides]"] == failed["state"] == "failed"

    airflow.pause("frazil_maintenance", paused=False)
    for number, later in enumerate((timedelta(0), HALF)):
        checked = airflow.run("frazil_health", moment=begin - timedelta(seconds=number), later=later)
        reported = rules([] if checked["tasks"]["changed"] == "skipped" else checked["events"][-1][2]["fired"])
        assert reported == ({"unmeasured"} if number else set()), "the other holds have begun"
    fired = airflow.run("frazil_health", moment=begin + timedelta(seconds=3), later=2 * HALF)
    assert (fired["state"], fired["tasks"]["alerts"], fired["tasks"]["changed"]) == ("failed", "failed", "success")
    reported = fired["events"][-1][2]
    assert rules(reported["fired"]) >= {"runs:frazil_maintenance", "unmeasured"}
    (failed_runs,) = [alert for alert in reported["fired"] if alert["rule"] == "runs:frazil_maintenance"]
    assert failed_runs["sentence"].startswith("the last 2 runs of the DAG frazil_maintenance failed")
    assert failed_runs["runbook"] == "docs/runbook.md#runs"

    far.mood = Mood.WELL
    assert airflow.run("frazil_maintenance", moment=begin + timedelta(seconds=4))["state"] == "success"
    well = airflow.run("frazil_health", moment=begin + timedelta(seconds=5), later=3 * HALF)
    assert well["tasks"]["resolved"] == "success"
    assert rules(well["events"][-1][2]["resolved"]) >= {"runs:frazil_maintenance", "unmeasured"}


@pytest.mark.rotates(2, turn=0)
def test_paused_audits_are_an_alert_until_they_are_unpaused(
    far: MadeCatalog, streams: Path, dag_runner: Callable[[Path], Any]
) -> None:
    assert far.mood is Mood.WELL
    airflow, begin = dag_runner(streams), datetime.now(UTC)
    rule = "runs:frazil_audits"

    def checked(number: int) -> Any:
        moment = begin + timedelta(seconds=number)
        return airflow.run("frazil_health", moment=moment, later=number * HALF)["events"]

    airflow.pause("frazil_audits", paused=True)
    assert "frazil_audits is paused: no stream is audited" in airflow.doctor_of_dags()
    fired = [checked(number) for number in range(3)][-1][-1][2]
    assert rule in rules(fired["fired"])
    assert airflow.run("frazil_audits", moment=begin)["state"] == "success"
    airflow.pause("frazil_audits", paused=False)
    assert rule in rules(checked(3)[-1][2]["resolved"])
    assert not any("frazil_audits" in said for said in airflow.doctor_of_dags())


@pytest.mark.parametrize(("mood", "said"), [(Mood.REFUSES, "the token has expired"), (Mood.HANGS, "no answer in time")])
def test_a_catalog_that_does_not_answer_is_an_alert_until_it_does(
    far: MadeCatalog, streams: Path, mood: Mood, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_catalog, "TIMEOUT_S", (0.2, 0.2))
    monkeypatch.setattr(measure, "kafka_lag", lambda *_: None)
    begin_ms, store = clock.now_ms(), Store()

    def check(after: timedelta) -> dict[str, Any]:
        monkeypatch.setattr(clock, "now_ms", lambda: begin_ms + after // timedelta(milliseconds=1))
        return measure_all(streams, store)

    far.mood = mood
    assert check(timedelta(0))["active"] == []
    (cause,) = check(timedelta(minutes=1))["active"]
    assert (cause["table"], cause["rule"]) == ("stream rides", "unmeasured")
    assert said in cause["sentence"]
    assert check(HALF)["fired"] == []
    fired = check(2 * HALF)["fired"]
    (of_table,) = [alert for alert in fired if alert["table"] == "city.rides"]
    assert of_table["rule"] == "unmeasured"
    assert said in of_table["sentence"]
    far.mood = Mood.WELL
    over = check(3 * HALF)
    assert ("city.rides", "unmeasured") in {(alert["table"], alert["rule"]) for alert in over["resolved"]}
    assert over["active"] == []


def test_a_catalog_that_hangs_long_is_reported_and_delays_no_stream_of_another_catalog(
    far: MadeCatalog, streams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (streams / "walks.yaml").write_text(STREAM.replace(", catalog: far", "").replace("rides", "walks"))
    monkeypatch.setattr(tasks, "READ_TIMEOUT_S", 2.0)
    monkeypatch.setattr(catalogs, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(measure, "kafka_lag", lambda *_: None)
    begin_ms, store = clock.now_ms(), Store()
    far.mood = Mood.HANGS
    for minutes in (0, 1):
        monkeypatch.setattr(clock, "now_ms", lambda minutes=minutes: begin_ms + minutes * 60_000)
        found = measure_all(streams, store)
    (cause,) = found["active"]
    silent = "CommitUnavailable: the catalog 'far' does not answer"
    assert (cause["table"], cause["rule"]) == ("stream rides", "unmeasured")
    assert cause["sentence"] == f"stream rides: the table cannot be read: {silent}. {CATALOG_REMEDY}"
    assert (found["due"]["city.rides"], found["due"]["city.walks"]) == ([NOT_MEASURED], [])


def test_runs_that_airflow_does_not_report_are_unknown_and_raise_an_alert(
    streams: Path, far: MadeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert far.mood is Mood.WELL
    monkeypatch.setattr(measure, "kafka_lag", lambda *_: None)
    begin_ms, store, found = clock.now_ms(), Store(), dict[str, Any]()
    for number in range(3):
        after_ms = number * HALF // timedelta(milliseconds=1)
        monkeypatch.setattr(clock, "now_ms", lambda after_ms=after_ms: begin_ms + after_ms)
        found = measure_all(streams, store, failed=lambda *_: None)
    (said,) = [alert["sentence"] for alert in found["active"] if alert["rule"] == "unmeasured:frazil_maintenance"]
    assert said.startswith("the state of the DAG frazil_maintenance cannot be read, so no alert about it fires: ")
    assert not {alert["rule"] for alert in measure_all(streams, store)["active"]} & {"unmeasured:frazil_maintenance"}


def test_an_old_commit_is_an_alert_although_kafka_is_unreachable(
    streams: Path, far: MadeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert far.mood is Mood.WELL
    monkeypatch.setattr(measure, "open_kafka", Mock(side_effect=KafkaUnavailable("no broker at 127.0.0.1:1 answers")))
    begin_ms, store = clock.now_ms(), Store()

    def fired(after: timedelta) -> list[dict[str, Any]]:
        monkeypatch.setattr(clock, "now_ms", lambda: begin_ms + after // timedelta(milliseconds=1))
        found: list[dict[str, Any]] = measure_all(streams, store)["fired"]
        return found

    old = timedelta(minutes=16)
    assert fired(timedelta(0)) == []
    (alert,) = fired(old)
    assert alert["rule"] == "freshness:rides"
    assert "while records may wait; the lag is unknown (no broker at 127.0.0.1:1 answers)" in alert["sentence"]
