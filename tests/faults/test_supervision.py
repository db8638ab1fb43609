"""A real Airflow supervises real writer processes, despite kills, marked tasks and pauses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.dev.airflow import EmbeddedAirflow
from frazil.host.heartbeat import Heartbeat
from frazil.host.launcher import Observation, ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.processes import is_alive
from tests import polling
from tests.airflow_api import AirflowApi, eventually

DAG_FILE = '''
"""The DAGs of the streams under test, as dags/writers.py makes them, with another application."""

import os

from frazil.airflow import health_dag, writer_dags

globals().update(writer_dags(os.environ["FRAZIL_STREAMS"], application=os.environ["FRAZIL_TEST_APPLICATION"]))
globals().update(writer_dags(os.environ["FRAZIL_TEST_REAL"], application=os.environ["FRAZIL_TEST_WRITER"]))
health = health_dag(os.environ["FRAZIL_TEST_REAL"])
health.is_paused_upon_creation = True
'''
SPEC = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{ts: timestamptz not null}}
event-time: ts
commit: {{interval: {interval}}}
"""
STREAMS = ("killed", "restarts", "marked", "cleared", "paused", "changed", "refused", "removed", "broken")


class SupervisedStream:
    """One stream: its declaration, its DAG, and its writer as its run folder shows it."""

    def __init__(self, name: str, *, home: Path, streams: Path, airflow: AirflowApi) -> None:
        self.name, self.home, self.file = name, home, streams / f"{name}.yaml"
        self.airflow, self.dag_id = airflow, f"frazil_writer_{name}"
        self.launcher = LocalLauncher(name, folder=home / "streams" / name)
        self.launcher.folder.mkdir(parents=True, exist_ok=True)

    def declare(self, interval: str = "60s") -> None:
        self.file.write_text(SPEC.format(name=self.name, interval=interval))

    def order(self, **orders: Any) -> None:
        """Tell the fake writer what to do; see its module."""
        (self.home / f"orders-{self.name}.json").write_text(json.dumps(orders))

    def observe(self) -> Observation:
        return self.launcher.observe()

    @property
    def pid(self) -> int:
        """Return the pid of the running writer that has committed; 0 if none has."""
        seen = self.observe()
        heartbeat = Heartbeat.read(self.launcher.folder)
        committed = heartbeat is not None and (heartbeat.batch or 0) > 0 and not heartbeat.error
        writer = seen.launch.writer if seen.launch else None
        return (
            writer.pid if writer and committed and heartbeat and heartbeat.pid == writer.pid and is_alive(writer) else 0
        )

    def command(self, verb: str, *options: str) -> None:
        """Run `frazil VERB STREAM` like a user."""
        frazil = [str(Path(sys.executable).with_name("frazil")), verb, self.name, "--streams", str(self.file.parent)]
        subprocess.run([*frazil, *options], check=True, env={**os.environ, "FRAZIL_HOME": str(self.home)})

    def runs(self) -> list[dict[str, Any]]:
        return self.airflow.runs(self.dag_id)

    def task(self, run: dict[str, Any]) -> dict[str, Any]:
        (task,) = self.airflow.tasks(self.dag_id, run["dag_run_id"])
        return task

    def shown(self, run: dict[str, Any]) -> dict[str, Any]:
        """The state that the task shows without its log; empty before the first."""
        path = f"/api/v2/dags/{self.dag_id}/dagRuns/{run['dag_run_id']}/taskInstances/write/xcomEntries"
        entries = self.airflow.call("GET", path)["xcom_entries"]
        if all(entry["key"] != "frazil_state" for entry in entries):
            return {}
        value = self.airflow.call("GET", f"{path}/frazil_state")["value"]
        return dict(json.loads(value) if isinstance(value, str) else value)

    def log(self, run: dict[str, Any]) -> str:
        """The log of the task's latest try; empty before the first."""
        return self.airflow.log(self.dag_id, run["dag_run_id"], "write") if self.task(run)["try_number"] else ""


