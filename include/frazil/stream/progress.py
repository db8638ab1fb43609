"""The progress of a long batch: each task writes its count of records, and each task of a merge its count of rows. The
heartbeat adds them up.

The files lie beside the journals and not in the run folder, because executors may run on other hosts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from frazil.table.object_store import IoProperties
from frazil.table.storage import open_store

WRITES_A_SECOND = 8.0
"""By all tasks of a batch together, on a cluster: a request of an object store each."""
MAX_PERIOD_S = 15.0
"""A person still sees a large batch advance."""
_WRITE = "write-"
_MERGE = "merge-"
MERGE_PERIOD_S = 1.0
"""A task of a merge that reads many small files writes no more often."""


def cluster_period_s(tasks: int) -> float:
    """How often each of so many tasks that run at once may write."""
    return min(max(1.0, tasks / WRITES_A_SECOND), MAX_PERIOD_S)


@dataclass(frozen=True, slots=True)
class Counted:
    """How far the tasks of one batch are, in records."""

    read: int = 0
    written: int = 0
    """By the writers of a shuffle, which begin when all is read; 0 without one."""


@dataclass(frozen=True, slots=True)
class ProgressFolder:
    """`<state>/progress/<task>.json`, `write-<writer>.json` after a shuffle, `merge-<task>.json`; each put whole."""

    location: str
    io: IoProperties
    period_s: float = 0.0
    """How long a task waits before it writes, and then between two writes; 0 for as often as a stage reports."""
    attempt: int = 0
    """Which try of the batch writes: a task of an earlier one may still write after a later one began. Of a merge, when
    it began, in milliseconds since the epoch."""

    def write(self, task: str, *, epoch: int, batch: int, records: int) -> None:
        """How many records a task has read, or what `write_task` names has written."""
        value = {"epoch": epoch, "batch": batch, "attempt": self.attempt, "records": records}
        self._put(task, value)

    def write_merged(self, task: int, *, rows: int) -> None:
        """How many rows of the table's files, and of its changes, a task of a merge has read."""
        self._put(f"{_MERGE}{task}", {"attempt": self.attempt, "rows": rows})

    def _put(self, task: str, value: Mapping[str, int]) -> None:
        open_store(self.location, self.io).put(f"{self.location}/{task}.json", json.dumps(value).encode())

    def clear(self) -> None:
        """Remove what tasks wrote: before a batch is staged again, or merged, so that its count begins at nothing."""
        store = open_store(self.location, self.io)
        store.delete(file.path for file in store.list_files(self.location))

    def merged(self, *, since: int) -> int:
        """The rows that the tasks of a merge's newest attempt have read so far; 0 if none began at `since` or later."""
        store = open_store(self.location, self.io)
        found = (store.get(f.path) for f in store.list_files(self.location) if _name(f.path).startswith(_MERGE))
        values = [json.loads(data) for data in found if data]
        newest = max((value["attempt"] for value in values if value["attempt"] >= since), default=None)
        return sum(value["rows"] for value in values if value["attempt"] == newest)

    def counted(self, *, epoch: int, batch: int) -> Counted:
        """What the tasks of one batch's newest try have read and written so far."""
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
    """The name of a shuffle's writer among a batch's tasks."""
    return f"{_WRITE}{writer}"
