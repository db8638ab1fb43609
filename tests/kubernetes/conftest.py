"""A real Kubernetes node, a broker that its pods can reach, and a stream whose driver is a pod."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.process import choose_free_port
from frazil.host.heartbeat import Heartbeat
from frazil.host.launcher import LaunchRequest
from frazil.host.local import LocalLauncher
from frazil.remote.driver_folder import DriverFolder
from frazil.table.tables import load_stream_table

from .node import (
    HOST,
    NODE,
    Node,
    broker_settings,
    catalog_variables,
    resources,
    spark_properties,
    what_is_missing,
)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """One node for the whole run. Pods mount its folder by hostPath, so other users must be able to read the folder."""
    if missing := what_is_missing():
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="frazil-kubernetes-") as folder:
        found = Node(Path(folder) / "node")
        try:
            found.up()
            yield found
        finally:
            found.down()


@pytest.fixture(scope="session")
def kafka(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:  # noqa: ARG001
    """A broker with a second listener, for pods."""
    port, pods = choose_free_port(), choose_free_port()
    settings = broker_settings(port, pods)
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), port=port, settings=settings) as broker:
        broker.for_pods = f"{HOST}:{pods}"  # type: ignore[attr-defined]
        yield broker


class Supervised:
    """A stream whose agent is started by a launcher, as its supervisor does. The agent's environment has no Java."""

    def __init__(self, stream: Any, node: Node, folder: Path, properties: dict[str, str]) -> None:
        self.stream, self.node, self._properties = stream, node, properties
        self._folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
            "PATH": str(Path(sys.executable).parent),
            "KUBECONFIG": str(node.kubeconfig(folder / "kubeconfig")),
        }
        assert shutil.which("java", path=self.environment["PATH"]) is None
        self.declare()

    def declare(self, **spark: str) -> None:
        """Declare the stream, with additional or replaced Spark properties."""
        declared = {"resources": resources({**self._properties, **spark}), "commit": {"interval": "2s"}}
        self.stream.declare(yaml.safe_dump(declared))

    def launch(self) -> None:
        arguments = tuple(self.stream.command())
        self.launcher.launch(LaunchRequest(arguments, self.environment, self.stream.spec.fingerprint(), 1))

    @property
    def launcher(self) -> Any:
        return LocalLauncher(self.stream.name)

    def order(self) -> Any:
        table = load_stream_table(self.stream.spec)
        return None if table is None else DriverFolder.open(table, self.stream.name).order()

    def driver(self) -> dict[str, Any]:
        """Return the pod that the order names."""
        order = self.order()
        return next(pod for pod in self.node.pods("driver") if pod["metadata"]["name"] == order.submission)

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return the processes with all of these words in their command lines."""
        found = psutil.process_iter(["cmdline"])
        return [each for each in found if all(word in " ".join(each.info["cmdline"] or ()) for word in words)]

    def exit(self) -> Any:
        """Return the exit record of the last launch; None while it runs."""
        seen = self.launcher.observe()
        over = [each for each in seen.exits if seen.launch is not None and each.launch_id == seen.launch.id]
        return over[-1] if over and not seen.process.is_alive else None

    def notices(self) -> str:
        heartbeat: Heartbeat | None = self.launcher.observe().heartbeat
        return " ".join(heartbeat.notices) if heartbeat else ""

    def frazil(self, verb: str) -> str:
        """Return the output of a `frazil` command for the stream, in one line."""
        command = [str(Path(sys.executable).parent / "frazil"), verb, self.stream.name]
        streams = ("--streams", str(self.stream.streams))
        done = subprocess.run([*command, *streams], capture_output=True, text=True, timeout=60, check=False)
        return " ".join(done.stdout.split())

    def log(self) -> str:
        chunk = self.launcher.read_log(None, limit_bytes=100_000)
        return "\n".join(chunk.lines) if chunk else ""


@pytest.fixture
def supervised(  # noqa: PLR0913, PLR0917 - what it is made of
    node: Node,
    kafka: EmbeddedKafka,
    topic: Callable[..., str],
    declared_stream: Any,
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Supervised]:
    """A stream of four partitions, whose driver is a pod."""
    catalog = catalog_variables(tmp_path)
    for name, value in catalog.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", f"127.0.0.1,{NODE}")
    stream = declared_stream(tmp_path, name="events", topic=topic(4), bootstrap=kafka.for_pods)  # type: ignore[attr-defined]
    found = Supervised(stream, node, tmp_path, spark_properties(tmp_path, catalog))
    yield found
    found.launcher.stop(force=True)
    print(found.log()[-12_000:])
    node.kubectl("delete", "pods", "--namespace", "frazil", "--all", "--now")
