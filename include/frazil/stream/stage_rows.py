"""The function that an engine runs on each task of a batch: it takes a plan and returns an answer, both JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from frazil.errors import FrazilError
from frazil.ingest.contract import StageContext, StageTask
from frazil.ingest.stage import stage
from frazil.stream.progress import ProgressFolder

ANSWER_SCHEMA = "answer string"
"""The schema of the rows that Spark gets."""


@dataclass(frozen=True)
class StageRows:
    """Called with one plan, or on the executors by `mapInArrow` with rows of plans.

    A FrazilError is returned as an answer, because Spark would retry a task that raises, and staging has retried
    enough. Spark still retries a task whose worker died.
    """

    context: StageContext
    progress: ProgressFolder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for plan in batch.column("plan").to_pylist():
                yield pa.RecordBatch.from_pydict({"answer": [self.answer(plan)]})

    def answer(self, plan: str) -> str:
        """Stage one task, and return an answer for `frazil.stream.engine.read_answers`."""
        return json.dumps(self._answer(json.loads(plan)))

    def _answer(self, plan: dict[str, object]) -> dict[str, object]:
        task = StageTask.from_json(plan["task"])  # type: ignore[arg-type]
        running = TaskContext.get()
        attempt = running.attemptNumber() if running else 0
        began = time.monotonic()
        try:
            result = stage(self.context, task, attempt=attempt, on_progress=self._reporter(task.index))
        except FrazilError as error:
            return {"error_type": type(error).__name__, "error": str(error)}
        return {"position": plan["position"], "result": result.to_json(), "task_s": time.monotonic() - began}

    def _reporter(self, task: int) -> Callable[[int], None]:
        def report(records: int) -> None:
            self.progress.write(task, epoch=self.context.epoch, batch=self.context.batch, records=records)

        return report
