"""Link buttons on Airflow tasks: their URLs, the tasks that have them, and links of tasks that still run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess

STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{at: timestamptz}}
event-time: at
complete: hour
complete-from: 2013-12-30T12:00:00Z
"""
SHARED = "application: together\n"
FOREIGN = """
from airflow.sdk import dag, task

@dag
def theirs():
    @task
    def work(): ...
    work()

theirs()
"""
BASE = "http://airflow.example/team"
PAGE = f"{BASE}/frazil/ops/index.html#"
Links = Callable[..., dict[str, str | None]]


@pytest.mark.parametrize(
    ("dag_id", "task_id", "label", "form", "path"),
    [
        ("frazil_writer_ticks", "write", None, {}, "/stream/ticks"),
        ("frazil_writer_stream.x", "write", None, {}, "/stream/stream.x"),
        ("frazil_writer_write", "write", None, {}, "/stream/write"),
        ("frazil_partitions_demo.ticks", "watch", None, {}, "/table/demo.ticks"),
        ("frazil_partitions_demo.a b/c#d", "held", None, {}, "/table/demo.a%20b%2Fc%23d"),
        ("frazil_audits", "audit", None, {}, "/"),
        ("frazil_audits", "stream.report", "ticks", {}, "/stream/ticks"),
        ("frazil_maintenance", "table.rewrite", "demo.ticks", {}, "/table/demo.ticks"),
        ("frazil_maintenance", "table.orphans", None, {}, "/"),
        ("frazil_maintenance", "table.rewrite", "route of ticks", {}, "/stream/ticks"),
        ("frazil_backfill", "stage", None, {"stream": "ticks"}, "/stream/ticks"),
        ("frazil_release", "release", None, {"table": "demo.ticks", "partition": "2013"}, "/table/demo.ticks"),
        ("frazil_backfill", "plan", None, {"stream": 7, "table": None}, "/"),
        ("frazil_health", "measure", None, {}, "/"),
    ],
)
def test_a_task_links_to_the_page_of_its_subject(dag_id: str, task_id: str, label: str | None, form: Any, path: str):
    from frazil.airflow.dag_ids import task_subject  # needs AIRFLOW_HOME

    assert task_subject(dag_id, task_id, label=label, form=form, shared=False).path == path


def test_links_use_the_same_route_prefix_as_maintenance(tmp_path: Path):
    from frazil.airflow.dag_ids import ROUTE_PREFIX
    from frazil.maintenance.tables import routes_by_name  # next to it
    from frazil.spec.load import load_stream  # next to it

    (tmp_path / "ticks.yaml").write_text(STREAM.format(name="ticks"))
    spec = load_stream(tmp_path / "ticks.yaml").model_copy(update={"route": object()})
    assert list(routes_by_name([spec])) == [f"{ROUTE_PREFIX}ticks"]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, airflow_database: Path) -> Iterator[AirflowProcess]:
    home = tmp_path_factory.mktemp("airflow-links")
    streams, dags = home / "streams", home / "dags"
    for folder in (streams, dags):
        folder.mkdir()
    for name in ("ticks", "first", "second"):
        (streams / f"{name}.yaml").write_text(STREAM.format(name=name) + (SHARED if name != "ticks" else ""))
    for file in (in_airflow.CHECKOUT / "dags").glob("*.py"):
        (dags / file.name).write_text(file.read_text())
    (dags / "theirs.py").write_text(FOREIGN)
    process = AirflowProcess(
        home / "airflow",
        database=airflow_database,
        FRAZIL_HOME=str(home / "frazil"),
        FRAZIL_STREAMS=str(streams),
        AIRFLOW__API_AUTH__JWT_SECRET="s" * 64,
        AIRFLOW__API__BASE_URL=BASE,
        AIRFLOW__CORE__DAGS_FOLDER=str(dags),
    )
    process.call(in_airflow.store_dags)
    yield process
    process.end()


@pytest.fixture(scope="module")
def links(airflow: AirflowProcess) -> Links:
    """Return the buttons that Airflow's API shows for a task that has not started."""
    runs: dict[str, str] = {}

    def begun(dag_id: str, conf: dict[str, str] | None) -> str:
        body = {"logical_date": None, "conf": conf or {}}
        at = f"/api/v2/dags/{quote(dag_id)}/dagRuns"
        answer = airflow.call(in_airflow.ask, "ADMIN", "POST", at, headers={}, body=body)
        assert answer["status"] == 200, answer["body"]
        return str(answer["body"]["dag_run_id"])

    def found(dag_id: str, task_id: str, *, conf: dict[str, str] | None = None, mapped: str | None = None) -> Any:
        run_id = runs[dag_id] = runs.get(dag_id) or begun(dag_id, conf)
        if mapped is not None:
            airflow.call(in_airflow.map_task, dag_id, run_id, task_id, mapped or None)
        at = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/links"
        query = "" if mapped is None else "?map_index=0"
        answer = airflow.call(in_airflow.ask, "VIEWER", "GET", at + query, headers={})
        assert answer["status"] == 200, answer["body"]
        return answer["body"]["extra_links"]

    return found


def test_a_running_writer_task_links_to_its_stream(links: Links):
    assert links("frazil_writer_ticks", "write")["Operations page"] == f"{PAGE}/stream/ticks"


def test_tasks_of_a_shared_application_link_to_each_of_its_streams(links: Links):
    assert links("frazil_writer_together", "stream.first")["Operations page"] == f"{PAGE}/stream/first"
    assert links("frazil_writer_together", "write")["Operations page"] == f"{PAGE}/"


@pytest.mark.parametrize("task_id", ["watch", "complete", "held"])
def test_the_tasks_of_windows_lead_to_data_docs_and_to_the_release_of_one(links: Links, task_id: str):
    assert links("frazil_partitions_demo.ticks", task_id) == {
        "Data Docs": f"{BASE}/frazil/data-docs/index.html",
        "Operations page": f"{PAGE}/table/demo.ticks",
        "Release a held window": f"{PAGE}/table/demo.ticks?action=release",
    }


@pytest.mark.parametrize(
    ("dag_id", "task_id", "label", "path"),
    [
        ("frazil_audits", "stream.confirm", "ticks", "/stream/ticks"),
        ("frazil_maintenance", "table.rewrite", "demo.ticks", "/table/demo.ticks"),
        ("frazil_maintenance", "table.orphans", "demo.ticks", "/table/demo.ticks"),
        ("frazil_audits", "stream.report", "", "/"),  # it has not started
    ],
)
def test_an_instance_of_a_mapped_task_links_to_its_own_page(
    links: Links, dag_id: str, task_id: str, label: str, path: str
):
    assert links(dag_id, task_id, mapped=label)["Operations page"] == f"{PAGE}{path}"


@pytest.mark.parametrize("task_id", ["plan", "stage", "publish"])
def test_a_run_started_by_a_form_links_to_the_stream_of_the_form(links: Links, task_id: str):
    assert links("frazil_backfill", task_id, conf={"stream": "ticks"})["Operations page"] == f"{PAGE}/stream/ticks"


def test_other_teams_tasks_get_no_button(links: Links):
    assert links("theirs", "work") == {}
