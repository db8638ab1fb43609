"""Airflow's own API server, with the checkout's DAGs in its database and no scheduler; and people who are signed in."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.dev.process import choose_free_port
from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess
from tests.polling import eventually


@dataclass(frozen=True)
class ApiServer:
    """The server's address and its process: `process.call` works next to it."""

    url: str
    process: AirflowProcess

    def cookie(self, role: str) -> dict[str, Any]:
        """What the browser of a person of this role has."""
        return {"name": "_token", "value": self.process.call(in_airflow.token, role), "url": self.url}

    def answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/api/v2/version", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


@contextmanager
def api_server(home: Path, environment: Mapping[str, str], *, without: str) -> Iterator[ApiServer]:
    """Serve every DAG of the checkout, for the streams of `environment`, and the alerts that stand.

    `without` names a stream that is not measured, because its catalog hangs.
    """
    port = choose_free_port()
    url = f"http://127.0.0.1:{port}"
    secret = {"AIRFLOW__API_AUTH__JWT_SECRET": "s" * 64, "AIRFLOW__API__BASE_URL": url}
    process = AirflowProcess(home, **environment, **secret)
    process.call(in_airflow.make_database)
    process.call(in_airflow.store_dags)
    process.call(in_airflow.unpause, "frazil_writer_returns", "frazil_writer_inventory")
    process.call(in_airflow.put_heartbeats, **in_airflow.ALIVE)
    process.call(in_airflow.measure_health, environment["FRAZIL_STREAMS"], without=without)
    process.call(in_airflow.serve, port)
    server = ApiServer(url, process)
    eventually(server.answers, within_s=60, every_s=0.2)
    yield server
    process.end()
