"""The interface of what runs a stream's batches: Spark for users, this process alone for most tests.

An engine decides nothing. It maps a function over the tasks of a batch (`Stage`). And it runs a query: it asks the
source (`frazil.stream.source`) where the next batch ends, and calls back with the batch's tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from frazil import errors
from frazil.ingest.contract import StageResult
from frazil.stream.position import Position
from frazil.stream.stage_rows import StageRows


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """The answer of one task of a batch."""

    result: StageResult
    position: Position | None
    """Where the whole batch ends, the same in every answer; None in a backfill."""
    seconds: float


Stage = Callable[[StageRows], tuple[TaskAnswer, ...]]
"""Runs the function on every task of the current batch. Without answers the batch has no task.

Raises the FrazilError that a task ended with (`read_answers`), or what the engine raises.
"""


@dataclass(frozen=True, slots=True)
class Query:
    """A query to start: `options` are those of `frazil.stream.source.RangeSource`."""

    name: str
    options: Mapping[str, str]
    trigger_s: float
    """How often the source is asked where the next batch ends."""
    checkpoint: Path
    """A folder that does not exist yet."""


class RunningQuery(Protocol):
    def wait(self, timeout_s: float) -> bool:
        """Wait at most so many seconds; returns whether the query has ended. Raises what ended it.

        That is `PythonStartTimeout` if the engine's host is too busy; other errors of the source may be text only.
        """

    def stop(self) -> None:
        """End the query after its current batch, or abandon that batch after a while."""


class Engine(Protocol):
    """A context manager: entering it starts the engine in the background, leaving it ends the engine."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    def warm_up(self) -> None:
        """Prepare for the first batch, in the background."""

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        """Map `work` over tasks that no query planned; `plans` have the form of `RangeSource`'s."""

    def start(self, query: Query, on_batch: Callable[[Stage], None]) -> RunningQuery:
        """Start a query. It calls `on_batch` for each batch in turn, in a thread of the engine."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def read_answers(answers: Iterable[str]) -> tuple[TaskAnswer, ...]:
    """Parse the answers of `StageRows`; raises the FrazilError that a task ended with."""
    return tuple(_read_answer(json.loads(answer)) for answer in answers)


def _read_answer(answer: Mapping[str, Any]) -> TaskAnswer:
    if "error" in answer:
        raise getattr(errors, answer["error_type"])(answer["error"])
    position = answer["position"]
    return TaskAnswer(
        StageResult.from_json(answer["result"]), position and Position.from_json(position), answer["task_s"]
    )
