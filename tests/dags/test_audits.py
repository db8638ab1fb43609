"""The audits' DAG file: the DAG it contains, and what its tasks do with intact and damaged real tables."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frazil.airflow.audits.dag import report
from frazil.airflow.audits.findings import read_findings, read_last_audits, store_audits
from frazil.airflow.audits.tasks import audit_all, audit_hours
from frazil.airflow.health.tasks import measure_all
from frazil.errors import FrazilError
from frazil.spec.load import load_stream
from tests.made_batches import MadeStream

CHECKOUT = Path(__file__).resolve().parents[2]
Parse = Callable[..., dict[str, Any]]
STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{at: timestamptz}}
event-time: at
"""
TEN = datetime(2033, 5, 18, 10, tzinfo=UTC)
"""Later than this machine's clock: no commit is older than its table."""


@pytest.fixture
def made(frazil_home: Path, tmp_path: Path) -> MadeStream:  # noqa: ARG001
    """A stream with one batch in the hour from 10 to 11, and one in the next."""
    (tmp_path / "streams").mkdir()
    for name in ("made", "waiting"):
        (tmp_path / "streams" / f"{name}.yaml").write_text(STREAM.format(name=name))
    stream = MadeStream(load_stream(tmp_path / "streams" / "made.yaml"), 0, partitions=2)
    for number in range(2):
        stream.now_ms = int((TEN + timedelta(hours=number, minutes=30)).timestamp()) * 1000
        stream.land(dict.fromkeys(range(2), (number * 100, (number + 1) * 100)))
    return stream


class Store(dict[str, Any]):
    set = dict.__setitem__


def lose_five_rows(made: MadeStream) -> None:
    made.tables.main.refresh().delete("kafka_partition = 1 and kafka_offset >= 10 and kafka_offset < 15")


def test_one_dag_audits_all_streams_hourly(parsed: dict[str, Any]) -> None:
    audits = parsed["dags"]["frazil_audits"]
    assert set(audits["tasks"]) == {"audit", "stream.confirm", "stream.report"}
    assert {"audit", "frazil", "stream:flights", "table:demo.flights"} <= set(audits["tags"])
    assert audits["schedule"] == "15 * * * *"
    assert audits["catchup"] is False
    assert audits["params"] == {"streams": [], "hours": 1, "source": False}
    assert "frazil audit STREAM" in audits["doc"]
    assert not any(dag_id.startswith("frazil_audit_") for dag_id in parsed["dags"])


@pytest.mark.usefixtures("made")
def test_a_clean_hour_is_complete_and_has_no_findings(tmp_path: Path) -> None:
    found = audit_hours("made", tmp_path / "streams", TEN + timedelta(hours=1, minutes=20))
    assert found == {
        "stream": "made",
        "from": "2033-05-18T10:00:00+00:00",
        "to": "2033-05-18T11:00:00+00:00",
        "source": False,
        "complete": True,
        "not-compared": None,
        "findings": 0,
        "sentences": [],
    }
    report(found)


