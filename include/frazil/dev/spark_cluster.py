"""A standalone Spark cluster on loopback, for development, the demo and tests: a master and workers from PySpark's jars.

Each worker has a loopback address of its own, as if it were a host: Spark runs a task's speculative copy on another
host only. The master keeps what it knows in files, so that applications survive its restart.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

from frazil.dev import process
from frazil.errors import EnvironmentUnusable
from frazil.spark.class_archive import LEAN
from frazil.spark.java import require_java, require_pyspark

READY_WITHIN_S = 120
MASTER = "spark-master"
PORTS_FILE = "ports"
_WORKER_OPTIONS = (
    # An application's folder has its executors' logs and unpacked packages.
    "-Dspark.worker.cleanup.enabled=true",
    "-Dspark.worker.cleanup.appDataTtl=3600",
)


class EmbeddedSparkCluster:
    """A master, and workers with `cores` slots for tasks each, with logs and process records in one folder.

    Later starts on the same folder reuse its ports. What runs there already is left alone.
    """

    def __init__(self, folder: Path, *, port: int | None = None, workers: int = 2, cores: int = 4) -> None:
        self.folder = folder.absolute()
        last = self.last_ports(self.folder)
        self.port = port or (last[0] if last else process.free_port())
        self._ui_port = last[1] if last else process.free_port()
        self._workers, self._cores = workers, cores

    @property
    def master(self) -> str:
        """For `resources.master`, and spark-submit."""
        return f"spark://{process.LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / f"{MASTER}.log"

    @property
    def names(self) -> Sequence[str]:
        """Of the workers, as `start_worker` and `kill_worker` take them."""
        return [f"spark-worker-{number}" for number in range(1, self._workers + 1)]

    def start(self) -> Self:
        """Start what does not run, and wait until all workers are registered. Raises EnvironmentUnusable."""
        require_pyspark()
        running = self.server(MASTER)
        last = self.last_ports(self.folder)
        if running and last and last[0] != self.port:
            raise EnvironmentUnusable(f"the Spark master of {self.folder} runs on another port; stop it first.")
        try:
            if not running:
                self.start_master()
            # A master that does not yet lead ignores workers, which try again after 10 s.
            self._wait(lambda: self._asked().get("status") == "ALIVE", MASTER)
            for name in self.names:
                if not self.server(name):
                    self.start_worker(name)
            self._wait(lambda: self.alive() >= self._workers, MASTER, *self.names)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the workers with their executors, and the master."""
        process.stop_all(process.recorded(self.folder), records=self.folder)

    def start_master(self) -> None:
        """Start the master alone; with what an earlier one knew of workers and applications."""
        process.require_free_port(self.port, what="the Spark master", option="--spark-port")
        state = self.folder / "state"
        state.mkdir(parents=True, exist_ok=True)
        (self.folder / PORTS_FILE).write_text(f"{self.port} {self._ui_port}")
        options = ["-Dspark.deploy.recoveryMode=FILESYSTEM", f"-Dspark.deploy.recoveryDirectory={state}"]
        options += ["-Dspark.master.rest.enabled=false"]
        arguments = ["--host", process.LOOPBACK, "--port", str(self.port), "--webui-port", str(self._ui_port)]
        self._launch(MASTER, options, "org.apache.spark.deploy.master.Master", *arguments)

    def start_worker(self, name: str) -> None:
        """Start a worker alone, without waiting until it is registered."""
        host = f"127.0.0.{1 + self.names.index(name)}" if platform.system() == "Linux" else process.LOOPBACK
        work = self.folder / name
        arguments = ["--host", host, "--cores", str(self._cores), "--memory", "8g", "--work-dir", str(work)]
        main = "org.apache.spark.deploy.worker.Worker"
        self._launch(name, _WORKER_OPTIONS, main, *arguments, "--webui-port", "0", self.master)

    def kill(self, name: str) -> None:
        """SIGKILL the master, or a worker with all its executors, like the crash of a host."""
        if server := self.server(name):
            process.kill(server)

    def server(self, name: str) -> process.Server | None:
        return process.find(name, self.folder)

    def alive(self) -> int:
        """How many workers are registered and alive."""
        return sum(worker["state"] == "ALIVE" for worker in self._asked().get("workers", ()))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @staticmethod
    def last_ports(folder: Path) -> tuple[int, int] | None:
        """The master's port and its web page's, of the last start on this folder."""
        file = folder / PORTS_FILE
        if not file.is_file():
            return None
        port, ui_port = file.read_text().split()
        return int(port), int(ui_port)

    def _launch(self, name: str, options: Sequence[str], main: str, *arguments: str) -> None:
        import pyspark  # noqa: PLC0415 - an extra

        spark_home = Path(pyspark.__file__).parent
        heap = ["-Xmx256m", *LEAN.split()]
        command = [str(require_java()), *heap, *options, "-cp", f"{spark_home}/jars/*", main, *arguments]
        # Without Scala's version, a worker looks for a build of Spark. Web pages listen where SPARK_LOCAL_IP says.
        local = arguments[arguments.index("--host") + 1]
        known = {"SPARK_HOME": str(spark_home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": local}
        # Executors have a worker's environment, and on another host nothing of a writer's.
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("FRAZIL_", "PYSPARK_"))}
        log = self.folder / f"{name}.log"
        process.start(name, command, records=self.folder, log=log, environment={**environment, **known})

    def _asked(self) -> dict[str, Any]:
        """What the master says of itself, its workers and applications; nothing while it does not answer."""
        with suppress(OSError, ValueError):
            answer = requests.get(f"http://{process.LOOPBACK}:{self._ui_port}/json/", timeout=5)
            if answer.ok:
                found: dict[str, Any] = answer.json()
                return found
        return {}

    def _wait(self, done: Callable[[], bool], *names: str) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while not done():
            for name in names:
                if not self.server(name):
                    said = process.last_lines(self.folder / f"{name}.log")
                    raise EnvironmentUnusable(f"{name} ended while it started: {said}")
            if time.monotonic() > deadline:
                raise EnvironmentUnusable(f"the Spark cluster is not up after {READY_WITHIN_S} s; see {self.log}.")
            time.sleep(0.1)
