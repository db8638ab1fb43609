"""Spark's side of a writer without a JVM: what its micro-batch loop promises to a source and to `foreachBatch`.

The code under test is the writer's own, down to the stage's function and the source; only the engine between them is
this one. What it keeps of Spark (read off runs of 4.1.3, see docs/adr and the tests with a real Spark):

- a query's first batch is always run, also where its start is its end; later ones where the offset's text changed;
- offsets pass through JSON, tasks and the function that they run through cloudpickle;
- `partitions` and `read` are called by the source's process, each row is one task, and `commit` follows the batch;
- an error in a batch ends the query, and is raised by `awaitTermination` as text.

What it does not have: executors that die, retries of tasks, a checkpoint. The tests of `tests/faults` have those.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from frazil.stream.source import RangeSource


class Session:
    """What the writer and the backfill use of a `SparkSession`."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.dataSource = self
        self.defaultParallelism = 2

    def setLogLevel(self, level: str) -> None:  # noqa: N802
        pass

    def register(self, source: type) -> None:
        pass

    def stop(self) -> None:
        pass

    def range(self, *_: int, **__: int) -> Frame:
        return Frame([])

    def createDataFrame(self, rows: Iterable[tuple[str]], schema: str) -> Frame:  # noqa: ARG002, N802
        return Frame([row[0] for row in rows])

    @property
    def readStream(self) -> Stream:  # noqa: N802
        return Stream()


class Frame:
    """A batch: one plan, as text, for each task."""

    def __init__(self, plans: list[str]) -> None:
        self._plans = plans

    def mapInArrow(self, function: Callable[..., Any], schema: str, **_: Any) -> Answers:  # noqa: N802, ARG002
        return Answers(self._plans, cloudpickle.dumps(function))

    def isEmpty(self) -> bool:  # noqa: N802
        return not self._plans


class Answers:
    """What the tasks of a batch answer, once they are collected."""

    def __init__(self, plans: list[str], function: bytes) -> None:
        self._plans, self._function = plans, function

    def collect(self) -> list[Row]:
        return [row for plan in self._plans for row in self._task(plan)]

    def _task(self, plan: str) -> Iterator[Row]:
        shipped = cloudpickle.loads(self._function)
        for batch in shipped(iter([pa.RecordBatch.from_pydict({"plan": [plan]})])):
            yield from (Row(**answer) for answer in batch.to_pylist())


class Stream:
    """`readStream` and `writeStream`, whose settings are all strings in Spark too."""

    def __init__(self) -> None:
        self._options: dict[str, str] = {}
        self._function: Callable[[Any, int], None] | None = None
        self._trigger_s = 0.0

    def format(self, name: str) -> Self:
        assert name == RangeSource.name()
        return self

    def option(self, key: str, value: str) -> Self:
        self._options[key] = value
        return self

    def load(self) -> Self:
        return self

    @property
    def writeStream(self) -> Self:  # noqa: N802
        return self

    def foreachBatch(self, function: Callable[[Any, int], None]) -> Self:  # noqa: N802
        self._function = function
        return self

    def queryName(self, name: str) -> Self:  # noqa: ARG002, N802
        return self

    def trigger(self, *, processingTime: str) -> Self:  # noqa: N803
        self._trigger_s = int(processingTime.removesuffix(" milliseconds")) / 1000
        return self

    def start(self) -> Query:
        assert self._function is not None
        return Query(self._options, self._function, self._trigger_s)


class Query:
    """The micro-batch loop, in a thread."""

    def __init__(self, options: dict[str, str], function: Callable[[Any, int], None], trigger_s: float) -> None:
        self._function, self._trigger_s = function, trigger_s
        self._reader = RangeSource(options).streamReader(None)  # type: ignore[arg-type]
        self._stopped = threading.Event()
        self._busy = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": self._busy}

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        self._thread.join(timeout)
        if self._error is not None:
            raise StreamingQueryException(f"[STREAM_FAILED] {type(self._error).__name__}: {self._error}")
        return not self.isActive

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            start, batch = json.dumps(self._reader.initialOffset()), 0
            while not self._stopped.is_set():
                began = time.monotonic()
                end = json.dumps(self._reader.latestOffset())
                if batch == 0 or end != start:
                    self._busy = True
                    self._batch(json.loads(start), json.loads(end), batch)
                    self._busy = False
                    start, batch = end, batch + 1
                self._stopped.wait(max(0.0, self._trigger_s - (time.monotonic() - began)))
        except BaseException as error:
            self._error = error
        finally:
            self._busy = False

    def _batch(self, start: dict[str, Any], end: dict[str, Any], number: int) -> None:
        parts = [cloudpickle.loads(cloudpickle.dumps(p)) for p in self._reader.partitions(start, end)]
        self._function(Frame([row[0] for part in parts for row in self._reader.read(part)]), number)
        self._reader.commit(end)
