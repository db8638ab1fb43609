"""Parts that are out of reach for a while, and how long."""

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
"""How long, in seconds: a minute in `make soak`."""


@contextmanager
def silent(broker: EmbeddedKafka) -> Iterator[None]:
    """The broker's process does nothing meanwhile: it accepts connections and answers none."""
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
    """The embedded catalog's database lets no one read or write meanwhile."""
    database = sqlite3.connect(catalog, isolation_level=None)
    try:
        database.execute("BEGIN EXCLUSIVE")
        yield
        database.execute("ROLLBACK")
    finally:
        database.close()
