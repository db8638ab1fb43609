"""The cost in Airflow of an hour's audits and maintenance of many healthy streams.

`python -m bench.dags_of_many_streams [--streams 200]`

Declares the streams, each with a table of two batches. Runs each audit and maintenance DAG once, in this process, in an
Airflow without a scheduler. For audits and for maintenance, prints the DAG runs, the task instances that ran, and their
CPU seconds (user and system). Also prints the cost of parsing the DAG file, which each task's process repeats in a real
Airflow. Does not count the scheduler, the API server, or the start of task processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.dags import in_airflow

CHECKOUT = Path(__file__).resolve().parents[1]
STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{at: timestamptz}}
event-time: at
maintenance: {{orphans: off}}
"""
FILES = {"audits": "frazil_audit", "maintenance": "frazil_maintenance"}
"""Prefixes of DAG ids, by file of `dags/`."""


def declare(folder: Path, streams: int) -> None:
    """Declare streams with a batch in this hour and a batch in the last complete hour."""
    from frazil.spec.load import load_stream  # after FRAZIL_HOME is set
    from tests.made_batches import MadeStream

    folder.mkdir()
    for number in range(streams):
        file = folder / f"s{number:03}.yaml"
        file.write_text(STREAM.format(name=file.stem))
        made = MadeStream(load_stream(file), time.time_ns() // 1_000_000, partitions=2)
        for batch in range(2):
            made.land(dict.fromkeys(range(2), (batch * 100, (batch + 1) * 100)))


def measure(file: str, prefix: str) -> None:
    from airflow.dag_processing.dagbag import DagBag  # after AIRFLOW_HOME is set

    begin = time.process_time()
    bag = DagBag(str(CHECKOUT / "dags" / f"{file}.py"))
    parsed_s = time.process_time() - begin
    found = [dag for dag_id, dag in bag.dags.items() if dag_id.startswith(prefix)]
    for dag in found:
        dag.deadline = None  # `dag.test()` cannot read what the folder's stored DAG has of one
    begin, ran = time.process_time(), [ran_tasks(dag) for dag in found]
    spent_s = time.process_time() - begin
    print(f"{file}: {len(found)} runs, {sum(ran)} tasks, {spent_s:.1f} s of CPU; parsing the file {parsed_s:.2f} s")


def ran_tasks(dag: Any) -> int:
    """Run a DAG. Return the number of task instances for which Airflow would start a process."""
    from airflow.utils.session import create_session

    done = dag.test()
    with create_session() as session:
        instances = done.get_task_instances(session=session)
        assert not any(str(ti.state) == "failed" for ti in instances), [(ti.task_id, ti.state) for ti in instances]
        return sum(ti.pid is not None for ti in instances)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="frazil-dags-") as name:
        root = Path(name)
        os.environ |= {
            "FRAZIL_HOME": str(root / "home"),
            "FRAZIL_STREAMS": str(root / "streams"),
            "AIRFLOW_HOME": str(root / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        }
        declare(root / "streams", options.streams)
        # Airflow writes its log to the standard output.
        kept = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout = os.fdopen(kept, "w", buffering=1)
        from airflow.dag_processing.bundles.manager import DagBundlesManager  # after AIRFLOW_HOME is set

        in_airflow.make_database()
        in_airflow.store_dags()
        # `dag.test()` would store the whole folder again for each DAG.
        with patch.object(DagBundlesManager, "get_all_dag_bundles", lambda _: []):
            for file, prefix in FILES.items():
                measure(file, prefix)


if __name__ == "__main__":
    main()
