"""Tells an attempt at a task that nobody waits for it any longer.

Spark tells a Python worker nothing when it gives up the worker's task, for one because a speculative copy of it was
faster: the worker would read on, and leave files that no journal has. But the executor closes its connection to the
worker; and where the executor itself ends, the workers' daemon sends SIGHUP.

Imports little, for the daemon: see `frazil.stream.worker_daemon`.
"""

from __future__ import annotations

import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

_connection: int | None = None
"""The descriptor of this worker's connection to its executor; None in a process that has none."""


class Abandoned(BaseException):
    """Ends an attempt, whatever it is doing; what it wrote is then removed. No error of the task: nobody reads it."""


def check_wanted() -> None:
    """Raises Abandoned if the executor has closed the connection."""
    if _connection is None or not hasattr(select, "POLLRDHUP"):
        return
    look = select.poll()
    look.register(_connection, select.POLLRDHUP)
    if look.poll(0):
        raise Abandoned


def watched(main: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    """Spark's main function of a worker, which gets the two directions of the connection as files."""

    def run(infile: Any, outfile: Any) -> object:
        global _connection  # noqa: PLW0603 - a worker has one
        _connection = outfile.fileno()
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, _end)
        return main(infile, outfile)

    return run


def _end(_: int, __: FrameType | None) -> None:
    raise Abandoned
