"""The engine of a writer without a JVM: what Spark promises to a batch.

The code under test is the writer's own, down to the stage's function; only the engine below it is this one. As on
Spark, each plan is a task, and the function that tasks run passes through cloudpickle.

What it does not have: executors that die, retries of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pyspark import cloudpickle

from frazil.stream.engine import TaskAnswer, read_answers
from frazil.stream.stage_rows import StageRows


class InProcessEngine:
    """One for any number of writers; tasks run in the thread that asks for them."""

    parallelism = 2

    def start(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def warm_up(self) -> None:
        pass

    def check(self) -> None:
        pass

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        shipped = cloudpickle.dumps(work)
        return read_answers(answer for plan in plans for answer in _task(shipped, plan))


def _task(shipped: bytes, plan: str) -> list[str]:
    work: StageRows = cloudpickle.loads(shipped)
    return list(work([plan]))