def test_audit_findings_are_logged_and_fail_the_audit_of_their_own_hour(
    made: MadeStream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lose_five_rows(made)
    with caplog.at_level(logging.INFO):
        found = audit_hours("made", tmp_path / "streams", TEN + timedelta(hours=1, minutes=20))
    assert found["findings"] == 1
    assert "the table is missing 5 rows" in found["sentences"][0]
    assert "made-1: the table is missing 5 rows" in caplog.text
    with pytest.raises(AirflowFailException, match="made-1: the table is missing 5 rows"):
        report(found)
    assert audit_hours("made", tmp_path / "streams", TEN + timedelta(hours=2, minutes=20))["findings"] == 0
    day = audit_hours("made", tmp_path / "streams", TEN + timedelta(hours=2, minutes=20), hours=24)
    assert day["findings"] == 1


def test_a_stream_that_has_not_begun_is_skipped_with_a_sentence(made: MadeStream, tmp_path: Path) -> None:
    with pytest.raises(AirflowSkipException, match="its writer has not committed"):
        audit_hours("waiting", tmp_path / "streams", TEN)
    waiting = MadeStream(load_stream(tmp_path / "streams" / "waiting.yaml"), made.now_ms)
    assert waiting.tables.marker() is None
    with pytest.raises(AirflowSkipException, match="nothing is committed yet"):
        audit_hours("waiting", tmp_path / "streams", TEN)


def test_streams_are_audited_in_parallel_and_no_error_hides_another(
    made: MadeStream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lose_five_rows(made)
    (tmp_path / "streams" / "typo.yaml").write_text(STREAM.format(name="typo").replace("event-time", "event-tmie"))
    with caplog.at_level(logging.INFO):
        found = audit_all(["typo", "waiting", "made"], tmp_path / "streams", TEN + timedelta(hours=1, minutes=20))
    assert found.failing == ["typo", "made"]
    assert "its writer has not committed" in caplog.text
    assert "typo: the audit failed" in caplog.text
    assert audit_all(["waiting", "made"], tmp_path / "streams", TEN + timedelta(hours=2, minutes=20)).failing == []


def test_an_error_that_stops_the_audits_of_all_streams_is_reported_once(frazil_home: Path, tmp_path: Path) -> None:  # noqa: ARG001
    with pytest.raises(FrazilError, match="none of 2 streams could be audited; one: "):
        audit_all(["one", "two"], tmp_path, TEN)
    assert audit_all(["one"], tmp_path, TEN).failing == ["one"], "whose own task says it"
    assert audit_all([], tmp_path, TEN).failing == []


@pytest.mark.rotates(2)
def test_an_audit_run_without_findings_runs_only_one_task(
    made: MadeStream,  # noqa: ARG001
    tmp_path: Path,
    dag_runner: Callable[[Path], Any],
) -> None:
    ran = dag_runner(tmp_path / "streams").run("frazil_audits", moment=TEN + timedelta(hours=1, minutes=20))
    assert ran == {
        "state": "success",
        "tasks": {"audit": "success", "stream.confirm": "skipped", "stream.report": "skipped"},
        "events": [],
    }


@pytest.mark.rotates(2)
def test_each_stream_with_a_problem_gets_its_own_tasks_and_asset_event(
    made: MadeStream, tmp_path: Path, dag_runner: Callable[[Path], Any]
) -> None:
    lose_five_rows(made)
    (tmp_path / "streams" / "typo.yaml").write_text(STREAM.format(name="typo").replace("event-time", "event-tmie"))
    moment = TEN + timedelta(hours=1, minutes=20)
    runner = dag_runner(tmp_path / "streams")
    ran = runner.run("frazil_audits", moment=moment, conf={"streams": ["made", "waiting"]})
    assert ran["state"] == "failed"
    assert ran["tasks"] == {
        "audit": "success",
        "stream.confirm[made]": "success",
        "stream.report[made]": "failed",
    }
    ((asset, _, extra),) = ran["events"]
    assert asset == "frazil.audit.made"
    assert (extra["stream"], extra["from"], extra["findings"]) == ("made", "2033-05-18T10:00:00+00:00", 1)
    assert "the table is missing 5 rows" in extra["sentences"][0]


@pytest.mark.parametrize(("found_with", "source", "complete", "stands"), [
    (True, True, True, False),
    (True, True, False, True),
    (True, False, True, True),
    (False, False, True, False),
    (False, False, False, True),
    (False, True, True, False),
])  # fmt: skip
def test_a_finding_is_withdrawn_only_by_a_complete_audit_with_the_same_sources(
    found_with: bool, source: bool, complete: bool, stands: bool
) -> None:
    store = Store()
    hour = {"stream": "made", "from": TEN.isoformat(), "to": (TEN + timedelta(hours=1)).isoformat()}
    requested = {**hour, "source": source, "complete": complete}
    store_audits(store, [{**hour, "source": found_with, "complete": True, "findings": 1, "sentences": ["made: 1 key"]}])
    store_audits(store, [{**requested, "findings": 0, "sentences": []}])
    assert bool(read_findings(store)) is stands


def test_the_last_audit_of_a_stream_shows_its_scope_and_its_omissions() -> None:
    store = Store()
    hour = {"from": "2033-05-18T10:00:00+00:00", "to": "2033-05-18T11:00:00+00:00", "source": False, "sentences": []}
    store_audits(store, [
        {**hour, "stream": "clean", "complete": True, "not-compared": None, "findings": 0},
        {**hour, "stream": "upsert", "complete": False, "not-compared": "7 changes were not compared", "findings": 0},
        {**hour, "stream": "harmed", "complete": True, "findings": 2, "sentences": ["harmed: 1 row", "harmed: 2 rows"]},
    ])  # fmt: skip
    hours = "of commits from 2033-05-18T10:00:00+00:00 to 2033-05-18T11:00:00+00:00"
    assert read_last_audits(store) == {
        "clean": f"{hours}: no findings",
        "upsert": f"{hours}: no findings, but 7 changes were not compared",
        "harmed": f"{hours}: 2 findings",
    }
    store_audits(store, [])
    assert set(read_last_audits(store)) == {"clean", "upsert", "harmed"}


def test_health_reports_the_last_audit_and_that_a_stream_had_none(
    made: MadeStream,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    store, moment = Store(), TEN + timedelta(hours=1, minutes=20)
    store_audits(store, audit_all(["made", "waiting"], tmp_path / "streams", moment).audits)
    audited = measure_all(tmp_path / "streams", store)["audited"]
    assert audited["made"].endswith("no findings")
    assert audited["waiting"] is None
