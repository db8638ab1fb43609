"""Airflow with its own AIRFLOW_HOME, because importing Airflow writes a configuration there; and parsed DAGs."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dags import in_airflow
from tests.dags.in_airflow import CHECKOUT, AirflowProcess

if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="frazil-airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)


class DagRunner:
    """An Airflow without a scheduler, in its own process and home. It runs the checkout's DAGs one at a time."""

    def __init__(self, home: Path, streams: Path, database: Path) -> None:
        self._process = AirflowProcess(home, database=database, FRAZIL_STREAMS=str(streams))
        self.end = self._process.end

    def run(
        self,
        dag_id: str,
        *,
        conf: dict[str, Any] | None = None,
        moment: datetime | None = None,
        later: timedelta = timedelta(0),
    ) -> dict[str, Any]:
        """See `in_airflow.run`."""
        return dict(self._process.call(in_airflow.run, dag_id, conf, moment, later=later))

    def pause(self, dag_id: str, *, paused: bool) -> None:
        """See `in_airflow.pause`."""
        self._process.call(in_airflow.pause, dag_id, paused)

    def doctor_of_dags(self) -> list[str]:
        """See `in_airflow.doctor_of_dags`."""
        return list(self._process.call(in_airflow.doctor_of_dags))

    def put(self, asset: str, **what: Any) -> None:
        """See `in_airflow.put`."""
        self._process.call(in_airflow.put, asset, **what)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let triggers that wait for windows fire at once. Otherwise they give Airflow time to notice the deferral."""
    from frazil.airflow.partitions import sensor  # needs AIRFLOW_HOME

    monkeypatch.setattr(sensor, "MIN_DEFERRAL_S", 0.0)


@pytest.fixture
def dag_runner(tmp_path: Path, airflow_database: Path) -> Iterator[Callable[..., DagRunner]]:
    """`dag_runner(streams)` starts a `DagRunner` for a folder of declared streams."""
    started: list[DagRunner] = []

    def start(streams: Path) -> DagRunner:
        started.append(DagRunner(tmp_path / f"airflow-{len(started)}", streams, airflow_database))
        return started[-1]

    yield start
    for runner in started:
        runner.end()


def _parse(dags: Path, *, home: Path, streams: Path | None = None) -> dict[str, Any]:
    """Parse a folder in a separate process, as Airflow's DAG processor does."""
    process = AirflowProcess(home, FRAZIL_HOME=str(home / "frazil"), FRAZIL_STREAMS=str(streams or ""))
    parsed = dict(process.call(in_airflow.parse, str(dags)))
    process.end()
    print(f"parsed {len(parsed['dags'])} DAGs in {parsed['cpu_s']:.2f} s of CPU")
    return parsed


@pytest.fixture(scope="session")
def parse() -> Callable[..., dict[str, Any]]:
    """`parse(folder, home=…, streams=…)` returns facts about the DAGs of a folder."""
    return _parse


@pytest.fixture(scope="session")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Facts about the checkout's own DAGs."""
    return _parse(CHECKOUT / "dags", home=tmp_path_factory.mktemp("airflow"))
