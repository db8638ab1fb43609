"""The Spark session of a writer: small, quiet, on loopback, and able to survive a dead Python worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from pyspark.sql import SparkSession

from frazil.spark.class_archive import java_options
from frazil.spark.java import java_needed
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_all
from frazil.stream import worker_daemon
from frazil.stream.source import RangeSource

TASK_ATTEMPTS = 4


def writer_properties(spec: StreamSpec) -> dict[str, str]:
    """Spark properties of a stream's writer; `resources.spark` overrides them."""
    return {
        # With plain `local[n]` the query ends when one Python worker dies; attempts allow a retry.
        "spark.master": f"local[{spec.resources.cores},{TASK_ATTEMPTS}]",
        "spark.app.name": f"frazil {spec.name}",
        "spark.driver.memory": f"{spec.resources.driver_memory // 2**20}m",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": worker_daemon.MODULE,
        # We stop the query between batches; the JVM must not end it in the middle of one.
        "spark.sql.streaming.stopTimeout": "60s",
        **resolve_all(spec.resources.spark, os.environ),
    }


def start_session(spec: StreamSpec) -> SparkSession:
    """Start the JVM. The workers run this very Python. Raises `EnvironmentUnusable` where it does not start."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder
    for key, value in writer_properties(spec).items():
        builder = builder.config(key, value)
    with java_needed():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def add_source(session: SparkSession) -> None:
    """Register the planner's source, and silence a warning that its queries cause."""
    _silence(session, "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor")
    session.dataSource.register(RangeSource)


def _silence(session: SparkSession, logger: str) -> None:
    """Hide its warning that a batch takes longer than the trigger, which is only how often the planner is asked."""
    log4j = session._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)


def warm_up(session: Future[SparkSession], workers: int) -> None:
    """Let the executors' Python workers import what staging needs while the driver takes over and opens the query."""
    rows = session.result().range(workers, numPartitions=workers)
    rows.mapInArrow(_import_stage, "id long").collect()


def _import_stage(batches: Iterable[Any]) -> Iterable[Any]:
    import_module("frazil.stream.stage_rows")
    return batches
