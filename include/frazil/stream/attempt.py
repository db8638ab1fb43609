"""Lets a task attempt notice that Spark has abandoned it.

The attempt notices that its executor closes the connection, or that its daemon sends SIGHUP. Otherwise, it would leave
files that no journal names. This module imports little: see `frazil.stream.worker_daemon`.
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
"""The file descriptor of this worker's connection to its executor."""


class AttemptAbandoned(BaseException):
    """Ends an abandoned task attempt at any point, so that its files are removed. Not an error."""


def check_not_abandoned() -> None:
    if _connection is not None and _is_closed(_connection):
        raise AttemptAbandoned


def _is_closed(connection: int) -> bool:
    if not hasattr(select, "POLLRDHUP"):
        return False
    poller = select.poll()
    poller.register(connection, select.POLLRDHUP)
    return bool(poller.poll(0))


def wrap_worker_main(main: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    """Wrap the main function of Spark's Python worker. Abandoned task attempts then end early."""

    def run(infile: Any, outfile: Any) -> object:
        global _connection  # noqa: PLW0603 - a worker has one
        _connection = outfile.fileno()
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, _raise_abandoned)
        try:
            return main(infile, outfile)
        except SystemExit:
            if _is_closed(_connection):
                # Spark's daemon would log long stack traces about unsent output.
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), outfile.fileno())
            raise

    return run


def _raise_abandoned(_: int, __: FrameType | None) -> None:
    raise AttemptAbandoned
