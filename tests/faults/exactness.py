"""Checks after every fault: each record is in a table exactly once, and no file is orphaned."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from frazil.commit.journal import bare_path
from frazil.commit.sweep import referenced_paths
from frazil.host.records import ExitRecord

TABLES = ("", "_dead_letters")


def kills(exits: Iterable[ExitRecord]) -> list[int | None]:
    """Return the exit codes, without crashes that slow Python workers caused.

    Spark waits ten seconds for a worker to start, whatever is configured. On a very busy machine it then gives up, and
    the writer crashes and is restarted, as after any other fault.
    """
    return [e.code for e in exits if e.code != 1 or "Python worker" not in (e.error or "")]


def check_exact(stream: Any, ids: Iterable[int], *, rejected: Iterable[bytes | None] = ()) -> None:
    """Check that the table has exactly these ids, the dead-letter table these values, and the disk only their files."""
    assert stream.ids() == sorted(ids)
    dead_letters = stream.table("_dead_letters").scan().to_arrow()["value"].to_pylist()
    assert sorted(dead_letters, key=repr) == sorted(rejected, key=repr)
    assert parquet_files(stream) == referenced_files(stream), "a file on disk is in no table, or the other way round"


def parquet_files(stream: Any) -> set[str]:
    """Return all data files below the locations of both tables."""
    folders = {Path(bare_path(stream.table(suffix).location())) for suffix in TABLES}
    return {str(file) for folder in folders for file in folder.rglob("*.parquet")}


def referenced_files(stream: Any) -> set[str]:
    """Return all data files that a snapshot of either table refers to."""
    return {path for suffix in TABLES for path in referenced_paths(stream.table(suffix))}
