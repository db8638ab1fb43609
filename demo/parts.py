"""The demo's processes, in a separate home. Also ends processes of an earlier demo."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Literal

import psutil
import yaml

from frazil.dev import process
from frazil.dev.airflow import EmbeddedAirflow
from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.object_store import EmbeddedObjectStore
from frazil.dev.postgres import EmbeddedPostgres, write_catalogs
from frazil.dev.spark_cluster import EmbeddedSparkCluster
from frazil.host.launcher import Launcher, ProcessState
from frazil.host.local import LocalLauncher
from tests.kubernetes.node import HOST, NODE, Node, broker_settings, catalog_variables, resources, spark_properties

MARK = "FRAZIL_DEMO"
"""An environment variable that every process of a demo inherits; its value is the demo's home."""

WRITER_GRACE_S = 30
CHECK_EVERY_S = 15
"""Interval between checks of windows: 15 s are five hours of the demo's event time."""

DemoCatalog = Literal["embedded", "rest", "postgres"]
"""SQLite and a folder, SeaweedFS's REST catalog and its S3, or PostgreSQL and SeaweedFS's S3."""
DemoSpark = Literal["local", "cluster", "kubernetes"]
"""Each application in its own process, all on a standalone cluster, or the writer in pods of a Kubernetes node."""

_CONFIG = """\
# The demo keeps to the embedded catalog of its home, whatever catalogs its user has.
legacy-current-snapshot-id: false
"""


class DemoParts:
    """Kafka, the catalog's servers, Airflow and the writer of one demo, all in one folder."""

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        home: Path,
        checkout: Path,
        *,
        stream: str,
        catalog: DemoCatalog = "embedded",
        spark: DemoSpark = "local",
        kafka_port: int,
        airflow_port: int,
    ) -> None:
        self.home, self.catalog, self.spark, self._stream = home, catalog, spark, stream
        self.store = EmbeddedObjectStore(home / "object-store")
        self.database = EmbeddedPostgres(home / "postgres")
        self.cluster = EmbeddedSparkCluster(home / "spark") if spark == "cluster" else None
        self._node = Node(home / "node")
        self._for_pods = process.choose_free_port()
        settings = broker_settings(kafka_port, self._for_pods) if spark == "kubernetes" else {}
        self.kafka = EmbeddedKafka(home / "kafka", port=kafka_port, settings=settings)
        self.airflow = EmbeddedAirflow(
            home / "airflow",
            checkout,
            port=airflow_port,
            extra={"FRAZIL_CHECK_EVERY": str(CHECK_EVERY_S)},
            spark_master=self.cluster.master.address if self.cluster else "local[2]",
        )
        self.run_folder = home / "streams" / stream
        self._checkout = checkout

    def enter_home(self) -> None:
        """Set the environment of this process, and so of all that it starts, to the demo's home."""
        for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
            del os.environ[name]
        environment = {
            "FRAZIL_HOME": str(self.home),
            "FRAZIL_STREAMS": str(self._streams),
            "FRAZIL_AGGREGATIONS": str(self._checkout / "include" / "aggregations"),
            "FRAZIL_KAFKA": self.kafka.bootstrap,
            "PYICEBERG_HOME": str(self.home),
        }
        if self.spark == "kubernetes":
            environment |= {"FRAZIL_KAFKA": f"{HOST}:{self._for_pods}", **catalog_variables(self.home)}
            environment |= {"KUBECONFIG": str(self._kubeconfig), "NO_PROXY": f"{process.LOOPBACK},{NODE}"}
        # `frazil status` finds the demo here: see `frazil.cli.main.enter_running_demo`.
        self._environment.write_text(json.dumps({"pid": os.getpid(), "environment": environment}))
        os.environ |= {MARK: str(self.home), **environment}

    def make_home(self) -> None:
        """Remove the table, topic and Airflow of an earlier demo."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        (self.home / ".pyiceberg.yaml").write_text(_CONFIG)

    @property
    def _environment(self) -> Path:
        return self.home.with_suffix(".json")

    @property
    def _streams(self) -> Path:
        """Return the folder of declared streams: the checkout's or, for a cluster, a copy that names the cluster's
        master.
        """
        declared = self._checkout / "include" / "streams"
        return declared if self.spark == "local" else self.home / "declared-streams"

    @property
    def _kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    def start_cluster(self) -> None:
        """Start the Spark cluster or Kubernetes node that the options select, and declare the streams for it."""
        if self.spark == "local":
            return
        declared = self._start_node() if self.cluster is None else {"master": self.cluster.start().master.address}
        shutil.copytree(self._checkout / "include" / "streams", self._streams)
        with (self._streams / "_defaults.yaml").open("a") as defaults:
            yaml.safe_dump({"resources": declared}, defaults)

    def _start_node(self) -> dict[str, Any]:
        """Start the node, and return the streams' resources."""
        self._node.up()
        self._node.kubeconfig(self._kubeconfig)
        passed = {name: os.environ[name] for name in ("FRAZIL_KAFKA", *catalog_variables(self.home))}
        return resources(spark_properties(self.home, passed))

    def start_catalog(self) -> None:
        """Start the catalog's servers, if it needs any, and make it the default catalog."""
        if self.catalog == "embedded":
            return
        store, database = self.store.start(), self.database.start() if self.catalog == "postgres" else None
        warehouse = self.home / "warehouse"
        write_catalogs(self.home, store=store, database=database, local_warehouse=warehouse, default=self.catalog)

    def end(self) -> None:
        """End Airflow first, because it would relaunch the writer; then the writer, after its batch; then the servers.

        Finds processes that are still running, such as a writer that was being launched, by their environment.
        """
        self._environment.unlink(missing_ok=True)
        self.airflow.stop()
        if self.run_folder.is_dir():
            _end_writer(LocalLauncher(self._stream, folder=self.run_folder))
        for server in (self.kafka, self.store, self.database, self.cluster):
            if server is not None:
                server.stop()
        if self._node.folder.is_dir():
            self._node.down()
        _end_marked(str(self.home))


def _end_writer(launcher: Launcher) -> None:
    for force, grace_s in ((False, WRITER_GRACE_S), (True, 10)):
        launcher.stop(force=force)
        deadline = time.monotonic() + grace_s
        while launcher.observe().process is ProcessState.RUNNING:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)


def _end_marked(home: str) -> None:
    """Kill all processes with the demo's mark, except this process and its ancestors."""
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    left = [found for found in psutil.process_iter() if found.pid not in ours and _mark(found) == home]
    for found in left:
        try:
            found.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=10)


def _mark(found: psutil.Process) -> str | None:
    try:
        return found.environ().get(MARK)
    except psutil.Error:
        return None


def require_free_ports(kafka_port: int, airflow_port: int) -> None:
    """Raise EnvironmentUnusable if a port is in use. The message names the make variable that changes the port."""
    process.require_free_port(kafka_port, server="the demo's Kafka", option="make demo KAFKA_PORT=…")
    process.require_free_port(airflow_port, server="the demo's Airflow", option="make demo AIRFLOW_PORT=…")
