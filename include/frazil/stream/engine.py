"""The interface of engines, which run a function on each task of a batch: on Spark, or in the calling process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self

from frazil.errors import StaleBatch
from frazil.ingest.contract import StagedFile, StageResult
from frazil.stream.merge_tasks import MergeTasks
from frazil.stream.stage_rows import StageRows, parse_answer, process_name


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


class TaskRunner(Protocol):
    """Runs the tasks that stage records."""

    @property
    def parallelism(self) -> int: ...

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        """Run `work` on each plan (a `StageTask` as JSON) in a separate task. Raises a task's error."""


class Engine(TaskRunner, Protocol):
    """Runs a writer's tasks. Entering the engine's context starts the engine in the background."""

    def ready(self, until: Callable[[], bool]) -> bool:
        """Wait until a cluster can run tasks. Return False if `until` returns True first."""

    def warm_up(self) -> None:
        """Start workers for the first batch in the background."""

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
    parsed = [parse_answer(answer) for answer in answers]
    if suspect := next((answer["suspect"] for answer in parsed if "suspect" in answer), None):
        raise RecordSuspected(suspect)
    readers = {answer["read"]: answer for answer in parsed if "read" in answer}
    writers = {answer["write"]: answer for answer in parsed if "write" in answer}
    sent = {(r, w): rows for r, answer in readers.items() for w, rows in enumerate(answer["sent"]) if rows}
    received = {(int(r), w): rows for w, answer in writers.items() for r, rows in answer["received"].items()}
    if sent != received or readers.keys() != writers.keys() or len(parsed) != 2 * len(readers):
        raise StaleBatch(
            "the shuffle's writers did not receive exactly the rows that its readers sent: the batch is staged again"
        )
    return tuple(_join_answers(readers[i], writers[i]) for i in sorted(readers))


def _join_answers(reader: Mapping[str, Any], writer: Mapping[str, Any]) -> TaskAnswer:
    together = {name: reader.get(name, 0.0) + writer.get(name, 0.0) for name in ("task_s", "cpu_s")}
    answer = _parse_task_answer({**reader, **together})
    files = (*answer.result.files, *map(StagedFile.from_json, writer["files"]))
    return replace(answer, result=replace(answer.result, files=files), partitions=reader["partitions"])
