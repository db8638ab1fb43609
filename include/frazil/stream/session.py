"""The Spark context of a writer: small, quiet, and robust against dead Python workers.

By default, the context uses only this host's loopback. A cluster's executors have neither the driver's folders nor its
environment. `cost_meter` measures the CPU time and storage requests of the process and its JVM, by batch. Several
streams in one process share it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext

from frazil import __version__
from frazil.cluster.driver import HADOOP_FOLDER_VARIABLES, PACKAGE_FOLDER, PACKAGE_PYTHON
from frazil.cluster.kubernetes_pod import IN_CLUSTER_MASTER, POD_IP, POD_NAME
from frazil.errors import EnvironmentUnusable
from frazil.spark.class_archive import lean_java_options
from frazil.spark.java import LEAN_OPTIONS, jvm_start, launch_jvm, runs_in_jvm
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_properties
from frazil.spec.resources import ClusterManager, Resources
from frazil.stream import worker_daemon
from frazil.table.object_store import StorageRequests, counted_requests

log = logging.getLogger(__name__)

SUBMISSION_PROPERTIES = frozenset(
    {"spark.archives", "spark.driver.memory", "spark.driver.extraJavaOptions", "spark.submit.deployMode"}
)
"""Spark properties that apply when a driver is submitted to a cluster, and must not be set again later."""
MAX_TASK_ATTEMPTS = 4
PYTHON_BYTES = 2**30
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass(slots=True)
class CostMeter:
    """Measures a process's cost since its previous batch. The first batch includes the cost of starting the process."""

    jvm_pid: int | None = None
    _taken_s: float = 0.0
    _requests: StorageRequests = field(default_factory=StorageRequests)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take_usage(self) -> tuple[float, StorageRequests]:
        with self._lock:
            cpu_s, requests = time.process_time() + _process_cpu_s(self.jvm_pid), counted_requests()
            before_s, previous = self._taken_s, self._requests
            self._taken_s, self._requests = cpu_s, requests
        # A JVM that was started again has used less.
        return max(cpu_s - before_s, 0.0), StorageRequests(
            requests.writes - previous.writes, requests.reads - previous.reads
        )


cost_meter = CostMeter()


