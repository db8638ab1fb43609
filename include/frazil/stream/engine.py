"""The interface of what runs the tasks of a stream's batches: Spark for users, this process alone for most tests.

An engine decides nothing: it maps a function over the tasks of a batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
"""`Engine.run` with the plans of the current batch."""


class Engine(Protocol):
    """A context manager: entering it starts the engine in the background, leaving it ends the engine."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    def warm_up(self) -> None:
        """Prepare for the first batch, in the background."""

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        """Map `work` over plans (`frazil.stream.planner.BatchPlanner.plans`), one task per plan; returns the answers.

        Raises the FrazilError that a task ended with (`read_answers`), or what the engine raises.
        """

    def check(self) -> None:
        """Raises if the engine has ended, so that no batch could run. Called about once a second."""

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