@pytest.fixture(scope="module")
def airflow(shared_airflow: EmbeddedAirflow) -> Iterator[EmbeddedAirflow]:
    """Airflow with a DAG for each stream under test; it ends with every writer that it launched."""
    root = shared_airflow.home.parent
    for name in STREAMS:
        (root / "streams" / f"{name}.yaml").write_text(SPEC.format(name=name, interval="60s"))
    (root / "dags" / "writers.py").write_text(DAG_FILE)
    try:
        yield shared_airflow
    finally:
        shared_airflow.stop()
        for folder in (root / "frazil" / "streams").glob("*"):
            LocalLauncher(folder.name, folder=folder).stop(force=True)


@pytest.fixture(scope="module")
def client(airflow: EmbeddedAirflow) -> AirflowApi:
    return AirflowApi.of(airflow)


@pytest.fixture(scope="module")
def stream(airflow: EmbeddedAirflow, client: AirflowApi) -> Callable[[str], SupervisedStream]:
    """A stream whose writer runs, and has committed a batch."""
    root = airflow.home.parent

    def running(name: str) -> SupervisedStream:
        found = SupervisedStream(name, home=root / "frazil", streams=root / "streams", airflow=client)
        eventually(lambda: found.pid, within_s=120)
        return found

    return running


@pytest.fixture(scope="module")
def removed(stream: Any) -> SupervisedStream:
    """A stream whose declaration was removed while its writer ran."""
    removed: SupervisedStream = stream("removed")
    # A folder without any file is as a volume that is not mounted, also where this test runs alone.
    removed.file.with_name("beside.yaml").write_text(removed.file.read_text().replace("removed", "beside"))
    removed.file.unlink()
    return removed


@pytest.fixture(scope="module")
def refused(stream: Any) -> SupervisedStream:
    """A stream whose writer has met what needs attention."""
    refused: SupervisedStream = stream("refused")
    refused.order(exit=11, error="OffsetGap: refused-0 lost offsets 5 to 9; frazil reset refused --to earliest")
    return refused


@pytest.fixture(scope="module", autouse=True)
def begun(removed: SupervisedStream, refused: SupervisedStream) -> None:
    """Start first what takes minutes to end: Airflow detects it while the other tests run."""


def test_a_killed_writer_runs_again_within_ten_seconds_and_its_task_stays_deferred(stream: Any) -> None:
    killed = stream("killed")
    (run,) = killed.runs()
    eventually(lambda: killed.task(run)["state"] == "deferred")
    before = killed.pid
    os.kill(before, signal.SIGKILL)
    since = time.monotonic()
    eventually(lambda: killed.pid not in {0, before}, within_s=10, every_s=polling.POLL_S)
    print(f"\nkilled to committing again: {time.monotonic() - since:.1f} s")
    assert [r["dag_run_id"] for r in killed.runs()] == [run["dag_run_id"]]
    eventually(lambda: "signal 9" in killed.log(run))
    eventually(lambda: f"fake writer {killed.pid} starts" in killed.log(run))


@pytest.mark.rotates(2)
def test_a_task_marked_failed_stops_its_stream_until_it_is_resumed(stream: Any) -> None:
    marked = stream("marked")
    (run,) = marked.runs()
    eventually(lambda: marked.task(run)["state"] == "deferred")
    pid = marked.pid
    marked.airflow.mark_task(marked.dag_id, run["dag_run_id"], "write", "failed")
    eventually(lambda: marked.observe().process is ProcessState.ENDED)
    assert [e.code for e in marked.observe().exits] == [0], "the current batch was committed"
    holding = eventually(lambda: (runs := marked.runs()) and len(runs) == 2 and runs[1])
    log = eventually(lambda: (text := marked.log(holding)) and "hold (paused)" in text and text)
    assert "marked failed" in log
    assert "frazil resume" in log
    assert marked.pid == 0
    marked.command("resume")
    eventually(lambda: marked.pid not in {0, pid})
    assert len(marked.runs()) == 2


def test_a_cleared_task_is_replaced_by_a_new_writer_after_the_current_batch(stream: Any) -> None:
    cleared = stream("cleared")
    (run,) = cleared.runs()
    eventually(lambda: cleared.task(run)["state"] == "deferred")
    pid = cleared.pid
    cleared.airflow.clear(cleared.dag_id, run["dag_run_id"])
    eventually(lambda: cleared.pid not in {0, pid})
    assert [(e.code, e.stopped_for) for e in cleared.observe().exits] == [(0, "requested")]
    eventually(lambda: cleared.task(run)["state"] == "deferred")
    assert len(cleared.runs()) == 1


