"""Entry point of a shared application's process. Like `frazil.stream.main`, it starts the JVM first."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.errors import FrazilError, SpecError
from frazil.fast_imports import fast_imports
from frazil.host.process_log import log_to_stderr
from frazil.signals import read_pins
from frazil.spark.java import find_java, require_pyspark
from frazil.spec.application import Application, find_application
from frazil.spec.model import StreamSpec
from frazil.stream.main import stop_on_signals

if TYPE_CHECKING:
    from frazil.events import Sink

log = logging.getLogger("frazil")

MAX_BATCHES_PER_CORE = 2
"""Maximum number of concurrent batches per core: while some wait for catalog or storage, others use the cores."""


def run_application(name: str, folder: Path, *, until_caught_up: bool = False) -> int:
    """Run an application, and return the exit code (see `frazil.errors`). Other exceptions crash the process."""
    try:
        codes = write_application(name, folder, until_caught_up=until_caught_up)
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    return next((code for _, code in sorted(codes.items()) if code), 0)


def write_application(name: str, folder: Path, *sinks: Sink, until_caught_up: bool = False) -> dict[str, int]:
    """Write the streams until SIGTERM or SIGINT, then commit the current batches. Raises errors that end all streams.
    With `until_caught_up`, each writer ends when it has caught up, and the result is the exit codes by stream. Log
    lines have the stream's name as the thread's name.
    """
    log_to_stderr(with_threads=True)
    require_pyspark()
    find_java(os.environ)
    application = find_application(folder, name)
    if application is None:
        raise SpecError(f"no stream in {folder} belongs to the application {name!r}")
    with fast_imports():
        from frazil.stream.spark_engine import SparkEngine  # needs PySpark

    engine = SparkEngine(spark_spec(application))
    engine.start()
    with fast_imports():
        from frazil.application.application import WriterApplication  # see the module
        from frazil.application.launcher import SharedEngine
        from frazil.stream.hosting import MAX_POLLING_S, FoldingThread, Heartbeats, Hosting, KafkaClients, Slots
        from frazil.table.catalogs import share_connections
        from frazil.telemetry.telemetry import Telemetry

    share_connections()
    batches = MAX_BATCHES_PER_CORE * application.resources.cores
    with (
        Heartbeats() as heartbeats,
        FoldingThread() as foldings,
        Telemetry.from_environment(name) as telemetry,
        SharedEngine(engine, batches=batches).running() as shared,
    ):
        hosting = Hosting(
            kafka_client=KafkaClients().open,
            heartbeats=heartbeats,
            foldings=foldings,
            telemetry=telemetry,
            read_pins=read_pins,
            slots=Slots(batches),
            max_polling_s=MAX_POLLING_S,
        )
        running = WriterApplication(name, folder, shared, application.fingerprint(), hosting, sinks)

        stop_on_signals(running.stop, "the application ends when each writer has committed its current batch")
        if until_caught_up:
            return running.catch_up()
        running.run()
        return {}


def spark_spec(application: Application) -> StreamSpec:
    resources = application.resources
    spark = {"spark.scheduler.mode": "FAIR", **resources.spark}
    shared = resources.model_copy(update={"spark": spark})
    return application.streams[0].model_copy(update={"name": application.name, "resources": shared})
