"""A standalone Spark cluster on loopback, from PySpark's jars, for development, the demo and tests.

Each worker has its own loopback address, because Spark runs a speculative copy of a task only on a different host. The
master keeps its state in files, so that applications survive its restart.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import requests

from frazil.dev import process
from frazil.errors import EnvironmentUnusable
from frazil.home import make_folder
from frazil.spark.java import LEAN_OPTIONS, require_java, require_pyspark

OTHER_PORTS = "ui", "rest"
"""Folders below the master's that record its ports for web pages and for REST submissions."""
WORKERS, SLOTS_PER_WORKER = 2, 4
"""Number of workers, and slots of each: more slots than real cores, so that several applications can run."""


class SparkMaster(process.EmbeddedServer):
    TITLE, RECORD, READY_TIMEOUT_S = "the Spark master", "spark-master", 60

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        super().__init__(folder, port=port)
        self._ui_port, self.rest_port = (
            process.last_port(self.folder / name) or process.choose_free_port() for name in OTHER_PORTS
        )

    @property
    def address(self) -> str:
        """The address for `resources.master` and spark-submit."""
        return f"spark://{process.LOOPBACK}:{self.port}"

    def state(self) -> Mapping[str, Any]:
        with suppress(OSError, ValueError):
            answer = requests.get(f"http://{process.LOOPBACK}:{self._ui_port}/json/", timeout=5)
            if answer.ok:
                state: dict[str, Any] = answer.json()
                return state
        return {}

    def workers(self) -> list[str]:
        return [worker["host"] for worker in self.state().get("workers", ()) if worker["state"] == "ALIVE"]

    def _launch(self) -> None:
        process.require_free_port(self.port, server="the Spark master", option="--spark-port")
        state = self.folder / "state"
        make_folder(state)
        process.record_port(self.folder, self.port)
        for name, port in zip(OTHER_PORTS, (self._ui_port, self.rest_port), strict=True):
            process.record_port(self.folder / name, port)
        options = [
            "-Dspark.deploy.recoveryMode=FILESYSTEM",
            f"-Dspark.deploy.recoveryDirectory={state}",
            "-Dspark.master.rest.enabled=true",
            f"-Dspark.master.rest.host={process.LOOPBACK}",
            f"-Dspark.master.rest.port={self.rest_port}",
        ]
        arguments = ["--host", process.LOOPBACK, "--port", str(self.port), "--webui-port", str(self._ui_port)]
        _start_daemon(self, process.LOOPBACK, options, "org.apache.spark.deploy.master.Master", arguments)

    def _not_ready_reason(self) -> str | None:
        # Until the master is the leader, it ignores workers, which then retry only after 10 s.
        return None if self.state().get("status") == "ALIVE" else ""


class SparkWorker(process.EmbeddedServer):
    """One worker. Its executors belong to its session and end with it."""

    TITLE, RECORD, READY_TIMEOUT_S = "a Spark worker", "spark-worker", 60

    def __init__(self, folder: Path, master: SparkMaster, *, address: str) -> None:
        self.folder, self._master, self._address = folder.absolute(), master, address
        self.log = self.folder / "worker.log"

    @property
    def address(self) -> str:
        return self._address

    def _launch(self) -> None:
        # An application's folder has the logs of its executors and their unpacked package.
        options = ["-Dspark.worker.cleanup.enabled=true", "-Dspark.worker.cleanup.appDataTtl=3600"]
        offered = ["--cores", str(SLOTS_PER_WORKER), "--memory", "8g", "--work-dir", str(self.folder / "work")]
        arguments = ["--host", self._address, "--webui-port", "0", *offered, self._master.address]
        _start_daemon(self, self._address, options, "org.apache.spark.deploy.worker.Worker", arguments)

    def _port_conflict(self) -> str:
        return ""

    def _not_ready_reason(self) -> str | None:
        return None if self._address in self._master.workers() else ""


class EmbeddedSparkCluster(process.EmbeddedService):
    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.master = SparkMaster(folder / "master", port=port)
        self.workers = [
            SparkWorker(folder / f"worker-{number}", self.master, address=f"127.0.0.{number}")
            for number in range(1, WORKERS + 1)
        ]

    @property
    def servers(self) -> dict[str, process.EmbeddedServer]:
        numbered = {f"spark-worker-{number}": worker for number, worker in enumerate(self.workers, 1)}
        return {"spark-master": self.master, **numbered}

    def start(self) -> Self:
        if platform.system() != "Linux":  # elsewhere, loopback has one address
            raise EnvironmentUnusable("the embedded Spark cluster needs Linux: each worker has a loopback address")
        require_pyspark()
        try:
            for server in self.servers.values():
                server.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.master.stop()


def _start_daemon(
    server: process.EmbeddedServer, host: str, options: Sequence[str], main: str, arguments: Sequence[str]
) -> None:
    import pyspark  # an extra

    spark_home = Path(pyspark.__file__).parent
    command = [str(require_java()), "-Xmx256m", *LEAN_OPTIONS.split(), *options, "-cp", f"{spark_home}/jars/*", main]
    # Without Scala's version, a worker looks for a Spark build. Web pages listen on the address in SPARK_LOCAL_IP.
    settings = {"SPARK_HOME": str(spark_home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": host}
    # Executors inherit the worker's environment. On another host, they would have none of a writer's variables.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FRAZIL_", "PYSPARK_"))}
    environment |= settings
    process.start(server.RECORD, [*command, *arguments], records=server.folder, log=server.log, environment=environment)
