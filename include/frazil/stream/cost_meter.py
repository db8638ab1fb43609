"""Measures the CPU time and storage requests of a writer's process and its JVM, by batch.

Several streams in one process share its measurements.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from frazil.table.object_store import StorageRequests, counted_requests


@dataclass(slots=True)
class CostMeter:
    """Measures a process's cost since its previous batch. The first batch includes the cost of starting the process."""

    jvm_pid: int | None = None
    _taken_s: float = 0.0
    _requests: StorageRequests = field(default_factory=StorageRequests)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> tuple[float, StorageRequests]:
        with self._lock:
            cpu_s, requests = time.process_time() + _process_cpu_s(self.jvm_pid), counted_requests()
            before_s, before = self._taken_s, self._requests
            self._taken_s, self._requests = cpu_s, requests
        # A JVM that was started again has used less.
        return max(cpu_s - before_s, 0.0), StorageRequests(
            requests.writes - before.writes, requests.reads - before.reads
        )


cost_meter = CostMeter()


def _process_cpu_s(pid: int | None) -> float:
    """Return the CPU (s) of another process; 0 if unknown."""
    if pid is None:
        return 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