@pytest.mark.rotates(2)
def test_pause_and_resume_work_from_the_command_line(stream: Any) -> None:
    paused = stream("paused")
    pid = paused.pid
    paused.command("pause", "--reason", "Kafka upgrade")
    eventually(lambda: paused.observe().process is ProcessState.ENDED)
    (run,) = paused.runs()
    eventually(lambda: (reported := paused.shown(run)).get("state") == "paused" and "Kafka upgrade" in reported["says"])
    eventually(lambda: "hold (paused)" in (text := paused.log(run)) and "Kafka upgrade" in text)
    assert paused.observe().exits[-1].code == 0
    paused.command("resume")
    eventually(lambda: paused.pid not in {0, pid})
    second = paused.pid
    paused.command("restart")
    eventually(lambda: paused.pid not in {0, second})
    assert [e.code for e in paused.observe().exits] == [0, 0]


def test_a_changed_spec_restarts_the_writer_gracefully(stream: Any) -> None:
    changed = stream("changed")
    pid, before = changed.pid, changed.observe().launch.spec_fingerprint
    changed.declare(interval="30s")
    eventually(lambda: changed.pid not in {0, pid})
    assert changed.observe().launch.spec_fingerprint != before
    assert [(e.code, e.stopped_for) for e in changed.observe().exits] == [(0, "spec changed")]


@pytest.mark.rotates(2)
def test_an_exit_that_needs_attention_fails_the_task_once_and_the_next_run_holds(refused: SupervisedStream) -> None:
    first = refused.runs()[0]
    eventually(lambda: refused.task(first)["state"] == "failed")
    assert "OffsetGap: refused-0 lost offsets 5 to 9" in refused.log(first)
    assert (refused.shown(first)["state"], "OffsetGap" in refused.shown(first)["says"]) == ("given up", True)
    second = eventually(lambda: (runs := refused.runs()) and len(runs) == 2 and runs[1])
    eventually(lambda: "hold (needs attention)" in refused.log(second))
    launches = len(refused.observe().exits)
    refused.airflow.clear(refused.dag_id, second["dag_run_id"])
    eventually(lambda: len(refused.observe().exits) == launches + 1)
    third = eventually(lambda: (runs := refused.runs()) and len(runs) == 3 and runs[2])
    eventually(lambda: "hold (needs attention)" in refused.log(third))
    assert refused.task(second)["state"] == "failed"
    assert len(refused.observe().exits) == launches + 1
    refused.order()
    refused.command("resume")
    eventually(lambda: refused.pid)


def test_a_removed_stream_stops_after_the_current_batch(removed: SupervisedStream) -> None:
    eventually(lambda: removed.observe().process is ProcessState.ENDED)
    run = removed.runs()[0]  # Airflow may begin another until it drops the DAG
    eventually(lambda: removed.airflow.run(removed.dag_id, run["dag_run_id"])["state"] == "success")
    assert [(end.code, end.stopped_for) for end in removed.observe().exits] == [(0, "removed")]


@pytest.mark.rotates(2)
def test_a_broken_declaration_leaves_its_writer_running_and_reports_the_error(stream: Any, client: AirflowApi) -> None:
    broken = stream("broken")
    pid = broken.pid
    broken.file.write_text(broken.file.read_text().replace("event-time: ts", "event-tmie: ts"))
    page = eventually(
        lambda: (
            (text := client.call("GET", f"/api/v2/dags/{broken.dag_id}/details")["doc_md"])
            and "event-tmie" in text
            and text
        )
    )
    assert str(broken.file) in page
    assert client.import_errors() == []
    assert broken.pid == pid


@pytest.mark.rotates(3, turn=1)
def test_scheduler_and_triggerer_may_die_and_the_writer_does_not_notice(stream: Any, airflow: EmbeddedAirflow) -> None:
    restarts = stream("restarts")
    pid = restarts.pid
    (run,) = restarts.runs()
    seen = "keep (advancing)"
    eventually(lambda: restarts.log(run).count(seen) == 1)
    # Airflow takes up to five minutes to notice a task that died with its scheduler.
    transit = "/api/v2/dags/~/dagRuns/~/taskInstances?state=scheduled&state=queued&state=running"
    eventually(lambda: not restarts.airflow.call("GET", transit)["task_instances"])
    for component in ("scheduler", "triggerer"):
        airflow.kill(component)
        assert airflow.server(component) is None
    for component in ("scheduler", "triggerer"):
        airflow.start_component(component)
    airflow.wait_until_healthy()
    eventually(lambda: restarts.log(run).count(seen) >= 2, within_s=150)
    assert restarts.pid == pid
    assert len(restarts.observe().exits) == 0
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: restarts.pid not in {0, pid})


