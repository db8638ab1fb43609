"""Airflow runs a writer in pods. Its host has neither Java nor a persistent folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.dev.airflow import EmbeddedAirflow
from frazil.home import home
from tests.faults.exactness import check_exact

from .conftest import Supervised
from .node import CHECKOUT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

DAG_FILE = """
import os

from frazil.airflow import writer_dags

globals().update(writer_dags(os.environ["FRAZIL_STREAMS"]))
"""


@pytest.fixture
def airflow(supervised: Supervised, tmp_path: Path) -> Iterator[EmbeddedAirflow]:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "writers.py").write_text(DAG_FILE)
    extra = {
        "PATH": supervised.environment["PATH"],
        "JAVA_HOME": "",
        "KUBECONFIG": supervised.environment["KUBECONFIG"],
        "FRAZIL_STREAMS": str(supervised.stream.streams),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }
    found = EmbeddedAirflow(tmp_path / "airflow", CHECKOUT, dags=dags, extra=extra)
    yield found
    found.stop()


def test_an_airflow_without_java_and_run_folder_runs_a_writer_and_a_new_host_follows_its_pod(
    supervised: Supervised, airflow: EmbeddedAirflow, events: Any, eventually: Any
) -> None:
    stream = supervised.stream
    stream.produce(events(range(1000)), partitions=4)
    assert not home().exists()
    airflow.start()
    eventually(lambda: stream.has_rows(1000), within_s=300)
    first = supervised.order()

    # Another host, whose FRAZIL_HOME is empty, follows the same pod.
    airflow.stop()
    for process in supervised.processes("write_stream.py", str(stream.streams)):
        process.kill()
    shutil.rmtree(home())
    stream.produce(events(range(1000, 2000)), partitions=4)
    eventually(lambda: stream.has_rows(2000), within_s=120)
    airflow.start()
    eventually(lambda: f"driver {first.submission}: the pod is running" in supervised.notices(), within_s=120)

    # The supervisor replaces a driver whose process was killed.
    for process in supervised.processes("frazil.spark_apps.drive_stream", first.id):
        process.kill()
    stream.produce(events(range(2000, 3000)), partitions=4)
    eventually(lambda: stream.has_rows(3000), within_s=300)
    assert supervised.order().id != first.id
    assert len(supervised.node.pods("driver")) == 1
    supervised.frazil("pause")
    eventually(lambda: supervised.node.pods("driver")[0]["status"]["phase"] == "Succeeded", within_s=120)
    check_exact(stream, range(3000))
