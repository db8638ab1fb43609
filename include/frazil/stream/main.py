"""The writer's process: one stream in the foreground, signals, and the exit code that its supervisor reads."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

from frazil.errors import FrazilError
from frazil.spec.model import StreamSpec
from frazil.stream.java import find_java
from frazil.stream.writer import Writer

log = logging.getLogger("frazil")


def run_writer(spec: StreamSpec, *, until_caught_up: bool = False) -> int:
    """Run until SIGTERM or SIGINT (the batch at hand commits) or the end; the process's exit code.

    Codes are those of `frazil.errors`; an unexpected exception is a crash, and is raised.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    writer = Writer(spec, until_caught_up=until_caught_up)

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        log.info("%s: the batch at hand commits, then the writer ends", signal.Signals(signum).name)
        writer.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        find_java(os.environ)  # before the take-over: a host without Java must fence nobody
        writer.run()
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    return 0