CIRCUIT = """
commit: {interval: 1s}
dead-letters: {circuit: {share: 50%, at-least: 20}}
maintenance: {alerts: {dead-letters-per-minute: 5}}
"""


@pytest.mark.soak
def test_an_open_circuit_breaker_fails_the_task_with_samples_and_two_commands_resolve_it(  # noqa: PLR0913, PLR0917
    airflow: EmbeddedAirflow,
    client: AirflowApi,
    kafka: Any,
    topic: Any,
    declared_stream: Any,
    events: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = airflow.home.parent
    monkeypatch.setenv("FRAZIL_HOME", str(root / "frazil"))
    records = declared_stream(root / "real", name="tripped", topic=topic(2), bootstrap=kafka.bootstrap)
    records.declare(CIRCUIT)
    tripped = SupervisedStream("tripped", home=root / "frazil", streams=records.streams, airflow=client)
    client.wait_for_dag(tripped.dag_id, timeout_s=60)

    def opened(number: int) -> str:
        """The log of the stream's n-th run, which the circuit failed, once the next run holds."""
        failed = eventually(lambda: (runs := tripped.runs()) and len(runs) == number + 1 and runs[-2])
        eventually(lambda: "hold (needs attention)" in tripped.log(tripped.runs()[-1]))
        assert tripped.task(failed)["state"] == "failed"
        return tripped.log(failed)

    def health() -> tuple[str, str]:
        """Return the state and result of the task `alerts` in a new run of the health DAG."""
        run = client.trigger("frazil_health")["dag_run_id"]
        eventually(lambda: client.run("frazil_health", run)["state"] in {"success", "failed"})
        states = {task["task_id"]: task["state"] for task in client.tasks("frazil_health", run)}
        return states["alerts"], client.log("frazil_health", run, "measure")

    client.set_paused("frazil_health", False)
    records.produce(events(range(10)))
    eventually(lambda: records.has_rows(10))
    records.produce([b"secret nonsense %d" % n for n in range(40)])
    log = opened(1)
    for said in ("40 of 40 records (100.0 %)", "Reasons: NotAnObject 40", f"First at {records.topic}[0]@10"):
        assert said in log
    assert "secret" not in log
    assert records.has_rows(10)
    state, said = health()
    assert state == "failed"
    assert "active: stream tripped has no writer, and its supervisor gave up: the writer ended" in said
    assert "`frazil resume tripped --accept` stores its records up to now as dead letters" in said

    tripped.command("resume", "--accept", "--reason", "the sensors were repaired")
    records.produce([*events(range(10, 110)), *(b"more nonsense %d" % n for n in range(30))])
    eventually(lambda: records.has_rows(110))
    assert len(tripped.runs()) == 2, "the run that held goes on"
    eventually(lambda: records.table("_dead_letters").scan().to_arrow().num_rows == 70)
    state, said = health()
    assert state == "failed"
    assert "resolved: stream tripped: the alert writer is over" in said
    # The stream is young, so the period is shorter than five minutes. The accepted records do not count.
    assert re.search(r"stream tripped produces \d+ NotAnObject dead letters a minute, more than 5: 30 in \d min", said)
    assert f"Examples: {records.topic}[0]@150, {records.topic}[0]@151, {records.topic}[0]@152" in said

    records.produce([b"other nonsense %d" % n for n in range(40)])
    assert f"First at {records.topic}[0]@180" in opened(2)
    tripped.command("reset", "--to", "latest", "--yes")
    records.produce(events(range(110, 120)))
    eventually(lambda: records.has_rows(120))
    assert len(tripped.runs()) == 3
    assert records.ids() == list(range(120))
    assert records.table("_dead_letters").scan().to_arrow().num_rows == 70, "nobody wants the last forty"
