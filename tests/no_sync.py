"""Turns off syncs to disk. Tests kill processes but never the host, so a sync protects nothing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from sqlalchemy import Engine, event


def write_without_sync() -> None:
    """Write this process's files, and the SQLite databases that SQLAlchemy opens, without a sync."""
    os.fsync = lambda _: None
    event.listen(Engine, "connect", _switch_off)


def _switch_off(connection: object, _: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        with suppress(sqlite3.Error):  # the first statement raises it again
            connection.execute("PRAGMA synchronous = OFF")
