"""Airflow on PostgreSQL, with two of each component that can have a replica, and a host for each triggerer.

All tests share one start. A host is a FRAZIL_HOME: writers on one host cannot see the other's run folders.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from frazil.dev import process
from frazil.dev.airflow import EmbeddedAirflow
from frazil.dev.postgres import EmbeddedPostgres
from frazil.errors import Fenced
from frazil.host.launcher import ProcessState
from frazil.host.local import LocalLauncher
from tests.airflow_api import AirflowApi
from tests.polling import eventually

CHECKOUT = Path(__file__).resolve().parents[2]
DAG_FILE = '''
"""Writers as dags/writers.py declares them: two real ones, each with its queue, and one that does as it is told."""

import os

from frazil.airflow import writer_dags

ROOT, TESTS = os.environ["FRAZIL_TEST_ROOT"], os.environ["FRAZIL_TEST_FOLDER"]

globals().update(
    writer_dags(
        ROOT + "/streams",
        application=TESTS + "/writer_without_jvm.py",
        queue={"anywhere": "writers", "pinned": "host-two"},
    )
)
globals().update(writer_dags(ROOT + "/told", application=TESTS + "/unit/host/fake_writer.py", queue="host-two"))
'''
REPORT = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{ts: timestamptz not null}}
event-time: ts
"""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


class Deployment:
    """The first scheduler and DAG processor are `EmbeddedAirflow`'s, whose triggerer serves no queue."""

    def __init__(self, airflow: EmbeddedAirflow, root: Path) -> None:
        self.airflow, self.root = airflow, root

    @property
    def client(self) -> AirflowApi:
        return AirflowApi.of(self.airflow)

    def start(self, name: str, *command: str, host: str) -> None:
        """Start a component under a name of its own, on a host."""
        environment = {**self.airflow.environment(), "FRAZIL_HOME": str(self.root / host)}
        process.start(
            name,
            [sys.executable, "-m", "airflow", *command],
            records=self.airflow.home,
            log=self.airflow.home / "logs" / f"{name}.log",
            environment=environment,
        )

    def triggerer(self, host: str) -> None:
        self.start(f"triggerer-{host}", "triggerer", "--skip-serve-logs", "--queues", f"writers,host-{host}", host=host)

    def kill(self, name: str) -> None:
        found = process.find_server(name, self.airflow.home)
        assert found is not None, name
        process.kill(found)

    def launcher(self, stream: str, host: str) -> LocalLauncher:
        return LocalLauncher(stream, folder=self.root / host / "streams" / stream)

    def runs_on(self, stream: str, host: str) -> int:
        """Return the pid of the stream's writer on a host; 0 if none runs there."""
        seen = self.launcher(stream, host).observe()
        return seen.launch.writer.pid if seen.process is ProcessState.RUNNING and seen.launch.writer else 0

    def has_taken_over(self, stream: str, host: str) -> bool:
        """Whether the stream's writer on a host has an epoch."""
        seen = self.launcher(stream, host).observe()
        return seen.process is ProcessState.RUNNING and seen.heartbeat is not None and seen.heartbeat.epoch is not None

    def task(self, stream: str) -> dict[str, Any]:
        """The task of the stream's latest run."""
        dag_id = f"frazil_writer_{stream}"
        (task,) = self.client.tasks(dag_id, self.client.runs(dag_id)[-1]["dag_run_id"])
        return task


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("highly-available")
    for name in ("streams", "told", "dags"):
        (root / name).mkdir()
    (root / "dags" / "writers.py").write_text(DAG_FILE)
    return root


@pytest.fixture(scope="module")
def deployment(root: Path, postgres: EmbeddedPostgres) -> Iterator[Deployment]:
    with closing(psycopg2.connect(postgres.uri.replace("+psycopg2", ""))) as connection:
        connection.autocommit = True
        for database in ("airflow", "iceberg"):
            connection.cursor().execute(f"create database {database}")
    base = postgres.uri.rpartition("/")[0]
    catalog = {"TYPE": "sql", "URI": f"{base}/iceberg", "WAREHOUSE": f"file://{root}/warehouse"}
    extra = {
        **{f"PYICEBERG_CATALOG__DEFAULT__{name}": value for name, value in catalog.items()},
        "FRAZIL_HOME": str(root / "scheduler"),
        "FRAZIL_TEST_ROOT": str(root),
        "FRAZIL_TEST_FOLDER": str(CHECKOUT / "tests"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"{base}/airflow",
        "AIRFLOW__TRIGGERER__QUEUES_ENABLED": "True",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }
    airflow = EmbeddedAirflow(root / "airflow", CHECKOUT, dags=root / "dags", extra=extra)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in catalog.items():
            patch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name}", value)
        made = Deployment(airflow, root)
        try:
            airflow.start()
            made.start("scheduler-two", "scheduler", "--skip-serve-logs", host="scheduler-two")
            made.start("dag-processor-two", "dag-processor", host="scheduler-two")
            yield made
        finally:
            airflow.stop()
            for folder in root.glob("*/streams/*"):
                if folder.is_dir():
                    LocalLauncher(folder.name, folder=folder).stop(force=True)


