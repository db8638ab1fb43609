"""The writer's process: its signal handlers, and the exit code that the supervisor reads."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

from frazil.errors import FrazilError
from frazil.events import Sink
from frazil.spark.java import find_java, require_pyspark
from frazil.spec.model import StreamSpec
from frazil.stream.writer import Writer

log = logging.getLogger("frazil")


def run_writer(spec: StreamSpec, *, until_caught_up: bool = False) -> int:
    """Write, and return the process's exit code (see `frazil.errors`). An unexpected exception is raised: a crash."""
    try:
        write(spec, until_caught_up=until_caught_up)
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    return 0


def write(spec: StreamSpec, *sinks: Sink, until_caught_up: bool = False) -> bool:
    """Write until SIGTERM or SIGINT, then commit the current batch; returns whether a signal ended it.

    `sinks` receive the events. The log goes to standard error. Raises what `Writer.run` raises.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    writer = Writer(spec, until_caught_up=until_caught_up, sinks=sinks)

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        log.info("%s: the writer commits its current batch, then ends", signal.Signals(signum).name)
        writer.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # Before the take-over, so that a host without Java or PySpark fences nobody.
    require_pyspark()
    find_java(os.environ)
    writer.run()
    return writer.stopping.is_set()
