"""The progress of a long batch: each task writes its record count, and the heartbeat adds them up.

The files lie beside the journals and not in the run folder, because executors may run on other hosts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from frazil.table.object_store import IoProperties
from frazil.table.storage import open_store

WRITES_A_SECOND = 8.0
"""By all tasks of a batch together, on a cluster: a request of an object store each."""
PERIOD_MOST_S = 15.0
"""A person still sees a large batch advance."""


def cluster_period_s(tasks: int) -> float:
    """How often each of so many tasks that run at once may write."""
    return min(max(1.0, tasks / WRITES_A_SECOND), PERIOD_MOST_S)


@dataclass(frozen=True, slots=True)
class ProgressFolder:
    """`<state>/progress/<task>.json`, each replaced whole."""

    location: str
    io: IoProperties
    period_s: float = 0.0
    """How long a task waits before it writes, and then between two writes; 0 for as often as a stage reports."""

    def write(self, task: int, *, epoch: int, batch: int, records: int) -> None:
        value = {"epoch": epoch, "batch": batch, "records": records}
        open_store(self.location, self.io).put(f"{self.location}/{task}.json", json.dumps(value).encode())

    def records(self, *, epoch: int, batch: int) -> int:
        """Records that the tasks of one batch have read so far."""
        store = open_store(self.location, self.io)
        total = 0
        for file in store.list_files(self.location):
            data = store.get(file.path)
            value = json.loads(data) if data else {}
            if (value.get("epoch"), value.get("batch")) == (epoch, batch):
                total += value["records"]
        return total
