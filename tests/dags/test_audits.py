"""The DAG file of the audits: what it parses to, and what its tasks do with real tables, clean and harmed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frazil.airflow.audits.dag import verdict
from frazil.airflow.audits.tasks import audit_hours
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
    """One batch in the hour from 10 to 11, and one in the next."""
    (tmp_path / "streams").mkdir()
    for name in ("made", "waiting"):
        (tmp_path / "streams" / f"{name}.yaml").write_text(STREAM.format(name=name))
    stream = MadeStream(load_stream(tmp_path / "streams" / "made.yaml"), 0, partitions=2)
    for number in range(2):
        stream.now_ms = int((TEN + timedelta(hours=number, minutes=30)).timestamp()) * 1000
        stream.land(dict.fromkeys(range(2), (number * 100, (number + 1) * 100)))
    return stream


def lose_five_rows(made: MadeStream) -> None:
    made.tables.main.refresh().delete("kafka_partition = 1 and kafka_offset >= 10 and kafka_offset < 15")


def test_every_declared_stream_has_a_dag_that_runs_hourly_and_once_at_a_time(parsed: dict[str, Any]) -> None:
    flights = parsed["dags"]["frazil_audit_flights"]
    assert set(flights["tasks"]) == {"audit", "announce", "verdict"}
    assert flights["tags"] == ["audit", "frazil", "stream:flights", "table:demo.flights"]
    assert (flights["max_active_runs"], flights["catchup"]) == (1, False)
    minute, rest = flights["schedule"].split(" ", 1)
    assert (15 <= int(minute) < 45, rest) == (True, "* * * *")
    assert flights["params"] == {"hours": 1, "source": False}
    assert flights["outlets"] == {"announce": ["frazil.audit.flights"]}
    assert "frazil audit flights" in flights["doc"]


def test_streams_are_audited_at_different_minutes(parse: Parse, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"s{number}.yaml").write_text(STREAM.format(name=f"s{number}"))
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    assert found["errors"] == {}
    audits = [dag for dag_id, dag in found["dags"].items() if dag_id.startswith("frazil_audit_")]
    assert len(audits) == 20
    assert len({dag["schedule"] for dag in audits}) > 5


def test_a_broken_declaration_keeps_its_audit_and_takes_no_other_with_it(parse: Parse, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(STREAM.format(name="good"))
    (tmp_path / "typo.yaml").write_text(STREAM.format(name="typo").replace("event-time", "event-tmie"))
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    assert [Path(file).name for file in found["errors"]] == ["declarations.py"], "which has no DAG"
    assert "broken" not in found["dags"]["frazil_audit_good"]["tags"]
    assert "broken" in found["dags"]["frazil_audit_typo"]["tags"]
    assert "event-tmie" in found["dags"]["frazil_audit_typo"]["doc"]


@pytest.mark.usefixtures("made")
def test_a_clean_hour_is_the_one_that_was_complete_and_has_no_findings(tmp_path: Path) -> None:
    found = audit_hours("made", tmp_path / "streams", TEN + timedelta(hours=1, minutes=20))
    assert found == {
        "stream": "made",
        "from": "2033-05-18T10:00:00+00:00",
        "to": "2033-05-18T11:00:00+00:00",
        "findings": 0,
        "sentences": [],
    }
    verdict(found)


def test_what_is_wrong_is_logged_and_fails_the_verdict_in_its_own_hour(
    made: MadeStream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lose_five_rows(made)
    with caplog.at_level(logging.INFO):
        found = audit_hours("made", tmp_path / "streams", TEN + timedelta(hours=1, minutes=20))
    assert found["findings"] == 1
    assert "the table lacks 5 rows" in found["sentences"][0]
    assert "made-1: the table lacks 5 rows" in caplog.text
    with pytest.raises(AirflowFailException, match="made-1: the table lacks 5 rows"):
        verdict(found)
    assert audit_hours("made", tmp_path / "streams", TEN + timedelta(hours=2, minutes=20))["findings"] == 0
    day = audit_hours("made", tmp_path / "streams", TEN + timedelta(hours=2, minutes=20), hours=24)
    assert day["findings"] == 1


def test_a_stream_that_has_not_begun_is_skipped_with_a_sentence(made: MadeStream, tmp_path: Path) -> None:
    with pytest.raises(AirflowSkipException, match="its writer never ran"):
        audit_hours("waiting", tmp_path / "streams", TEN)
    waiting = MadeStream(load_stream(tmp_path / "streams" / "waiting.yaml"), made.now_ms)
    assert waiting.tables.marker() is None
    with pytest.raises(AirflowSkipException, match="nothing is committed yet"):
        audit_hours("waiting", tmp_path / "streams", TEN)


@pytest.mark.parametrize("harmed", [False, True])
def test_a_run_succeeds_where_all_is_well_and_fails_with_an_asset_event_where_not(
    made: MadeStream, tmp_path: Path, dag_runner: Callable[[Path], Any], harmed: bool
) -> None:
    if harmed:
        lose_five_rows(made)
    ran = dag_runner(tmp_path / "streams").run("frazil_audit_made", moment=TEN + timedelta(hours=1, minutes=20))
    if not harmed:
        assert ran == {
            "state": "success",
            "tasks": {"audit": "success", "announce": "skipped", "verdict": "success"},
            "events": [],
        }
        return
    assert ran["state"] == "failed"
    assert ran["tasks"] == {"audit": "success", "announce": "success", "verdict": "failed"}
    ((asset, _, extra),) = ran["events"]
    assert asset == "frazil.audit.made"
    assert (extra["stream"], extra["from"], extra["findings"]) == ("made", "2033-05-18T10:00:00+00:00", 1)
    assert "the table lacks 5 rows" in extra["sentences"][0]
