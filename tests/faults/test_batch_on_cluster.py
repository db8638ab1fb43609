"""Maintenance, backfills and aggregations on a standalone cluster, submitted by their DAGs' own tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from frazil.aggregate.day_input import NO_REVISIONS
from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.dev.spark_cluster import EmbeddedSparkCluster
from frazil.spark.jars import ensure_catalog_jars
from frazil.table.catalogs import load_catalog

from .exactness import check_exact

Events = Callable[[Iterable[int]], Iterator[bytes]]
SUBMIT = """
import json
import sys
from types import SimpleNamespace

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from frazil.airflow import backfill_dag, daily_dags, maintenance_dag

streams, aggregations, dag_id, task, given = json.loads(sys.argv[1])
dags = daily_dags(aggregations, streams=streams)
dags["frazil_maintenance"] = maintenance_dag(streams)
dags["frazil_backfill"] = backfill_dag(streams)
operator = dags[dag_id].get_task(task)
if "mapped" in given:
    operator.table = given["mapped"]
context = {
    "conn": SimpleNamespace(spark_default=SparkSubmitHook.get_connection("spark_default")),
    "ti": SimpleNamespace(xcom_pull=lambda *_, **__: given.get("pulled")),
    "params": given.get("params"),
    "dag_run": SimpleNamespace(partition_key=given.get("day")),
}
operator.render_template_fields(context)
operator.execute(context)
"""
"""Runs the task of a DAG as Airflow's worker does, without a database."""


@pytest.fixture
def submit(
    stream: Any, spark_cluster: EmbeddedSparkCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """`submit(dag_id, task, params=…)` runs a task to its end, as an application of the cluster that finishes."""
    properties = {
        "spark.jars": ",".join(map(str, ensure_catalog_jars(None))),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    (tmp_path / "spark.properties").write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
    connection = {
        "conn_type": "spark",
        "host": "spark://127.0.0.1",
        "port": spark_cluster.master.port,
        "extra": {"properties-file": str(tmp_path / "spark.properties")},
    }
    (tmp_path / "aggregations").mkdir()
    (tmp_path / "aggregations" / "per_day.yaml").write_text(
        f"source: test.{stream.name}\nevent-time: at\ntarget: test.per_day\n"
        "sql: SELECT count(*) AS records, sum(id) AS total FROM source_day\n"
    )
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))

    def run(dag_id: str, task: str, **given: Any) -> None:
        before = len(spark_cluster.master.state()["completedapps"])
        requested = json.dumps([str(stream.streams), str(tmp_path / "aggregations"), dag_id, task, given])
        command = [sys.executable, "-W", "ignore", "-c", SUBMIT, requested]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
        print(done.stdout[-8000:], done.stderr[-4000:])
        assert done.returncode == 0
        assert [a["state"] for a in spark_cluster.master.state()["completedapps"]][before:] == ["FINISHED"]

    return run


@pytest.mark.soak
def test_a_table_is_compacted_backfilled_and_aggregated_by_the_executors_of_a_cluster(
    stream: Any, events: Events, submit: Callable[..., None]
):
    stream.produce(events(range(2000)), partitions=4)
    declared = stream.streams / f"{stream.name}.yaml"
    start = f"format: json, start: '{datetime.now(UTC).isoformat()}'"
    declared.write_text(
        declared.read_text().replace("format: json", start)
        + "maintenance: {compaction: {min-files: 2, open-files: 2}}\n"
    )
    for batch in range(3):
        stream.produce(events(range(2000 + batch * 100, 2100 + batch * 100)), partitions=4)
        stream.catch_up()
    files = len(list(stream.table().scan().plan_files()))
    assert files >= 3

    form = {"actions": ["compaction", "manifests", "expiry", "orphans"], "dry-run": False}
    submit("frazil_maintenance", "table.rewrite", params=form, mapped=f"test.{stream.name}")
    assert len(list(stream.table().scan().plan_files())) < files
    assert stream.ids() == list(range(2000, 2300))

    request = {"stream": stream.name, "chunk-records": 700}
    with open_backfill(stream.spec, parse_request(request)) as backfill:
        form = {"stream": stream.name, "cores": 2, "driver-memory": "1g"}
        submit("frazil_backfill", "stage", params=form, pulled=request)
        assert stream.ids() == list(range(2000, 2300)), "what is staged is not in main"
        assert backfill.publish() is not None
    check_exact(stream, range(2300))

    table = stream.table()
    (day,) = {row["at"].date() for row in table.scan(selected_fields=("at",)).to_arrow().to_pylist()}
    chosen = {"snapshot_id": table.metadata.current_snapshot_id, "revisions": NO_REVISIONS}
    submit("frazil_daily_per_day", "aggregate", pulled=chosen, day=str(day))
    (row,) = load_catalog(None).load_table("test.per_day").scan().to_arrow().to_pylist()
    assert (row["day"], row["records"], row["total"]) == (day, 2300, sum(range(2300)))
