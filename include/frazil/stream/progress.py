"""The progress of a long batch: each task writes its count of records or merged rows, and the heartbeat adds them up.

The files lie next to the journals, not in the run folder, because executors may run on other hosts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from frazil.table.object_store import IoProperties
from frazil.table.storage import open_store

WRITES_A_SECOND = 8.0
"""Writes per second by all tasks of a batch on a cluster; each is a request to an object store."""
MAX_PERIOD_S = 15.0
"""Short enough that people still see a large batch advance."""
_WRITE = "write-"
_MERGE = "merge-"
MERGE_PERIOD_S = 1.0
"""Write interval of a merge task, which may read many small files."""


def cluster_period_s(tasks: int) -> float:
    """Return the write interval of each of `tasks` tasks that run at once."""
    return min(max(1.0, tasks / WRITES_A_SECOND), MAX_PERIOD_S)


@dataclass(frozen=True, slots=True)
class Counted:
    """How far the tasks of one batch are, in records."""

    read: int = 0
    written: int = 0
    """Records written by the writers of a shuffle, which begin when all is read; 0 without a shuffle."""


@dataclass(frozen=True, slots=True)
class ProgressFolder:
    """`<state>/progress/<task>.json`, `write-<writer>.json` after a shuffle, `merge-<task>.json`; each replaced as a
    whole.
    """

    location: str
    io: IoProperties
    period_s: float = 0.0
    """How long a task waits before its first write and between two writes; 0 for as often as a stage reports."""
    attempt: int = 0
    """The attempt of the batch that writes; a task of an earlier one may still write after a later one began.

    For a merge, the time it began, in milliseconds since the epoch.
    """

    def write(self, task: str, *, epoch: int, batch: int, records: int) -> None:
        """Write how many records a task has read, or a shuffle's writer (`write_task`) has written."""
        value = {"epoch": epoch, "batch": batch, "attempt": self.attempt, "records": records}
        self._put(task, value)

    def write_merged(self, task: int, *, rows: int) -> None:
        """Write how many rows of the table's files and of the changes a merge task has read."""
        self._put(f"{_MERGE}{task}", {"attempt": self.attempt, "rows": rows})

    def _put(self, task: str, value: Mapping[str, int]) -> None:
        open_store(self.location, self.io).put(f"{self.location}/{task}.json", json.dumps(value).encode())

    def clear(self) -> None:
        """Remove what tasks wrote, before a batch is staged or merged again, so that its count starts at 0."""
        store = open_store(self.location, self.io)
        store.delete(file.path for file in store.list_files(self.location))

    def merged(self, *, since: int) -> int:
        """Return the rows that the newest merge has read so far; 0 if none began at `since` or later."""
        store = open_store(self.location, self.io)
        found = (store.get(f.path) for f in store.list_files(self.location) if _name(f.path).startswith(_MERGE))
        values = [json.loads(data) for data in found if data]
        newest = max((value["attempt"] for value in values if value["attempt"] >= since), default=None)
        return sum(value["rows"] for value in values if value["attempt"] == newest)

    def counted(self, *, epoch: int, batch: int) -> Counted:
        """Return the records that the newest attempt of one batch has read and written so far."""
        store, newest = open_store(self.location, self.io), -1
        read = written = 0
        for file in store.list_files(self.location):
            data = store.get(file.path)
            value = json.loads(data) if data else {}
            attempt = value.get("attempt", 0)
            if (value.get("epoch"), value.get("batch")) != (epoch, batch) or attempt < newest:
                continue
            if attempt > newest:
                newest, read, written = attempt, 0, 0
            if _name(file.path).startswith(_WRITE):
                written += value["records"]
            else:
                read += value["records"]
        return Counted(read, written)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def write_task(writer: int) -> str:
    """Return the name of a shuffle's writer among a batch's tasks."""
    return f"{_WRITE}{writer}"
