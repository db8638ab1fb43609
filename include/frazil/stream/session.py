"""The Spark context of a writer: small, quiet, on loopback, and able to survive a dead Python worker."""

from __future__ import annotations

import os
import sys

from pyspark import SparkConf, SparkContext

from frazil.spark.class_archive import java_options
from frazil.spark.java import java_needed
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_all
from frazil.stream import worker_daemon

TASK_ATTEMPTS = 4


def writer_properties(spec: StreamSpec) -> dict[str, str]:
    """Spark properties of a stream's writer; `resources.spark` overrides them."""
    return {
        # With plain `local[n]` a job fails when one Python worker dies; attempts allow a retry.
        "spark.master": f"local[{spec.resources.cores},{TASK_ATTEMPTS}]",
        "spark.app.name": f"frazil {spec.name}",
        "spark.driver.memory": f"{spec.resources.driver_memory // 2**20}m",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.reuse": "true",
        # Arrow has compressed what is shuffled.
        "spark.shuffle.compress": "false",
        "spark.python.daemon.module": worker_daemon.MODULE,
        **resolve_all(spec.resources.spark, os.environ),
    }


def start_context(spec: StreamSpec) -> SparkContext:
    """Start the JVM. The workers run this very Python. Raises `EnvironmentUnusable` where it does not start."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf().setAll(list(writer_properties(spec).items()))
    with java_needed():
        context = SparkContext.getOrCreate(conf)
    context.setLogLevel("WARN")
    return context
