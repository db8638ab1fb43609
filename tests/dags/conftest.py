"""An Airflow home of the tests' own, for importing Airflow makes its configuration there; and DAG folders, parsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="frazil-airflow-"))

CHECKOUT = Path(__file__).resolve().parents[2]
PARSE = """
import json, sys, time, warnings
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag

before, cpu = set(sys.modules), time.process_time()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    bag = DagBag(sys.argv[1])
print("PARSED", json.dumps({
    "cpu_s": time.process_time() - cpu,
    "errors": bag.import_errors,
    "warnings": [str(w.message) for w in caught] + [str(w) for found in bag.captured_warnings.values() for w in found],
    "loaded": sorted({name.split(".")[0] for name in set(sys.modules) - before}),
    "dags": {
        dag.dag_id: {
            "tasks": {t.task_id: type(t).__name__ for t in dag.tasks}, "tags": sorted(dag.tags), "doc": dag.doc_md,
            "max_active_runs": dag.max_active_runs, "timetable": type(dag.timetable).__name__,
            "timeout": str(dag.dagrun_timeout), "catchup": dag.catchup,
            "schedule": getattr(dag.timetable, "expression", None), "params": dag.params.dump(),
            "outlets": {t.task_id: [asset.name for asset in t.outlets] for t in dag.tasks if t.outlets},
        }
        for dag in bag.dags.values()
    },
}))
"""

RUN = """
import json, sys
from datetime import datetime
from airflow.utils import db
db.initdb()
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.asset_state_store import AssetStateStoreModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select

def put(asset, events=(), store={}, queued=False):  # what others may put into Airflow
    with create_session() as session:
        asset = session.scalars(select(AssetModel).where(AssetModel.name == asset)).one()
        for extra, key in events:
            session.add(AssetEvent(asset_id=asset.id, extra=extra, partition_key=key))
        for key, value in store.items():
            session.merge(AssetStateStoreModel(asset_id=asset.id, key=key, value=json.dumps(value)))
        if queued:
            run = DagRun(dag_id="reader", run_id="waits", run_type="asset_triggered", state="queued")
            session.add(run)
            run.consumed_asset_events.extend(session.scalars(select(AssetEvent).where(AssetEvent.asset_id == asset.id)))

dags = DagBag(sys.argv[1]).dags
for line in sys.stdin:
    dag_id, conf, moment = json.loads(line)
    if not dag_id:
        put(**conf)
        print("RAN {}", flush=True)
        continue
    at = {"logical_date": datetime.fromisoformat(moment)} if moment else {}
    run = dags[dag_id].test(run_conf=conf, **at)
    with create_session() as session:
        found = session.scalars(select(AssetEvent).order_by(AssetEvent.id))
        events = [(e.asset.name, e.partition_key, e.extra) for e in found]
        tasks = {ti.task_id: str(ti.state) for ti in run.get_task_instances(session=session)}
    print("RAN", json.dumps({"state": str(run.state), "tasks": tasks, "events": events}), flush=True)
"""


class DagRunner:
    """An Airflow without a scheduler, in a process and a home of its own: it runs the checkout's DAGs one by one."""

    def __init__(self, home: Path, streams: Path) -> None:
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])),
            "FRAZIL_STREAMS": str(streams),
        }
        home.mkdir(exist_ok=True)
        self._log = home / "runner.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(CHECKOUT / "dags")],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def run(self, dag_id: str, *, conf: dict[str, Any] | None = None, moment: datetime | None = None) -> dict[str, Any]:
        """Run a DAG to its end: its state, its tasks' states by id, and all asset events so far, oldest first."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([dag_id, conf, moment and moment.isoformat()]) + "\n")
        self._process.stdin.flush()
        said = []
        for line in self._process.stdout:
            if line.startswith("RAN "):
                ran: dict[str, Any] = json.loads(line.removeprefix("RAN "))
                return ran
            said.append(line)
        raise AssertionError("".join(said)[-3000:] + self._log.read_text()[-3000:])

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        self._process.wait(30)


@pytest.fixture
def dag_runner(tmp_path: Path) -> Iterator[Callable[..., DagRunner]]:
    """`dag_runner(streams)` starts one on a folder of declared streams."""
    started: list[DagRunner] = []

    def start(streams: Path) -> DagRunner:
        started.append(DagRunner(tmp_path / f"airflow-{len(started)}", streams))
        return started[-1]

    yield start
    for runner in started:
        runner.end()


def _parse(dags: Path, *, home: Path, streams: Path | None = None) -> dict[str, Any]:
    """Parse a folder as Airflow's DAG processor does, in a process of its own."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PYTHONPATH": str(CHECKOUT),
        "FRAZIL_HOME": str(home / "frazil"),
    }
    environment.pop("FRAZIL_STREAMS", None)
    if streams is not None:
        environment["FRAZIL_STREAMS"] = str(streams)
    command = [sys.executable, "-W", "error::DeprecationWarning:frazil", "-c", PARSE, str(dags)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("PARSED "))
    parsed: dict[str, Any] = json.loads(line.removeprefix("PARSED "))
    print(f"parsed {len(parsed['dags'])} DAGs in {parsed['cpu_s']:.2f} s of CPU")
    return parsed


@pytest.fixture(scope="session")
def parse() -> Callable[..., dict[str, Any]]:
    """`parse(folder, home=…, streams=…)` says what a DAG folder comes to."""
    return _parse


@pytest.fixture(scope="session")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkout's own DAG folder."""
    return _parse(CHECKOUT / "dags", home=tmp_path_factory.mktemp("airflow"))
