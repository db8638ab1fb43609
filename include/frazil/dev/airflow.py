"""An Airflow installation for development, the demo and tests: four components in separate sessions, with SQLite, on
loopback only.

A component that dies is *not* restarted. Log servers, which listen on every interface, are off: on one machine, the API
server reads the log files.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self, get_args

import httpx

from frazil import home as frazil_home
from frazil.dev import process
from frazil.errors import EnvironmentUnusable
from frazil.extras import require_module
from frazil.home import make_folder
from frazil.host import processes
from frazil.json_files import replace_json
from frazil.spark.jars import ensure_catalog_jars
from frazil.table.catalogs import configured_catalogs

Json = dict[str, Any]


class AirflowClient:
    """Calls the API of an Airflow as one user, and returns JSON. Raises EnvironmentUnusable if it refuses a call."""

    def __init__(self, url: str, *, user: str, password: str) -> None:
        self.url = url.rstrip("/")
        self._user, self._password = user, password
        self._token: str | None = None
        self._signing_in = threading.Lock()

    def token(self) -> str:
        with self._signing_in:
            if self._token is None:
                body = {"username": self._user, "password": self._password}
                answer = self._send("POST", "/auth/token", json=body)
                self._token = str(_read_response(answer, "POST", "/auth/token")["access_token"])
            return self._token

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        params: Mapping[str, str | int | bool] | None = None,
    ) -> Json:
        answer = self._send_with_token(method, path, json, params)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._token = None
            answer = self._send_with_token(method, path, json, params)
        return _read_response(answer, method, path)

    def health(self) -> Json:
        """Return the status and last heartbeat of each component. Needs no sign-in."""
        return _read_response(self._send("GET", "/api/v2/monitor/health"), "GET", "/api/v2/monitor/health")

    def _send_with_token(
        self, method: str, path: str, json: Mapping[str, Any] | None, params: Mapping[str, Any] | None
    ) -> httpx.Response:
        return self._send(method, path, json=json, params=params, headers={"Authorization": f"Bearer {self.token()}"})

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request over a new connection, because tests kill the API server."""
        try:
            return httpx.request(method, f"{self.url}{path}", timeout=30, trust_env=False, **request)
        except httpx.HTTPError as error:
            raise EnvironmentUnusable(f"Airflow at {self.url} does not answer {method} {path}: {error!r}") from error


def _read_response(answer: httpx.Response, method: str, path: str) -> Json:
    if answer.is_error:
        raise EnvironmentUnusable(f"Airflow refused {method} {path} with {answer.status_code}: {answer.text[:500]}")
    body: Json = answer.json() if answer.content else {}
    return body


Component = Literal["api-server", "scheduler", "dag-processor", "triggerer"]
COMPONENTS: tuple[Component, ...] = get_args(Component)

READY_TIMEOUT_S = 240
STOP_GRACE_S = 5
"""Time after which a component is killed: the scheduler waits for tasks, which wait for a stopped API server."""

SPARK_POOL = "frazil_spark"

