"""The writer's process: one stream, the signals that end it, and the exit code that its supervisor reads."""

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
    """Write; the process's exit code, of `frazil.errors`. An unexpected exception is a crash, and is raised."""
    try:
        write(spec, until_caught_up=until_caught_up)
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    return 0


def write(spec: StreamSpec, *sinks: Sink, until_caught_up: bool = False) -> bool:
    """Write until SIGTERM or SIGINT (the batch at hand commits) or the end; whether it was asked to stop.

    `sinks` are told what happens. The log goes to standard error. Raises what `Writer.run` raises.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    writer = Writer(spec, until_caught_up=until_caught_up, sinks=sinks)

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        log.info("%s: the batch at hand commits, then the writer ends", signal.Signals(signum).name)
        writer.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # Before the take-over: a host without Java or PySpark must fence nobody.
    require_pyspark()
    find_java(os.environ)
    writer.run()
    return writer.stopping.is_set()
