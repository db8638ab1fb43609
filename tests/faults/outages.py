"""Outages of services, and how long they last."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frazil.dev.kafka import EmbeddedKafka

for_a_while = pytest.mark.parametrize("for_s", [8, pytest.param(60, marks=pytest.mark.soak)])
"""Parameter: the length of the outage in seconds; also a minute in `make soak`."""


@contextmanager
def silent(broker: EmbeddedKafka) -> Iterator[None]:
    """Suspend the broker's process within the block: it accepts connections, but never responds."""
    server = broker.server()
    assert server is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)
        broker.start()  # runs already: waits until it answers


@contextmanager
def locked(catalog: Path) -> Iterator[None]:
    """Lock the embedded catalog's database within the block, so that no process can read or write it."""
    database = sqlite3.connect(catalog, isolation_level=None)
    try:
        database.execute("BEGIN EXCLUSIVE")
        yield
        database.execute("ROLLBACK")
    finally:
        database.close()
