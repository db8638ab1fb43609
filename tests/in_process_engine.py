"""An engine without a JVM for writers in tests. It keeps the promises that Spark makes to a batch.

Everything else is the writer's real code, including the function that stages. As on Spark, each plan is a task, and the
tasks' function is pickled with cloudpickle.

Executors never die here, and tasks are never retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pyspark import cloudpickle

from frazil.stream.engine import TaskAnswer, read_answers, read_shuffled_answers
from frazil.stream.merge_tasks import MergeTasks
from frazil.stream.stage_rows import StageRows


class InProcessEngine:
    """One engine for any number of writers. Tasks run in the calling thread."""

    parallelism = 2

    def start(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ready(self, until: object) -> bool:  # noqa: ARG002
        return True

    def warm_up(self) -> None:
        pass

    def cancel(self, stream: str) -> None:
        pass

    def check(self) -> None:
        pass

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        shipped = cloudpickle.dumps(work)
        if work.context.shuffle is None:
            return read_answers(answer for plan in plans for answer in _arrived(shipped)([plan]))
        sent = [item for plan in plans for item in _arrived(shipped).read([plan])]
        writers = range(work.context.shuffle.writers)
        return read_shuffled_answers(
            answer
            for writer in writers
            for answer in _arrived(shipped).write(writer, (item for item in sent if item[0] == writer))
        )

    def merge(self, plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        arrived: MergeTasks = cloudpickle.loads(cloudpickle.dumps(work))
        return [*arrived(plans)]


def _arrived(shipped: bytes) -> StageRows:
    work: StageRows = cloudpickle.loads(shipped)
    return work
