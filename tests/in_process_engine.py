"""The engine of a writer without a JVM: what Spark's micro-batch loop promises to a source and to a batch.

The code under test is the writer's own, down to the stage's function and the source; only the engine between them is
this one. What it keeps of Spark (read off runs of 4.1.3, see docs/adr and the tests with a real Spark):

- a query's first batch is always run, also where its start is its end; later ones where the offset's text changed;
- offsets pass through JSON, tasks and the function that they run through cloudpickle;
- `partitions` and `read` are called by the source's process, each row is one task, and `commit` follows the batch;
- an error in a batch ends the query, and is raised by `wait` as text.

What it does not have: executors that die, retries of tasks, a checkpoint.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from pyspark import cloudpickle

from frazil.stream.engine import Query, Stage, TaskAnswer, read_answers
from frazil.stream.source import RangeSource
from frazil.stream.stage_rows import StageRows


class InProcessEngine:
    """One for any number of writers; each query is a thread of this process, which also runs the tasks."""

    parallelism = 2

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def warm_up(self) -> None:
        pass

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        shipped = cloudpickle.dumps(work)
        return read_answers(_task(shipped, plan) for plan in plans)

    def start(self, query: Query, on_batch: Callable[[Stage], None]) -> RunningInProcess:
        return RunningInProcess(query, lambda plans: on_batch(lambda work: self.run(plans, work)))


def _task(shipped: bytes, plan: str) -> str:
    work: StageRows = cloudpickle.loads(shipped)
    return work.answer(plan)


class RunningInProcess:
    """The micro-batch loop, in a thread."""

    def __init__(self, query: Query, on_batch: Callable[[list[str]], None]) -> None:
        self._on_batch, self._trigger_s = on_batch, query.trigger_s
        self._reader = RangeSource(dict(query.options)).streamReader(None)  # type: ignore[arg-type]
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        if self._error is not None:
            raise RuntimeError(f"[STREAM_FAILED] {type(self._error).__name__}: {self._error}")
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            start, number = json.dumps(self._reader.initialOffset()), 0
            while not self._stopped.is_set():
                began = time.monotonic()
                end = json.dumps(self._reader.latestOffset())
                if number == 0 or end != start:
                    self._batch(json.loads(start), json.loads(end))
                    start, number = end, number + 1
                self._stopped.wait(max(0.0, self._trigger_s - (time.monotonic() - began)))
        except BaseException as error:
            self._error = error

    def _batch(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        parts: Iterable[Any] = (cloudpickle.loads(cloudpickle.dumps(p)) for p in self._reader.partitions(start, end))
        self._on_batch([row[0] for part in parts for row in self._reader.read(part)])
        self._reader.commit(end)
