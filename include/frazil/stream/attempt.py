"""Tells an attempt at a task that nobody waits for it any longer.

Spark tells a Python worker nothing when it gives up the worker's task, for one because a speculative copy of it was
faster: the worker would read on, and leave files that no journal has. But the executor closes its connection to the
worker; and where the executor itself ends, the workers' daemon sends SIGHUP.

Imports little, for the daemon: see `frazil.stream.worker_daemon`.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_connection: int | None = None
"""The descriptor of this worker's connection to its executor; None in a process that has none."""


class Abandoned(BaseException):
    """Ends an attempt, whatever it is doing; what it wrote is then removed. No error of the task: nobody reads it."""


def check_wanted() -> None:
    """Raises Abandoned if the executor has closed the connection."""
    if _connection is not None and _is_closed(_connection):
        raise Abandoned


def _is_closed(connection: int) -> bool:
    if not hasattr(select, "POLLRDHUP"):
        return False
    look = select.poll()
    look.register(connection, select.POLLRDHUP)
    return bool(look.poll(0))


def watched(main: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    """Spark's main function of a worker, which gets the two directions of the connection as files."""

    def run(infile: Any, outfile: Any) -> object:
        global _connection  # noqa: PLW0603 - a worker has one
        _connection = outfile.fileno()
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, _end)
        try:
            return main(infile, outfile)
        except SystemExit:
            if _is_closed(_connection):
                _discard_rest(outfile)
            raise

    return run


def _discard_rest(outfile: Any) -> None:
    """Nobody reads it. Spark's daemon would log a page of traces when it cannot send what is left."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), outfile.fileno())


def _end(_: int, __: FrameType | None) -> None:
    raise Abandoned
