"""A real Airflow maintains a table: an alert fires, the table's DAG fixes the cause, the alert resolves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.dev.airflow import SPARK_POOL, EmbeddedAirflow
from frazil.spec.load import load_stream
from tests.airflow_api import AirflowApi, eventually
from tests.made_batches import EventTimes, MadeStream

CHECKOUT = Path(__file__).resolve().parents[2]
STREAM = """
name: trips
source: {topics: [trips], bootstrap-servers: "127.0.0.1:1"}
table: demo.trips
schema: {at: timestamptz, fare: int}
event-time: at
partition-by: [day(at)]
maintenance:
  compaction: {min-files: 2}
  manifests: {max-count: 3}
  expiry: {keep: 1ms, at-least: 2}
  alerts: {hold: 1s, snapshots: 8}
"""
DAGS = '''
"""The DAGs under test, as those of dags/ make them, with tables measured more often; and one that is late."""

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from frazil.airflow import health_dag, maintenance_dag
from frazil.airflow.dag_profile import deadline

STREAMS = Path(os.environ["FRAZIL_STREAMS"])


def told(context):
    with (STREAMS.parent / "told").open("a") as file:
        file.write(context["ti"].task_id + "\\n")


application = Path(os.environ["FRAZIL_TEST_CHECKOUT"]) / "spark_apps" / "maintain_table.py"
maintenance = maintenance_dag(STREAMS, application=application)
health = health_dag(STREAMS, every=timedelta(seconds=5), on_failure=told, on_resolved=told)

late_after_a_second = deadline(timedelta(seconds=1), sentence="the slow one has not ended in a second")
with DAG("slow", schedule=None, deadline=late_after_a_second, is_paused_upon_creation=False) as slow:

    @task
    def wait():
        while not (STREAMS.parent / "go").exists():
            time.sleep(0.1)

    wait()
'''
HEALTH, MAINTENANCE = "frazil_health", "frazil_maintenance"
DAY_US = 86_400_000_000


@pytest.fixture
def airflow(tmp_path: Path, frazil_home: Path) -> Iterator[EmbeddedAirflow]:
    for name, text in {"streams/trips.yaml": STREAM, "dags/dags.py": DAGS}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    extra = {
        "FRAZIL_HOME": str(frazil_home),
        "FRAZIL_STREAMS": str(tmp_path / "streams"),
        "FRAZIL_TEST_CHECKOUT": str(CHECKOUT),
    }
    with EmbeddedAirflow(tmp_path / "airflow", CHECKOUT, dags=tmp_path / "dags", extra=extra) as started:
        yield started


def land(folder: Path, *, batches: int) -> MadeStream:
    """Land ten rows per batch. The last batch moves the watermark to the next day, which completes the first day."""
    now_ms = time.time_ns() // 1_000_000
    stream = MadeStream(load_stream(folder / "trips.yaml"), now_ms, partitions=1)
    for batch in range(batches):
        at_us = 20_000 * DAY_US + batch + (DAY_US if batch == batches - 1 else 0)
        stream.columns = lambda rows, at_us=at_us: {"at": pa.array([at_us] * rows), "fare": pa.array(range(rows))}
        stream.land({0: (batch * 10, (batch + 1) * 10)}, times=EventTimes({0: at_us}))
    return stream


@pytest.mark.rotates(4, turn=0)
@pytest.mark.timeout(900)
def test_an_alert_fires_and_resolves_after_its_table_is_fixed(airflow: EmbeddedAirflow, tmp_path: Path) -> None:
    client = AirflowApi.of(airflow)
    stream = land(tmp_path / "streams", batches=12)
    before = stream.tables.main.refresh().scan().to_arrow().sort_by("kafka_offset")
    client.wait_for_dag(HEALTH, timeout_s=120)
    slow = client.trigger("slow")["dag_run_id"]
    client.set_paused(HEALTH, False)

    # It fires: the run that found it failed, an event says so, and people hear it once, however long it stands.
    fired = eventually(lambda: [run for run in client.runs(HEALTH) if run["state"] == "failed"], within_s=240)
    log = client.log(HEALTH, fired[0]["dag_run_id"], "measure")
    assert "demo.trips has 13 snapshots" in log
    assert "`frazil maintain demo.trips --actions expiry` fixes it now" in log
    eventually(lambda: len([r for r in client.runs(HEALTH) if r["state"] == "failed"]) > 1, within_s=240)
    assert (tmp_path / "told").read_text().splitlines() == ["alerts"]
    client.set_paused(HEALTH, True)  # each run takes three CPU seconds

    # A run that hangs is said while it hangs.
    said = "frazil: slow: late\n\nthe slow one has not ended in a second\nsince: 2"
    eventually(lambda: said in airflow.log("triggerer").read_text(), within_s=120)
    assert client.run("slow", slow)["state"] == "running"
    (tmp_path / "go").touch()

    # Maintenance: one Spark application, in its pool; a stray file is remembered, and not deleted at first sight.
    stray = Path(stream.tables.main.current().location().removeprefix("file://")) / "data" / "stray.parquet"
    stray.touch()
    client.set_paused(MAINTENANCE, False)
    run_id = eventually(lambda: [r["dag_run_id"] for r in client.runs(MAINTENANCE)], within_s=60)[0]
    ended = eventually(lambda: client.run(MAINTENANCE, run_id)["state"] in {"success", "failed"}, within_s=300)
    tasks = {task["task_id"]: task for task in client.tasks(MAINTENANCE, run_id)}
    assert ended
    assert {name: task["state"] for name, task in tasks.items()} == dict.fromkeys(
        ("check_due", "table.rewrite", "table.orphans"), "success"
    )
    assert tasks["table.rewrite"]["pool"] == SPARK_POOL
    assert tasks["table.orphans"]["rendered_map_index"] == tasks["table.rewrite"]["rendered_map_index"] == "demo.trips"
    table = stream.tables.main.refresh()
    assert len(list(table.scan().plan_files())) == 2, "the complete day's eleven files are one; the open day's is left"
    assert len(table.metadata.snapshots) < 8
    assert table.scan().to_arrow().sort_by("kafka_offset") == before
    assert stray.exists()

    # The alert resolves: the first run without it reports that, and notifies.
    client.set_paused(HEALTH, False)
    well = eventually(
        lambda: [r for r in client.runs(HEALTH) if r["run_after"] > fired[-1]["run_after"] and r["state"] == "success"],
        within_s=240,
    )
    assert "resolved" in client.log(HEALTH, well[0]["dag_run_id"], "measure")
    eventually(lambda: (tmp_path / "told").read_text().splitlines() == ["alerts", "resolved"])
    (asset,) = [a for a in client.call("GET", "/api/v2/assets")["assets"] if a["name"] == "frazil.health"]
    events = client.call("GET", "/api/v2/assets/events", params={"asset_id": asset["id"]})["asset_events"]
    assert [[len(e["extra"][name]) for name in ("fired", "resolved")] for e in events] == [[1, 0], [0, 1]]
