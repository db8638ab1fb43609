"""Airflow's own API server, with signed-in users. Its database has the checkout's DAGs; there is no scheduler."""

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
    """The server's address and process. `process.call` runs a function in the server's process."""

    url: str
    process: AirflowProcess

    def cookie(self, role: str) -> dict[str, Any]:
        """Return the session cookie of a user with this role, for a browser."""
        return {"name": "_token", "value": self.process.call(in_airflow.token, role), "url": self.url}

    def answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/api/v2/version", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


@contextmanager
def api_server(
    home: Path, environment: Mapping[str, str], *, without: str, database: Path | None = None
) -> Iterator[ApiServer]:
    """Serve all DAGs of the checkout and the current alerts, for the streams of `environment`.

    `without` names a stream that is not measured, because its catalog hangs. `database` is an empty one, to be copied.
    """
    port = choose_free_port()
    url = f"http://127.0.0.1:{port}"
    secret = {"AIRFLOW__API_AUTH__JWT_SECRET": "s" * 64, "AIRFLOW__API__BASE_URL": url}
    process = AirflowProcess(home, database=database, **environment, **secret)
    if database is None:
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
