"""The writer's process: its signal handlers, and its exit code for the supervisor.

Starts the JVM first, because importing the writer's other modules takes more than a second.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from frazil.errors import FrazilError
from frazil.fast_imports import fast_imports
from frazil.host.process_log import log_to_stderr
from frazil.spark.java import find_java, require_pyspark, runs_in_jvm
from frazil.spec.model import StreamSpec

if TYPE_CHECKING:
    from frazil.events import Sink
    from frazil.stream.hosting import ReadPins

log = logging.getLogger("frazil")


def run_writer(spec: StreamSpec, *, until_caught_up: bool = False, read_pins: ReadPins | None = None) -> int:
    """Run the writer, and return its exit code (see `frazil.errors`)."""
    try:
        write(spec, until_caught_up=until_caught_up, read_pins=read_pins)
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    return 0


def write(spec: StreamSpec, *sinks: Sink, until_caught_up: bool = False, read_pins: ReadPins | None = None) -> bool:
    """Run the writer until SIGTERM or SIGINT or, with `until_caught_up`, until it has caught up. After a signal, it
    commits the current batch. Returns whether a signal ended it. `sinks` receive its events. See `Hosting` for
    `read_pins`. Raises the errors of `Writer.run`.
    """
    log_to_stderr()
    # Checked before the take-over, so that a host without Java or PySpark fences no other writer.
    require_pyspark()
    if not runs_in_jvm():
        find_java(os.environ)
    with fast_imports():
        from frazil.stream.spark_engine import SparkEngine  # needs PySpark

    engine = SparkEngine(spec)
    engine.start()
    with fast_imports():
        from frazil.stream.hosting import Hosting  # see the module
        from frazil.stream.writer import Writer
        from frazil.telemetry.telemetry import Telemetry

    telemetry = Telemetry.from_environment(spec.name)
    hosting = Hosting(telemetry=telemetry, read_pins=read_pins)
    writer = Writer(spec, until_caught_up=until_caught_up, engine=engine, sinks=sinks, hosting=hosting)

    stop_on_signals(writer.stop, "the writer ends after its current batch")
    with telemetry:
        writer.run()
    return writer.stopping.is_set()


def stop_on_signals(stop: Callable[[], None], sentence: str) -> None:
    """After SIGTERM or SIGINT, log `sentence` and call `stop`."""

    def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        log.info("%s: %s", signal.Signals(signum).name, sentence)
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
