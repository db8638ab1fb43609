"""The Spark context of a writer: small, quiet, and able to survive a dead Python worker.

By default the context uses only this host's loopback. On a cluster, executors are separate processes, perhaps on other
hosts, and have neither the driver's folders nor its environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext

from frazil.cluster.kubernetes_pod import IN_CLUSTER_MASTER, POD_IP, POD_NAME
from frazil.cluster.submission import PACKAGE_FOLDER, PACKAGE_PYTHON
from frazil.cluster.yarn import HADOOP_FOLDERS
from frazil.errors import EnvironmentUnusable
from frazil.spark.class_archive import java_options
from frazil.spark.java import LEAN_OPTIONS, in_jvm, java_needed
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_all
from frazil.spec.resources import ClusterManager, Resources
from frazil.stream import worker_daemon

SUBMISSION_PROPERTIES = frozenset(
    {"spark.archives", "spark.driver.memory", "spark.driver.extraJavaOptions", "spark.submit.deployMode"}
)
"""Properties that the submission of a driver to a cluster sets. The submission may have changed them."""
TASK_ATTEMPTS = 4
PYTHON_BYTES = 2**30
"""Memory (bytes) of one Python worker and the records that it stages."""
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def writer_properties(spec: StreamSpec) -> dict[str, str]:
    """Return the Spark properties of a stream's writer; `resources.spark` overrides them."""
    resources = spec.resources
    return {
        "spark.app.name": f"frazil {spec.name}",
        "spark.driver.memory": _megabytes(resources.driver_memory),
        "spark.driver.extraJavaOptions": java_options(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.reuse": "true",
        # Arrow has already compressed the rows that are shuffled.
        "spark.shuffle.compress": "false",
        # Data that a batch's tasks share may exceed 1 MiB: a wide schema, routes of thousands of partitions. By default
        # Spark writes that to a file, which it removes only when it ends. With this setting each task carries it.
        "spark.broadcast.UDFCompressionThreshold": "1g",
        "spark.python.daemon.module": worker_daemon.MODULE,
        **(_of_cluster(resources) if resources.on_cluster else _of_this_host(resources)),
        **resolve_all(resources.spark, os.environ),
        **_of_pod(os.environ),
    }


def start_context(spec: StreamSpec) -> SparkContext:
    """Start the JVM and return its Spark context.

    Raises `EnvironmentUnusable` if the JVM does not start, or does not find its cluster.
    """
    in_cluster, on_yarn = in_jvm(), spec.resources.manager is ClusterManager.YARN
    if on_yarn and not in_cluster and not any(map(os.environ.get, HADOOP_FOLDERS)):
        raise EnvironmentUnusable(
            f"stream {spec.name!r} has resources.master: yarn, but HADOOP_CONF_DIR is not set: let it name, for the "
            "process that starts the writer, the folder that has the cluster's yarn-site.xml and core-site.xml"
        )
    properties = writer_properties(spec)
    if in_cluster:
        properties = {key: value for key, value in properties.items() if key not in SUBMISSION_PROPERTIES}
    os.environ["PYSPARK_PYTHON"] = executors_python(spec, properties)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if properties.get("spark.driver.bindAddress") == "127.0.0.1":
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf().setAll(list(properties.items()))
    with java_needed():
        context = SparkContext.getOrCreate(conf)
    context.setLogLevel("WARN")
    return context


def executors_python(spec: StreamSpec, properties: dict[str, str]) -> str:
    """Return the path of the Python that runs tasks: `spark.pyspark.python` if set, else the package's Python, else the
    driver's.
    """
    packaged = PACKAGE_PYTHON if spec.resources.package else sys.executable
    return properties.get("spark.pyspark.python", packaged)


def _of_this_host(resources: Resources) -> dict[str, str]:
    # With plain `local[n]` a job fails when one Python worker dies; with a number of attempts, the task is retried.
    return {"spark.master": f"local[{resources.cores},{TASK_ATTEMPTS}]", **_LOOPBACK}


def _of_cluster(resources: Resources) -> dict[str, str]:
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
        # An executor, too, only schedules and moves no records, except those of a shuffle.
        "spark.executor.extraJavaOptions": LEAN_OPTIONS,
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        **archive,
        # Executors on other hosts connect to the driver. For them, Spark or the declaration chooses its address.
        **(_LOOPBACK if resources.on_loopback else {}),
    }


def _of_pod(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a driver whose pod frazil created. Executors end with this pod, and connect to it."""
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
