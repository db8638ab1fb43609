"""Writes that do not wait for the disk: tests kill processes and never the host, so that a sync protects nothing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from sqlalchemy import Engine, event


def write_without_sync() -> None:
    """Let this process's files, and its SQLite databases that SQLAlchemy opens, be written without a sync."""
    os.fsync = lambda _: None
    event.listen(Engine, "connect", _switch_off)


def _switch_off(connection: object, _: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        with suppress(sqlite3.Error):  # the first statement raises it again
            connection.execute("PRAGMA synchronous = OFF")