@pytest.fixture
def writers(root: Path, deployment: Deployment, kafka: Any, topic: Any, declared_stream: Any) -> Callable[[str], Any]:
    """`writers("anywhere")` is that stream, declared."""
    assert deployment.airflow.server("scheduler")
    return lambda name: declared_stream(root, name=name, topic=topic(2), bootstrap=kafka.bootstrap)


def test_every_record_lands_once_although_one_of_each_component_is_killed(
    deployment: Deployment, writers: Callable[[str], Any], events: Any
) -> None:
    anywhere, pinned = writers("anywhere"), writers("pinned")
    sent = 0

    def more_land(*streams: Any) -> None:
        """Check that newly produced records soon land in these tables."""
        nonlocal sent
        for stream in (anywhere, pinned):
            stream.produce(events(range(sent, sent + 100)), partitions=2)
        sent += 100
        for stream in streams:
            eventually(lambda stream=stream: stream.has_rows(sent), within_s=180)

    # The rule: a writer runs where a triggerer serves its queue.
    deployment.triggerer("one")
    first = eventually(lambda: deployment.runs_on("anywhere", "one"), within_s=180)
    more_land(anywhere)

    # A scheduler: the other goes on with the run that a person clears.
    deployment.kill("scheduler")
    client, dag_id = deployment.client, "frazil_writer_anywhere"
    (run,) = client.runs(dag_id)
    client.clear(dag_id, run["dag_run_id"])
    second = eventually(lambda: (pid := deployment.runs_on("anywhere", "one")) not in {0, first} and pid, within_s=180)
    assert [e.code for e in deployment.launcher("anywhere", "one").observe().exits] == [0]
    assert not deployment.runs_on("pinned", "one")
    deployment.triggerer("two")
    eventually(lambda: deployment.runs_on("pinned", "two"), within_s=180)
    more_land(anywhere, pinned)
    assert deployment.runs_on("anywhere", "one") == second, "a triggerer that joins takes nothing away"

    # A DAG processor: the other finds what is declared meanwhile.
    deployment.kill("dag-processor")
    (deployment.root / "told" / "told.yaml").write_text(REPORT.format(name="told"))
    client.wait_for_dag("frazil_writer_told", timeout_s=180)
    eventually(lambda: deployment.runs_on("told", "two"), within_s=180)

    # A triggerer and its host, as far as Airflow knows: the writer is there yet, and no one stops it.
    deployment.kill("triggerer-one")
    eventually(lambda: deployment.has_taken_over("anywhere", "two"), within_s=240)
    more_land(anywhere, pinned)
    eventually(lambda: deployment.launcher("anywhere", "one").observe().process is ProcessState.ENDED, within_s=180)
    assert deployment.launcher("anywhere", "one").observe().exits[-1].code == Fenced.exit_code
    assert not Path(f"/proc/{second}").exists()

    # The first host is back: what the second has, it keeps.
    deployment.airflow.start_component("scheduler")
    deployment.airflow.start_component("dag-processor")
    deployment.triggerer("one")
    kept = deployment.runs_on("anywhere", "two")
    deployment.airflow.wait_until_healthy()
    more_land(anywhere, pinned)
    assert deployment.runs_on("anywhere", "two") == kept

    # A writer whose only host is gone stays where it is: no other triggerer serves its queue.
    before = deployment.runs_on("pinned", "two")
    deployment.kill("triggerer-two")
    eventually(lambda: deployment.has_taken_over("anywhere", "one"), within_s=240)
    more_land(anywhere, pinned)
    assert deployment.runs_on("pinned", "two") == before
    assert not deployment.launcher("pinned", "one").folder.exists()

    for stream in (anywhere, pinned):
        assert stream.ids() == list(range(sent))


def test_a_run_that_fails_on_another_host_than_the_triggerers_fails_once(deployment: Deployment) -> None:
    """The worker is the scheduler's host, which cannot write into the run folder."""
    (deployment.root / "two").mkdir(exist_ok=True)
    orders = {"exit": 11, "error": "OffsetGap: refused-0 lost offsets 5 to 9"}
    (deployment.root / "two" / "orders-refused.json").write_text(json.dumps(orders))
    (deployment.root / "told" / "refused.yaml").write_text(REPORT.format(name="refused"))
    if process.find_server("triggerer-two", deployment.airflow.home) is None:
        deployment.triggerer("two")
    client, dag_id = deployment.client, "frazil_writer_refused"
    client.wait_for_dag(dag_id, timeout_s=180)

    def holds() -> bool:
        runs = client.runs(dag_id)
        if len(runs) < 2:
            return False
        log = client.log(dag_id, runs[1]["dag_run_id"], "write")
        return "hold (needs attention)" in log

    eventually(holds, within_s=300)
    assert len(client.runs(dag_id)) == 2


def test_two_dag_processors_make_one_version_of_each_dag(deployment: Deployment) -> None:
    for dag in deployment.client.dags():
        versions = deployment.client.call("GET", f"/api/v2/dags/{dag['dag_id']}/dagVersions")
        assert versions["total_entries"] == 1, dag["dag_id"]


def test_a_writer_that_is_killed_runs_again_on_its_host(deployment: Deployment) -> None:
    if process.find_server("triggerer-two", deployment.airflow.home) is None:
        deployment.triggerer("two")
    before = eventually(lambda: deployment.runs_on("pinned", "two"), within_s=180)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: deployment.runs_on("pinned", "two") not in {0, before}, within_s=120)
