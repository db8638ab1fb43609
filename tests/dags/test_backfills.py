"""The DAG of the backfills: the form that it parses to, and runs of it with a real broker, table and spark-submit."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from frazil.audit.run import audit_stream
from frazil.commit.opened import open_stream


def test_the_form_asks_for_a_declared_stream_and_is_a_dry_run_unless_told_otherwise(parsed: dict[str, Any]) -> None:
    dag = parsed["dags"]["frazil_backfill"]
    assert dag["tasks"] == {
        "plan": "FrazilShortCircuit",
        "stage": "SubmitOperator",
        "publish": "FrazilTask",
    }
    assert (dag["schedule"], dag["max_active_runs"], dag["tags"]) == (None, 1, ["backfill", "frazil"])
    assert (dag["params"]["stream"], dag["params"]["dry-run"], dag["params"]["cores"]) == ("flights", True, 1)
    bounds = {f"{which}-{what}" for which in ("from", "to") for what in ("time", "offsets", "event-time")}
    assert {name for name, value in dag["params"].items() if value is None} == {*bounds, "files"}


@pytest.mark.soak  # a minute of CPU: three runs of Airflow, one of them with spark-submit
def test_a_run_says_what_it_would_touch_then_lands_it_and_refuses_what_makes_no_sense(
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
