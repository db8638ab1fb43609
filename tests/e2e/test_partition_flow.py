"""A real Airflow from the watermark to the aggregate: signals, gate, release, sensor, daily run, late rows."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from frazil.dev.airflow import EmbeddedAirflow
from frazil.errors import EnvironmentUnusable
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
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
complete: hour
complete-from: 2013-12-30T00:00:00Z
"""
AGGREGATION = """
source: demo.trips
event-time: at
target: demo.trips_per_day
sql: SELECT count(*) AS trips, sum(fare) AS fares FROM source_day
"""
SUITE = {
    "name": "demo.trips",
    "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "fare", "min_value": 0}, "meta": {}}
    ],
    "meta": {},
}
DAGS = '''
"""The DAGs under test, as those of dags/ make them, looking more often; and one that a sensor holds."""

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from frazil.airflow import PartitionCompleteSensor, daily_dags, partition_dags

HERE, APPS = Path(os.environ["FRAZIL_STREAMS"]).parent, Path(os.environ["FRAZIL_TEST_CHECKOUT"]) / "spark_apps"
STREAMS = HERE / "streams"
globals().update(partition_dags(STREAMS, expectations=HERE / "expectations", every=timedelta(seconds=6)))
globals().update(daily_dags(HERE / "aggregations", streams=STREAMS, application=APPS / "aggregate_daily.py"))

with DAG("reader", schedule=None) as reader:
    waits = PartitionCompleteSensor(task_id="wait", table="demo.trips", partition="2013-12-30", poke_interval=3)

    @task
    def read(): ...

    waits >> read()
'''
DAY = 1_388_361_600_000_000
HOUR = 3_600_000_000
LOOKS, DAILY = "frazil_partitions_demo.trips", "frazil_daily_trips_per_day"


