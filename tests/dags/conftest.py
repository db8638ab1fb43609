"""An Airflow home of the tests' own, for importing Airflow makes its configuration there; and DAG folders, parsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
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


def _parse(dags: Path, *, home: Path, streams: Path | None = None) -> dict[str, Any]:
    """Parse a folder as Airflow's DAG processor does, in a process of its own."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PYTHONPATH": str(CHECKOUT),
    }
    environment.pop("FRAZIL_STREAMS", None)
    if streams is not None:
        environment["FRAZIL_STREAMS"] = str(streams)
    command = [sys.executable, "-W", "error::DeprecationWarning:frazil", "-c", PARSE, str(dags)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("PARSED "))
    parsed: dict[str, Any] = json.loads(line.removeprefix("PARSED "))
    print(f"parsed {len(parsed['dags'])} Dags in {parsed['cpu_s']:.2f} s of CPU")
    return parsed


@pytest.fixture(scope="session")
def parse() -> Callable[..., dict[str, Any]]:
    """`parse(folder, home=…, streams=…)` says what a DAG folder comes to."""
    return _parse


@pytest.fixture(scope="session")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkout's own DAG folder."""
    return _parse(CHECKOUT / "dags", home=tmp_path_factory.mktemp("airflow"))
