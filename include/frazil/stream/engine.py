"""What carries out the batches of a stream: Spark for users, this process alone for most tests.

An engine does two things, and decides nothing. It maps a function over the tasks of a batch (`Stage`), and it runs a
query: it asks the source (`frazil.stream.source`) where the next batch ends, and calls back with the batch's tasks.
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
    """What one task of a batch answers."""

    result: StageResult
    position: Position | None
    """Where the whole batch ends, the same in each answer; None in a backfill."""
    seconds: float


Stage = Callable[[StageRows], tuple[TaskAnswer, ...]]
"""Runs the function on every task of the batch at hand. No answer means that the batch has no task.

Raises the error of ours that a task ended with (`read_answers`), or whatever the engine raises.
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
        """Whether the query has ended, after at most so many seconds; raises what ended it.

        `PythonStartTimeout` where the engine's host is too busy; other errors of the source may come as text only.
        """

    def stop(self) -> None:
        """End the query once the batch at hand is over, or give up on that batch after a while."""


class Engine(Protocol):
    """Starts when it is entered, in the background; ends when it is left."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    def warm_up(self) -> None:
        """Prepare for the first batch, in the background."""

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        """Map `work` over tasks that no query planned; `plans` are as `RangeSource` has them."""

    def start(self, query: Query, on_batch: Callable[[Stage], None]) -> RunningQuery:
        """Start a query; `on_batch` is called for one batch after the other, in a thread of the engine's."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def read_answers(answers: Iterable[str]) -> tuple[TaskAnswer, ...]:
    """What `StageRows` answered; raises the error of ours that a task ended with."""
    return tuple(_read_answer(json.loads(answer)) for answer in answers)


def _read_answer(answer: Mapping[str, Any]) -> TaskAnswer:
    if "error" in answer:
        raise getattr(errors, answer["error_type"])(answer["error"])
    position = answer["position"]
    return TaskAnswer(
        StageResult.from_json(answer["result"]), position and Position.from_json(position), answer["task_s"]
    )