class Trips:
    """Ten trips an hour, of a fare of 1 each."""

    def __init__(self, folder: Path) -> None:
        self.made = MadeStream(load_stream(folder / "trips.yaml"), now_ms=time.time_ns() // 1_000_000, partitions=1)
        self.sent, self.newest = 0, 0

    def land(self, first: int, last: int, *, count: int = 10, fare: int = 1) -> None:
        """Trips of the hours `[first, last)` of 30 December; hours behind the newest are late."""
        times = [DAY + hour * HOUR + n for hour in range(first, last) for n in range(count)]
        closed = self.newest // HOUR * HOUR
        late = Counter(us // HOUR * HOUR for us in times if us < closed)
        self.newest = max(self.newest, *times)
        self.made.columns = lambda rows: {"at": pa.array(times), "fare": pa.array([fare] * rows)}
        begin, self.sent = self.sent, self.sent + len(times)
        self.made.land({0: (begin, self.sent)}, times=EventTimes({0: self.newest}, late))

    def aggregate(self) -> tuple[int, int] | None:
        """Trips and fares of 30 December, if they were aggregated."""
        try:
            rows = load_catalog(None).load_table("demo.trips_per_day").scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return None
        found = [(row["trips"], row["fares"]) for row in rows if row["day"] == date(2013, 12, 30)]
        return found[0] if found else None


@pytest.fixture
def airflow(tmp_path: Path, frazil_home: Path) -> Iterator[EmbeddedAirflow]:
    files = {
        "streams/trips.yaml": STREAM,
        "aggregations/trips_per_day.yaml": AGGREGATION,
        "expectations/demo.trips.json": json.dumps(SUITE),
        "dags/dags.py": DAGS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    extra = {
        "FRAZIL_HOME": str(frazil_home),
        "FRAZIL_STREAMS": str(tmp_path / "streams"),
        "FRAZIL_TEST_CHECKOUT": str(CHECKOUT),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        # How soon a new scheduler takes up what a killed one had queued; five minutes by default.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    }
    with EmbeddedAirflow(tmp_path / "airflow", CHECKOUT, dags=tmp_path / "dags", extra=extra) as started:
        yield started


def failed_run(client: AirflowApi, said: str) -> tuple[str, str] | None:
    """The failed run of the partition DAG whose first task logged this, and that log."""
    for run in client.runs(LOOKS):
        with suppress(EnvironmentUnusable):  # on a busy host the task of another run may never have begun
            if run["state"] == "failed" and said in (log := client.log(LOOKS, run["dag_run_id"], "watch")):
                return run["dag_run_id"], log
    return None


@pytest.mark.rotates(3)
@pytest.mark.timeout(1200)
def test_a_day_is_signalled_gated_released_aggregated_reopened_and_aggregated_again(
    airflow: EmbeddedAirflow, tmp_path: Path
) -> None:
    client = AirflowApi.of(airflow)
    trips = Trips(tmp_path / "streams")
    client.wait_for_dag("reader", timeout_s=120)
    waiting = client.trigger("reader")["dag_run_id"]

    # The sixth hour breaks the suite: 23 hours are reported, and the run that found it failed.
    trips.land(0, 6)
    trips.land(5, 6, count=1, fare=-7)
    trips.land(6, 26)
    eventually(lambda: len(reported(client, "demo.trips")) == 24, within_s=360)  # 00 to 04, 06 to 24
    assert "2013-12-30T05" not in {key for key, _ in reported(client, "demo.trips")}
    held = "demo.trips 2013-12-30T05 is held by its quality gate: revision 1, 11 rows"
    failed, check = eventually(lambda: failed_run(client, held), within_s=360)
    assert "fare (min_value 0.0): failed in 1 of 11 rows, such as -7" in check
    page = check.split(f"{airflow.url}/frazil/data-docs/")[-1].split(")")[0]
    check_page(airflow, page)
    assert client.runs(DAILY) == []
    airflow.kill("scheduler")

    # From here on the stream's file has a typo, and a user has pressed "Create event": nothing else changes.
    declared = tmp_path / "streams" / "trips.yaml"
    declared.write_text(STREAM + "maintenance: {compactoin: off}\n")
    for key in (None, "2013-12-30T07", "no window"):
        made = {"asset_id": asset_ids(client)["demo.trips"], **({"partition_key": key} if key else {})}
        client.call("POST", "/api/v2/assets/events", json=made)
    airflow.start_component("scheduler")

    # A person takes it as it is; the day is complete, aggregated, and the sensor lets its DAG go on.
    release = {"table": "demo.trips", "partition": "2013-12-30T05", "reason": "a refund, not an error"}
    client.wait_for_dag("frazil_release")
    client.trigger("frazil_release", conf=release)
    eventually(lambda: trips.aggregate() == (241, 233), within_s=360)
    eventually(lambda: client.run("reader", waiting)["state"] == "success", within_s=360)
    assert "2013-12-30T05 is held by its quality gate" in client.log("reader", waiting, "wait")
    (note,) = [extra["note"] for key, extra in reported(client, "demo.trips") if key == "2013-12-30T05"]
    assert note == "released by admin: a refund, not an error"

    # A task is repeated. Its run has its turn when the one that looks now has ended, which the late trips let it.
    client.clear(LOOKS, failed, "complete")

    # Late trips reopen their hours, and the day is aggregated again: as if it had been at the end.
    trips.land(3, 5, count=2)
    eventually(lambda: trips.aggregate() == (245, 237), within_s=360)
    reopened = {(key, extra["revision"], extra["late_rows"]) for key, extra in reported(client, "demo.trips.reopened")}
    assert reopened == {("2013-12-30T03", 2, 2), ("2013-12-30T04", 2, 2)}
    newest = load_catalog(None).load_table("demo.trips_per_day").current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    assert json.loads(newest.summary["frazil.input-revisions"]) == {"2013-12-30T03": 2, "2013-12-30T04": 2}
    eventually(lambda: state(client, failed, "complete") == "skipped", within_s=360)
    times = Counter(key for key, _ in reported(client, "demo.trips"))
    assert set(times.values()) == {1}, "each window once, whatever happened to the scheduler"
    assert len(times) == 25


def state(client: Any, run_id: str, task_id: str) -> str:
    path = f"/api/v2/dags/{LOOKS}/dagRuns/{run_id}/taskInstances/{task_id}"
    return str(client.call("GET", path)["state"])


def check_page(airflow: EmbeddedAirflow, page: str) -> None:
    """A signed-in user sees the gate's page and no other file; other users see nothing."""
    url = f"{airflow.url}/frazil/data-docs"
    signed = {"Authorization": f"Bearer {airflow.client('viewer').token()}"}
    assert httpx.get(f"{url}/{page}", trust_env=False).status_code == 401
    assert "fare" in httpx.get(f"{url}/{page}", headers=signed, trust_env=False).text
    assert page in httpx.get(f"{url}/index.html", headers=signed, trust_env=False).text
    for outside in ("..%2Fcatalog.db", "..%2F..%2Fairflow%2Fpasswords.json", "none.html", "openapi.json"):
        assert httpx.get(f"{url}/{outside}", headers=signed, trust_env=False).status_code == 404


def reported(client: Any, asset: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the asset's events: their keys and extras."""
    assets = asset_ids(client)
    if asset not in assets:
        return []
    events = client.call("GET", "/api/v2/assets/events", params={"asset_id": assets[asset], "limit": 100})
    ours = [e for e in events["asset_events"] if e["source_dag_id"]]
    return [(e["partition_key"], e["extra"][e["partition_key"]]) for e in ours]


def asset_ids(client: Any) -> dict[str, int]:
    return {found["name"]: found["id"] for found in client.call("GET", "/api/v2/assets")["assets"]}
