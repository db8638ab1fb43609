"""The backfills' DAG: its form, and its runs with a real broker, table and spark-submit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.exceptions import AirflowException
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow import backfills
from frazil.airflow.backfills import StageOperator
from frazil.airflow.dag_profile import run_name
from frazil.audit.stream_audit import audit_stream
from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.request import parse_request
from frazil.backfill.run import Backfill
from frazil.commit.backfill_records import BackfillMarker, BackfillState, read_backfill
from frazil.commit.open_streams import open_stream
from frazil.operations.stream_actions import plan_abandon
from frazil.spec.load import find_stream
from tests.made_batches import MadeStream

RUN = "frazil_backfill/manual of 2026-11-27T08:00:00+00:00"


def test_the_form_asks_for_a_declared_stream_and_is_a_dry_run_unless_requested_otherwise(
    parsed: dict[str, Any],
) -> None:
    dag = parsed["dags"]["frazil_backfill"]
    assert dag["tasks"] == {
        "plan": "FrazilShortCircuit",
        "stage": "StageOperator",
        "publish": "FrazilTask",
    }
    assert (dag["schedule"], dag["max_active_runs"], dag["tags"]) == (None, 1, ["backfill", "frazil"])
    assert (dag["params"]["stream"], dag["params"]["dry-run"], dag["params"]["cores"]) == ("flights", True, 1)
    bounds = {f"{which}-{what}" for which in ("from", "to") for what in ("time", "offsets", "event-time")}
    assert {name for name, value in dag["params"].items() if value is None} == {*bounds, "files"}


def test_the_form_lists_the_streams_that_can_be_backfilled_and_no_others(tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "ticks": {},
        "quotes": {"mode": "upsert", "key": "id"},
        "orders": {"route": {"by": "field", "name": "id", "template": "demo.orders_{value}"}},
        "trades": {"dedupe": {"key": "id", "within": "1h"}},
        "counts": {"coordinates": False},
    }
    for name, kind in kinds.items():
        declared = {
            "name": name,
            "source": {"topics": [name], "bootstrap-servers": "127.0.0.1:1"},
            "table": f"demo.{name}",
            "schema": {"id": "string not null", "at": "timestamptz not null"},
            "event-time": "at",
            **kind,
        }
        (tmp_path / f"{name}.yaml").write_text(json.dumps(declared))
        find_stream(tmp_path, name)  # it is valid
    form = backfills.backfill_dag(tmp_path).params
    assert (form.get_param("stream").schema["enum"], form["stream"]) == (
        ["orders", "quotes", "ticks", "trades"],
        "orders",
    )


@pytest.fixture
def made(frazil_home: Path, tmp_path: Path) -> MadeStream:  # noqa: ARG001 - the catalog is there
    declared = {
        "name": "ticks",
        "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.ticks",
        "schema": {"id": "long"},
        "event-time": "kafka_timestamp",
    }
    (tmp_path / "ticks.yaml").write_text(json.dumps(declared))
    stream = MadeStream(find_stream(tmp_path, "ticks"), 1_700_000_000_000, partitions=1)
    stream.begin()
    return stream


class Instance:
    """A task instance that reads what `plan` returned."""

    def xcom_pull(self, *, task_ids: str) -> dict[str, Any]:
        assert task_ids == "plan"
        return {"stream": "ticks", "run": RUN}


def test_a_run_with_an_abandoned_backfill_fails_for_good_and_its_restarted_task_starts_nothing(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[str] = []

    def spark_submit(_: Any, __: Any) -> None:
        committer = BackfillCommitter.begin(made.tables, parse_request({"stream": "ticks", "run": RUN}))
        submitted.append(committer.backfill.id)
        plan_abandon(made.spec, by="ada, Airflow").carry_out()
        raise AirflowException("Cannot execute: spark-submit. Error code is: 30.")

    monkeypatch.setattr(SparkSubmitOperator, "execute", spark_submit)
    operator = StageOperator(task_id="stage", streams=str(tmp_path), application="app.py")
    for _ in ("the run's first try", "a try that Airflow, or a person who clears it, begins"):
        with pytest.raises(
            AirflowFailException, match=rf"an operator abandoned the backfill that run {re.escape(RUN)} had begun"
        ):
            operator.execute({"ti": Instance()})
    monkeypatch.setattr(backfills, "get_current_context", lambda: context_of("2026-11-27T08:00:00Z"))
    for again in (
        lambda: backfills.plan(str(tmp_path)),
        lambda: backfills.publish(str(tmp_path), {"stream": "ticks", "run": RUN}),
    ):
        with pytest.raises(AirflowFailException, match="BackfillAbandoned"):
            again()
    assert submitted == [last_backfill(made).id]
    assert (last_backfill(made).state, last_backfill(made).abandoned_by) == (BackfillState.ABANDONED, "ada, Airflow")


def test_a_run_that_reuses_the_id_of_a_deleted_abandoned_run_is_a_different_run(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = run_name(context_of("2026-11-27T08:00:00Z"))
    BackfillCommitter.begin(made.tables, parse_request({"stream": "ticks", "run": deleted}))
    plan_abandon(made.spec, by="ada, Airflow").carry_out()

    class Planned(Exception):
        pass

    def planned(*_: Any) -> None:
        raise Planned

    monkeypatch.setattr(Backfill, "plan", planned)
    monkeypatch.setattr(backfills, "get_current_context", lambda: context_of("2026-11-27T09:00:00Z"))
    with pytest.raises(Planned):
        backfills.plan(str(tmp_path))


def context_of(requested_at: str) -> dict[str, Any]:
    """The context of a task in the run `manual` that a user requested then."""
    run = SimpleNamespace(run_after=datetime.fromisoformat(requested_at))
    params = {"stream": "ticks", "dry-run": False}
    return {"params": params, "dag": DAG("frazil_backfill"), "run_id": "manual", "dag_run": run}


def last_backfill(made: MadeStream) -> BackfillMarker:
    found = read_backfill(made.tables.main.refresh().metadata.properties, "ticks")
    assert found is not None
    return found


@pytest.mark.soak  # a minute of CPU: three runs of Airflow, one of them with spark-submit
def test_a_backfill_run_previews_its_range_then_lands_it_and_refuses_invalid_requests(
    stream: Any, events: Any, dag_runner: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.produce(events(range(1000)), partitions=4)
    path = stream.streams / "events.yaml"
    start = datetime.now(UTC).isoformat()
    path.write_text(path.read_text().replace("format: json", f"format: json, start: '{start}'"))
    stream.produce(events(range(1000, 1100)), partitions=4)
    stream.catch_up()
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[*]"}))
    airflow = dag_runner(stream.streams)

    dry = airflow.run("frazil_backfill", conf={"stream": "events"})
    assert (dry["state"], dry["tasks"]) == ("success", {"plan": "success", "stage": "skipped", "publish": "skipped"})
    assert stream.ids() == list(range(1000, 1100))

    landed = airflow.run("frazil_backfill", conf={"stream": "events", "dry-run": False, "chunk-records": 300})
    assert set(landed["tasks"].values()) == {"success"}
    assert stream.ids() == list(range(1100))
    assert audit_stream(open_stream(stream.spec).tables).clean

    offsets = {"another": {"0": 5}}
    refused = airflow.run("frazil_backfill", conf={"stream": "events", "dry-run": False, "from-offsets": offsets})
    assert (refused["state"], refused["tasks"]["plan"]) == ("failed", "failed")
