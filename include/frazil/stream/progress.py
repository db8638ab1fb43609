"""The progress of a long batch: tasks write their counts of records or merged rows, and the heartbeat adds them.

The files are next to the journals, where all hosts have access.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frazil.table.object_store import IoProperties
from frazil.table.storage import open_store

MAX_WRITES_PER_SECOND = 8.0
"""Maximum number of progress writes per second by all tasks of a batch on a cluster."""
MAX_WRITE_INTERVAL_S = 15.0
"""Maximum time (s) between two writes of a task."""
_WRITE = "write-"
_MERGE = "merge-"
MIN_MERGE_WRITE_INTERVAL_S = 1.0
"""Minimum time (s) between two writes of a merge task."""


def cluster_period_s(tasks: int) -> float:
    return min(max(1.0, tasks / MAX_WRITES_PER_SECOND), MAX_WRITE_INTERVAL_S)


@dataclass(frozen=True, slots=True)
class RecordCounts:
    read: int = 0
    written: int = 0
    """Number of records written after a shuffle, which starts once all records are read; 0 without a shuffle."""
    delay_s: float = 0.0
    """The longest time (s) by which a broker quota delays each fetch of a task."""
    compiling: bool = False
    """Whether a task is compiling loops over records."""


@dataclass(frozen=True, slots=True)
class ProgressFolder:
    """The folder of progress files `<task>.json`, `write-<writer>.json` after a shuffle, and `merge-<task>.json`."""

    location: str
    io: IoProperties
    period_s: float = 0.0
    """Time (s) before a task's first write, and between two writes. With 0, each report is written."""
    attempt: int = 0
    """The batch's attempt; files of earlier attempts are ignored. For a merge, its start (ms since 1970)."""

    def write(self, task: str, counts: RecordCounts, *, epoch: int, batch: int) -> None:
        """Write a task's counts. For a shuffle's writer (`writer_task_name`), `counts.read` counts written records."""
        value = {"epoch": epoch, "batch": batch, "attempt": self.attempt, "records": counts.read}
        self._put(task, {**value, "delay-s": counts.delay_s, "compiling": counts.compiling})

    def write_merged(self, task: int, *, rows: int) -> None:
        self._put(f"{_MERGE}{task}", {"attempt": self.attempt, "rows": rows})

    def _put(self, task: str, value: Mapping[str, float]) -> None:
        open_store(self.location, self.io).put(f"{self.location}/{task}.json", json.dumps(value).encode())

    def clear(self) -> None:
        store = open_store(self.location, self.io)
        store.delete(file.path for file in store.list_files(self.location))

    def count_merged_rows(self, *, since: int) -> int:
        """Return how many rows the newest merge has read; 0 if no merge began at or after `since`."""
        values = [value for _, value in self._read_files(_MERGE)]
        newest = max((value["attempt"] for value in values if value["attempt"] >= since), default=None)
        return sum(value["rows"] for value in values if value["attempt"] == newest)

    def count_records(self, *, epoch: int, batch: int) -> RecordCounts:
        """Return what the newest attempt of a batch has read and written so far."""
        read, written, newest, delay_s, compiling = 0, 0, -1, 0.0, False
        for task, value in self._read_files():
            attempt = value.get("attempt", 0)
            if (value.get("epoch"), value.get("batch")) != (epoch, batch) or attempt < newest:
                continue
            if attempt > newest:
                newest, read, written, delay_s, compiling = attempt, 0, 0, 0.0, False
            if task.startswith(_WRITE):
                written += value["records"]
            else:
                read += value["records"]
            delay_s = max(delay_s, value.get("delay-s", 0.0))
            compiling |= bool(value.get("compiling"))
        return RecordCounts(read, written, delay_s, compiling)

    def _read_files(self, prefix: str = "") -> Iterator[tuple[str, dict[str, int]]]:
        store = open_store(self.location, self.io)
        for file in store.list_files(self.location):
            name = file.path.rpartition("/")[2]
            if name.startswith(prefix) and (data := store.get(file.path)):
                yield name, json.loads(data)


def writer_task_name(writer: int) -> str:
    return f"{_WRITE}{writer}"
