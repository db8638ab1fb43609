"""The embedded Airflow runs DAGs, has its users, survives kills, and listens only on loopback."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from frazil.dev.airflow import COMPONENTS, AirflowClient, EmbeddedAirflow
from frazil.doctor import CheckState
from frazil.doctor import host as doctor
from frazil.errors import EnvironmentUnusable
from tests.airflow_api import AirflowApi, eventually

HELLO = '''
"""Says hello."""

from __future__ import annotations

from airflow.sdk import dag, task


@dag(schedule=None)
def hello() -> None:
    @task
    def greet() -> None:
        print("hello from a task")

    greet()


hello()
'''


@pytest.fixture(scope="module")
def airflow(shared_airflow: EmbeddedAirflow) -> EmbeddedAirflow:
    (shared_airflow.home.parent / "dags" / "hello.py").write_text(HELLO)
    return shared_airflow


def finished(client: AirflowApi, run_id: str) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        run = client.run("hello", run_id)
        return run if run["state"] in {"success", "failed"} else None

    return dict(eventually(ended))


def test_everything_listens_on_the_loopback_alone(airflow: EmbeddedAirflow) -> None:
    """This test comes first: once a process has run a task, only root can see its connections."""
    listening = []
    for component in COMPONENTS:
        server = airflow.server(component)
        assert server is not None
        leader = psutil.Process(server.pid)
        for process in [leader, *leader.children(recursive=True)]:
            listening += [c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert {address[0] for address in listening} == {"127.0.0.1"}


@pytest.mark.rotates(2)
@pytest.mark.timeout(600)
def test_a_dag_runs_and_its_log_can_be_read(airflow: EmbeddedAirflow) -> None:
    client = AirflowApi.of(airflow)
    client.wait_for_dag("hello", timeout_s=120)
    client.set_paused("hello", False)
    run = finished(client, client.trigger("hello")["dag_run_id"])
    assert run["state"] == "success"
    log = client.log("hello", run["dag_run_id"], "greet")
    assert "hello from a task" in log
    assert "Could not read" not in log


def test_a_viewer_may_check_but_not_act(airflow: EmbeddedAirflow) -> None:
    viewer = AirflowApi.of(airflow, "viewer")
    viewer.wait_for_dag("hello", timeout_s=120)
    with pytest.raises(EnvironmentUnusable, match="403"):
        viewer.set_paused("hello", True)


@pytest.mark.rotates(2, turn=1)
def test_frazil_doctor_checks_a_running_airflow(airflow: EmbeddedAirflow, tmp_path: Path) -> None:
    found = {one.subject: one for one in doctor.check_airflow(tmp_path, airflow.environment())}
    assert {one.state for name, one in found.items() if name != "dags"} == {CheckState.OK}, found
    assert found["dags"].state is CheckState.WARNING, "the DAGs of frazil are missing here"
    assert found.keys() == {"airflow", "scheduler", "dag-processor", "triggerer", "pool", "connection", "dags"}
    without = {**airflow.environment(), "FRAZIL_SPARK_POOL": "nowhere", "FRAZIL_WRITER_QUEUE": "writers"}
    wrong = {one.subject: one for one in doctor.check_airflow(tmp_path, without) if one.state is CheckState.WRONG}
    assert wrong.keys() == {"pool", "triggerer"}
    home = airflow.environment()["AIRFLOW_HOME"]
    assert wrong["pool"].fix == f'AIRFLOW_HOME={home} airflow pools set nowhere 1 "Spark applications"'


def test_a_wrong_password_is_refused(airflow: EmbeddedAirflow) -> None:
    with pytest.raises(EnvironmentUnusable, match="401"):
        AirflowClient(airflow.url, user="admin", password="guess").token()


def test_a_dag_that_never_appears_is_reported(airflow: EmbeddedAirflow) -> None:
    with pytest.raises(EnvironmentUnusable, match=r"the DAG nowhere did not appear within 1 s\. Airflow has no import"):
        AirflowApi.of(airflow).wait_for_dag("nowhere", timeout_s=1)


@pytest.mark.rotates(2)
def test_a_killed_component_comes_back_and_the_others_stay(airflow: EmbeddedAirflow) -> None:
    before = {component: airflow.server(component) for component in COMPONENTS}
    airflow.kill("triggerer")
    assert airflow.server("triggerer") is None
    restarted_at = datetime.now(UTC)
    airflow.start_component("triggerer")
    eventually(
        lambda: (airflow.client().health()["triggerer"]["latest_triggerer_heartbeat"] or "") > restarted_at.isoformat(),
        within_s=60,
    )
    after = {component: airflow.server(component) for component in COMPONENTS}
    assert {c for c in COMPONENTS if before[c] != after[c]} == {"triggerer"}