def _process_cpu_s(pid: int | None) -> float:
    """Return the CPU (s) of another process; 0 if unknown."""
    if pid is None:
        return 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def writer_properties(spec: StreamSpec) -> dict[str, str]:
    """Return the Spark properties of a stream's writer; `resources.spark` overrides them."""
    resources = spec.resources
    # With plain `local[n]` a job fails when one Python worker dies; with a number of attempts, the task is retried.
    local = {"spark.master": f"local[{resources.cores},{MAX_TASK_ATTEMPTS}]", **_LOOPBACK}
    return {
        "spark.app.name": f"frazil {spec.name}",
        "spark.driver.memory": _megabytes(resources.driver_memory),
        "spark.driver.extraJavaOptions": lean_java_options(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.reuse": "true",
        # Arrow has already compressed the rows that are shuffled.
        "spark.shuffle.compress": "false",
        # Data that a batch's tasks share may exceed 1 MiB: a wide schema, routes of thousands of partitions. By default
        # Spark writes that to a file, which it removes only when it ends. With this setting, each task carries the
        # data instead.
        "spark.broadcast.UDFCompressionThreshold": "1g",
        "spark.python.daemon.module": worker_daemon.MODULE,
        **(_cluster_properties(resources) if resources.on_cluster else local),
        **resolve_properties(resources.spark, os.environ),
        **_pod_properties(os.environ),
    }


def start_context(spec: StreamSpec, *, output: Path | None = None) -> SparkContext:
    """Start the JVM. If `output` is given, what the JVM prints is appended to this file.

    Raises `EnvironmentUnusable` if Java or YARN's configuration is missing or unsuitable.
    """
    in_cluster, on_yarn = runs_in_jvm(), spec.resources.manager is ClusterManager.YARN
    if on_yarn and not in_cluster and not any(map(os.environ.get, HADOOP_FOLDER_VARIABLES)):
        raise EnvironmentUnusable(
            f"stream {spec.name!r} has resources.master: yarn, but HADOOP_CONF_DIR is not set. Set it for the process "
            "that starts the writer: to the folder with the cluster's yarn-site.xml and core-site.xml"
        )
    properties = writer_properties(spec)
    if in_cluster:
        properties = {key: value for key, value in properties.items() if key not in SUBMISSION_PROPERTIES}
    os.environ["PYSPARK_PYTHON"] = executors_python(spec, properties)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if properties.get("spark.driver.bindAddress") == "127.0.0.1":
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf().setAll(list(properties.items()))
    with jvm_start():
        if output:
            launch_jvm(conf, output)
        context = SparkContext.getOrCreate(conf)
    jvm: Any = getattr(SparkContext._gateway, "proc", None)
    cost_meter.jvm_pid = None if jvm is None else jvm.pid
    context.setLogLevel("WARN")
    return context


def executors_python(spec: StreamSpec, properties: dict[str, str]) -> str:
    """Return the path of the tasks' Python: `spark.pyspark.python`, the package's, or the driver's."""
    packaged = PACKAGE_PYTHON if spec.resources.package else sys.executable
    return properties.get("spark.pyspark.python", packaged)


def _cluster_properties(resources: Resources) -> dict[str, str]:
    executors = (
        {"spark.cores.max": str(resources.cores)}
        if resources.manager is ClusterManager.STANDALONE
        else {
            "spark.executor.instances": str(resources.cores // resources.executor_cores),
            # These managers kill an executor that exceeds its container's memory. Records are outside of the heap.
            "spark.executor.memoryOverhead": _megabytes(resources.executor_cores * PYTHON_BYTES),
        }
    )
    archive = {"spark.archives": f"{resources.package}#{PACKAGE_FOLDER}"} if resources.package else {}
    return {
        "spark.master": resources.master,
        **executors,
        "spark.executor.cores": str(resources.executor_cores),
        "spark.executor.memory": _megabytes(resources.executor_memory),
        # An executor, too, only schedules. It moves records only in a shuffle.
        "spark.executor.extraJavaOptions": LEAN_OPTIONS,
        "spark.task.maxFailures": str(MAX_TASK_ATTEMPTS),
        **archive,
        # Executors on other hosts connect to the driver. For them, Spark or the declaration chooses its address.
        **(_LOOPBACK if resources.on_loopback else {}),
    }


def _pod_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark properties of a driver in a pod that frazil created. They make executors end with the pod."""
    if POD_NAME not in environment:
        return {}
    return {
        "spark.master": IN_CLUSTER_MASTER,
        "spark.kubernetes.driver.pod.name": environment[POD_NAME],
        "spark.driver.host": environment[POD_IP],
        "spark.driver.bindAddress": environment[POD_IP],
    }


def _megabytes(size_bytes: int) -> str:
    return f"{max(1, size_bytes // 2**20)}m"


PYTHON_PROBLEMS = {
    "No module named 'frazil'": "has no frazil",
    "No module named frazil": "has no frazil",
    "Cannot run program": "is missing there",
    "PYTHON_VERSION_MISMATCH": "has a different version from the driver's",
}
"""Problems, by a text in Spark's error. Each problem completes "their Python …"."""


def check_executors(context: SparkContext, spec: StreamSpec) -> None:
    """Run a tiny task in each slot. Raises EnvironmentUnusable if an executor's Python or frazil is unsuitable."""
    try:
        slots = spec.resources.cores
        answers = context.parallelize(range(slots), slots).mapPartitions(_probe()).collect()
    except Exception as error:
        if difference := next((ours for theirs, ours in PYTHON_PROBLEMS.items() if theirs in str(error)), None):
            raise EnvironmentUnusable(_unusable_message(spec, context.pythonExec, difference)) from error
        raise
    if problem := find_executor_problem(json.loads(answer) for answer in set(answers)):
        raise EnvironmentUnusable(_unusable_message(spec, context.pythonExec, problem))


def find_executor_problem(answers: Iterable[dict[str, str]]) -> str | None:
    """Return why an executor cannot stage records for this driver; None if all executors can."""
    for answer in answers:
        if "missing" in answer:
            return f"cannot stage records on {answer['host']}: {answer['missing']}"
        if answer["frazil"] != __version__:
            return f"has frazil {answer['frazil']} on {answer['host']}, and the driver has {__version__}"
    return None


def _unusable_message(spec: StreamSpec, python: str, difference: str) -> str:
    package = spec.resources.package
    remedy = (
        f"create {package} again with `frazil package` and the driver's Python"
        if package
        else "set resources.package to the archive that `frazil package` creates, or install the same versions there"
    )
    driver = f"Python {sys.version_info.major}.{sys.version_info.minor} with frazil {__version__}"
    return (
        f"stream {spec.name!r} cannot run on the executors of {spec.resources.master}: their Python {python} "
        f"{difference}. The driver is {driver}. Nothing was read or taken over: {remedy}"
    )


def _probe() -> Callable[[Iterable[int]], Iterator[str]]:
    """Return the probe's function. It is pickled by value, and runs without frazil."""

    def probe(_: Iterable[int]) -> Iterator[str]:
        import json  # runs on the executor, without this module's imports
        import socket

        answer = {"host": socket.gethostname()}
        try:
            import frazil
            import frazil.ingest.stage
            import frazil.stream.stage_rows

            answer["frazil"] = frazil.__version__
        except ImportError as error:
            answer["missing"] = str(error)
        yield json.dumps(answer)

    return probe


POLL_INTERVAL_S = 30.0
"""Interval (s) of the checks for executors."""


@contextmanager
def warn_if_executors_lost(
    executors: Callable[[], int], sentence: str, *, poll_interval_s: float = POLL_INTERVAL_S
) -> Iterator[None]:
    """While the context is open, log `sentence` if two checks in a row find no executor."""
    over = threading.Event()

    def watch() -> None:
        missing = 0
        while not over.wait(poll_interval_s):
            try:
                count = executors()
            except Exception as error:  # the JVM is gone, which the batch itself reports
                log.debug("executors cannot be counted: %r", error)
                return
            if count:
                if missing > 1:
                    log.warning("the batch has %d executors again", count)
                missing = 0
                continue
            missing += 1
            if missing > 1:
                log.warning("%s", sentence)

    thread = threading.Thread(target=watch, name="executors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
