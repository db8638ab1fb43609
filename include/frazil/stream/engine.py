"""The interface of engines, which run a function on each task of a batch: on Spark, or in a test's process.

Measures the CPU time and storage requests of the process and its JVM, by batch. Several streams in one process share
these measurements.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from frazil.errors import StaleBatch
from frazil.ingest.contract import StagedFile, StageResult
from frazil.stream.merge_tasks import MergeTasks
from frazil.stream.stage_rows import StageRows, parse_answer, process_name
from frazil.table.object_store import StorageRequests, counted_requests


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    result: StageResult
    seconds: float
    cpu_s: float = 0.0
    """CPU seconds outside the driver's process."""
    partitions: int | None = None
    """Number of table partitions in the task's rows; None without a shuffle."""


class RecordSuspected(Exception):
    """A shuffled task failed, perhaps because of a record. Staging without a shuffle finds the record."""


Stage = Callable[[StageRows], tuple[TaskAnswer, ...]]
"""Runs `Engine.run` with the plans of the current batch."""


class Engine(Protocol):
    """Runs tasks. Entering the engine's context starts the engine in the background."""

    @property
    def parallelism(self) -> int: ...

    def ready(self, until: Callable[[], bool]) -> bool:
        """Wait until a cluster can run tasks. Return False if `until` returns True first."""

    def warm_up(self) -> None:
        """Start workers for the first batch in the background."""

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        """Run `work` on each plan (a `StageTask` as JSON) in a separate task. Raises a task's error."""

    def merge(self, plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        """Run `work` on each plan of a merge task, and return the answers in order."""

    def check(self) -> None:
        """Raise an error if the engine cannot run another batch. Called about once a second."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def read_answers(answers: Iterable[str]) -> tuple[TaskAnswer, ...]:
    """Parse the answers of `StageRows`. Raises a task's error."""
    return tuple(_parse_task_answer(parse_answer(answer)) for answer in answers)


def _parse_task_answer(answer: Mapping[str, Any]) -> TaskAnswer:
    cpu_s = 0.0 if answer.get("process") == process_name() else answer.get("cpu_s", 0.0)
    return TaskAnswer(StageResult.from_json(answer["result"]), answer["task_s"], cpu_s)


def read_shuffled_answers(answers: Iterable[str]) -> tuple[TaskAnswer, ...]:
    """Parse the answers of a shuffled batch. Joins the answers of each reader and of the writer with its number.

    Raises a task's error, or RecordSuspected. Raises StaleBatch unless each writer received exactly the sent rows:
    Spark may have run a reader again, with other rows.
    """
    found = [parse_answer(answer) for answer in answers]
    if suspect := next((answer["suspect"] for answer in found if "suspect" in answer), None):
        raise RecordSuspected(suspect)
    readers = {answer["read"]: answer for answer in found if "read" in answer}
    writers = {answer["write"]: answer for answer in found if "write" in answer}
    sent = {(r, w): rows for r, answer in readers.items() for w, rows in enumerate(answer["sent"]) if rows}
    received = {(int(r), w): rows for w, answer in writers.items() for r, rows in answer["received"].items()}
    if sent != received or readers.keys() != writers.keys() or len(found) != 2 * len(readers):
        raise StaleBatch(
            "the shuffle's writers did not receive exactly the rows that its readers sent: the batch is staged again"
        )
    return tuple(_join_answers(readers[i], writers[i]) for i in sorted(readers))


def _join_answers(reader: Mapping[str, Any], writer: Mapping[str, Any]) -> TaskAnswer:
    together = {name: reader.get(name, 0.0) + writer.get(name, 0.0) for name in ("task_s", "cpu_s")}
    answer = _parse_task_answer({**reader, **together})
    files = (*answer.result.files, *map(StagedFile.from_json, writer["files"]))
    return replace(answer, result=replace(answer.result, files=files), partitions=reader["partitions"])


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