_COMMANDS: dict[Component, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
_ROLES = {"admin": "admin", "op": "op", "viewer": "viewer"}


class EmbeddedAirflow(process.EmbeddedService):
    """An Airflow installation in the folder `home`. `extra` overrides environment variables."""

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        home: Path,
        checkout: Path,
        *,
        port: int | None = None,
        dags: Path | None = None,
        extra: Mapping[str, str] | None = None,
        spark_master: str = "local[2]",
    ) -> None:
        self.home = home.absolute()
        self._spark_master = spark_master
        self.checkout = checkout.absolute()
        self.port = port or process.last_port(self.home) or process.choose_free_port()
        self._dags = dags or self.checkout / "dags"
        self._secrets_file, self._passwords_file = self.home / "secrets.json", self.home / "passwords.json"
        self._spark_properties = self.home / "spark.conf"
        self._extra = dict(extra or {})

    @property
    def url(self) -> str:
        return f"http://{process.LOOPBACK}:{self.port}"

    @property
    def password(self) -> str:
        return self.password_for("admin")

    def password_for(self, user: str) -> str:
        """Return the password of `admin`, `op` or `viewer`, whose role has the same name."""
        self._make_secrets()
        return str(json.loads(self._passwords_file.read_text())[user])

    def client(self, user: str = "admin") -> AirflowClient:
        return AirflowClient(self.url, user=user, password=self.password_for(user))

    def log(self, component: Component) -> Path:
        return self.home / "logs" / f"{component}.log"

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW__") and k != "AIRFLOW_CONFIG"}
        path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
        python_path = os.pathsep.join(filter(None, [str(self.checkout), inherited.get("PYTHONPATH")]))
        streams = inherited.get("FRAZIL_STREAMS") or self.checkout / "include" / "streams"
        extra = {"properties-file": str(self._spark_properties)}
        connection = {"conn_type": "spark", "host": self._spark_master, "extra": extra}
        return {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),  # the environment overrides it
            "FRAZIL_SPARK_POOL": SPARK_POOL,
            **inherited,
            "PATH": path,
            "PYTHONPATH": python_path,
            "PYTHONUNBUFFERED": "1",
            "FRAZIL_HOME": str(frazil_home.home()),
            "FRAZIL_STREAMS": str(Path(streams).absolute()),
            "AIRFLOW_HOME": str(self.home),
            **{f"AIRFLOW__{key}": str(value) for key, value in self._settings().items()},
            **self._extra,
        }

    def start(self) -> Self:
        require_module("airflow")
        if not self.server("api-server"):
            process.require_free_port(self.port, server="Airflow", option="--airflow-port")
        self._make_secrets()
        self._spark_properties.write_text(_spark_properties_text())
        process.record_port(self.home, self.port)
        since = datetime.now(UTC)
        try:
            self._migrate()
            started = [component for component in COMPONENTS if self.start_component(component)]
            self.wait_until_healthy(since if started else None)
            self._make_spark_pool()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all components and their tasks. Writers that tasks launched keep running."""
        process.stop_all(process.read_records(self.home), records=self.home, grace_s=STOP_GRACE_S)

    def kill(self, component: Component) -> None:
        if server := self.server(component):
            process.kill(server)

    def server(self, component: Component) -> process.Server | None:
        return process.find_server(component, self.home)

    def wait_until_healthy(self, since: datetime | None = None) -> None:
        client = AirflowClient(self.url, user="", password="")
        deadline = time.monotonic() + READY_TIMEOUT_S
        unready = "api-server"
        while unready:
            for component in COMPONENTS:
                if not self.server(component):
                    tail = process.last_lines(self.log(component))
                    raise EnvironmentUnusable(f"Airflow's {component} ended while it started: {tail}")
            if time.monotonic() > deadline:
                text = f"Airflow's {unready} is not healthy after {READY_TIMEOUT_S} s; see {self.home}/logs."
                raise EnvironmentUnusable(text)
            time.sleep(0.3)
            if processes.is_listening(self.port):
                try:
                    unready = ", ".join(find_unhealthy(client.health(), since))
                except EnvironmentUnusable:
                    unready = "api-server"

    def _make_secrets(self) -> None:
        make_folder(self.home)
        _write_if_missing(self._passwords_file, {user: secrets.token_urlsafe(12) for user in _ROLES})
        fernet = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        keys = {"jwt": secrets.token_hex(32), "session": secrets.token_hex(32), "fernet": fernet}
        _write_if_missing(self._secrets_file, keys)

    def _settings(self) -> dict[str, str | int | Path]:
        self._make_secrets()
        secret = json.loads(self._secrets_file.read_text())
        return {
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_FOLDER": self._dags,
            "CORE__PLUGINS_FOLDER": self.checkout / "plugins",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": 8,
            "CORE__FERNET_KEY": secret["fernet"],
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in _ROLES.items()),
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": self._passwords_file,
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}",
            "LOGGING__BASE_LOG_FOLDER": self.home / "logs",
            "API__HOST": process.LOOPBACK,
            "API__PORT": self.port,
            "API__BASE_URL": self.url,
            "API__WORKERS": 1,
            "API__SECRET_KEY": secret["session"],
            "API_AUTH__JWT_SECRET": secret["jwt"],
            # Users who edit a DAG or a stream wait for these intervals; the defaults are minutes.
            "DAG_PROCESSOR__REFRESH_INTERVAL": 5,
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 10,
        }

    def _migrate(self) -> None:
        marker = self.home / f"migrated-{version('apache-airflow')}"
        if marker.exists():
            return
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        process = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        if process.returncode:
            reason = "\n".join((process.stderr or process.stdout).splitlines()[-3:])
            raise EnvironmentUnusable(f"Airflow's database in {self.home} could not be created: {reason}")
        marker.touch()

    def _make_spark_pool(self) -> None:
        """Create a pool for one batch Spark application at a time, because each uses all cores."""
        client = self.client()
        pool = {"name": SPARK_POOL, "slots": 1, "description": "Concurrent Spark applications of frazil"}
        for last_attempt in (False, False, True):
            try:
                if all(existing["name"] != SPARK_POOL for existing in client.call("GET", "/api/v2/pools")["pools"]):
                    client.call("POST", "/api/v2/pools", json=pool)
            except EnvironmentUnusable:
                # While its components start, Airflow may lock SQLite for longer than the timeout of a request.
                if last_attempt:
                    raise
            else:
                return

    def start_component(self, component: Component) -> bool:
        if self.server(component):
            return False
        command = [sys.executable, "-m", "airflow", *_COMMANDS[component]]
        process.start(component, command, records=self.home, log=self.log(component), environment=self.environment())
        return True


def find_unhealthy(health: Mapping[str, Any], since: datetime | None = None) -> list[str]:
    unready = []
    for name, state in health.items():
        heartbeat = state.get(f"latest_{name}_heartbeat")
        stale = since and name != "metadatabase" and (heartbeat is None or datetime.fromisoformat(heartbeat) < since)
        if state.get("status") != "healthy" or stale:
            unready.append(name.replace("_", "-"))
    return unready


def _spark_properties_text() -> str:
    from frazil.spark.class_archive import lean_java_options  # stopping Airflow needs no Spark

    properties = {
        "spark.jars": ",".join(map(str, ensure_catalog_jars(*configured_catalogs()))),
        "spark.driver.extraJavaOptions": lean_java_options(),
        "spark.driver.host": process.LOOPBACK,
        "spark.driver.bindAddress": process.LOOPBACK,
        "spark.ui.enabled": "false",
    }
    return "".join(f"{key} {value}\n" for key, value in properties.items())


def _write_if_missing(path: Path, content: Mapping[str, str]) -> None:
    if not path.exists():
        replace_json(path, content, mode=0o600)
