"""The engine that runs batches on Spark: the session, the streaming query, and the tasks on the executors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from frazil.errors import PythonStartTimeout, WorkerDied
from frazil.spec.model import StreamSpec
from frazil.stream.engine import Query, Stage, TaskAnswer, read_answers
from frazil.stream.session import add_source, start_session, warm_up
from frazil.stream.source import FORMAT, SCHEMA
from frazil.stream.stage_rows import ANSWER_SCHEMA, StageRows

QUIET_WITHIN_S = 2.0
QUIET_CHECK_S = 0.02
NOT_CONNECTED = "Python worker failed to connect back"
"""Spark's error for a Python process that takes longer than 10 s to start. The limit is fixed."""
DIED = {"Python worker exited unexpectedly": "a Python worker", "ExecutorLostFailure": "an executor"}
"""Spark's words for a task whose process died, and what died."""
GIVEN_UP = re.compile(r"failed (?P<tries>\d+) times, most recent failure: Lost task [^(]*\(TID \d+\) \((?P<host>\S+)")
EXIT_CODE = re.compile(r"exited? (?:with|status:?|code:?) ?(?:code:? ?)?(?P<code>\d+)", re.IGNORECASE)
KILLED = 137
"""128 + SIGKILL."""


class SparkEngine:
    """Starts and ends a session for a stream, or uses a given one, which it leaves running."""

    def __init__(self, spec: StreamSpec, session: SparkSession | None = None) -> None:
        self._spec, self._given = spec, session
        self._pool = ThreadPoolExecutor(1, "spark")
        self._session: Future[SparkSession] = Future()
        self._has_source = False

    def __enter__(self) -> Self:
        # In a thread, because the JVM takes as long to start as the take-over, and because Spark replaces signal
        # handlers only in the main thread.
        self._session = self._pool.submit(self._start_session)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._pool:
            if not self._given:
                self._session.result().stop()

    @property
    def parallelism(self) -> int:
        return self._session.result().sparkContext.defaultParallelism

    def warm_up(self) -> None:
        self._pool.submit(warm_up, self._session, self._spec.resources.cores)

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        return staged(self._session.result().createDataFrame([(plan,) for plan in plans], SCHEMA), work)

    def start(self, query: Query, on_batch: Callable[[Stage], None]) -> SparkQuery:
        def run_batch(tasks: DataFrame, _: int) -> None:
            on_batch(lambda work: staged(tasks, work))

        session = self._session.result()
        if not self._has_source:
            add_source(session)
            self._has_source = True
        with task_failures(query.name):
            source = session.readStream.format(FORMAT).options(**query.options).load()
            started = (
                source.writeStream.foreachBatch(run_batch)
                .queryName(query.name)
                .trigger(processingTime=f"{int(query.trigger_s * 1000)} milliseconds")
                .option("checkpointLocation", query.checkpoint.as_uri())
                .start()
            )
        return SparkQuery(started, query.name)

    def _start_session(self) -> SparkSession:
        return self._given or start_session(self._spec)


class SparkQuery:
    """A streaming query of Spark's."""

    def __init__(self, query: StreamingQuery, stream: str) -> None:
        self._query, self._stream = query, stream

    def wait(self, timeout_s: float) -> bool:
        with task_failures(self._stream):
            return bool(self._query.awaitTermination(timeout_s))  # type: ignore[arg-type]  # takes fractions of a second

    def stop(self) -> None:
        """Stop after Spark has written the checkpoint of its batch: interrupted, it prints a long stack trace."""
        deadline = time.monotonic() + QUIET_WITHIN_S
        while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(QUIET_CHECK_S)
        self._query.stop()


def staged(tasks: DataFrame, work: StageRows) -> tuple[TaskAnswer, ...]:
    """Run `work` on each row of plans, one Spark task per row; see `frazil.stream.engine.Stage`."""
    with task_failures(work.context.stream):
        rows = tasks.mapInArrow(work, ANSWER_SCHEMA).collect()
    return read_answers(row.answer for row in rows)


@contextmanager
def task_failures(stream: str) -> Iterator[None]:
    """Turn Spark's page of Java frames about a process that died or started too late into an error of ours."""
    try:
        yield
    except Exception as error:
        said = str(error)
        if NOT_CONNECTED in said:
            raise PythonStartTimeout(
                f"a Python process of stream {stream!r} did not start within the 10 s that Spark gives it: this host "
                "is too busy"
            ) from error
        if died := next((what for words, what in DIED.items() if words in said), None):
            raise WorkerDied(_death(stream, died, said)) from error
        raise


def _death(stream: str, died: str, said: str) -> str:
    """What died, where and how, as far as Spark's text says it."""
    given_up, exit_code = GIVEN_UP.search(said), EXIT_CODE.search(said)
    code = int(exit_code["code"]) if exit_code else None
    where = f" on {given_up['host']}" if given_up else ""
    how = f" with exit code {code}" if code is not None else ""
    tries = f", and Spark gave its task up after {given_up['tries']} tries" if given_up else ""
    cause = (
        "It was killed, most often by the kernel or a container for lack of memory"
        if code == KILLED
        else "Most often the kernel or a container killed it for lack of memory"
    )
    return (
        f"{died} of stream {stream!r} died{where}{how}{tries}. Nothing of the batch was committed: the next start "
        f"reads it again. {cause}: look for exit code {KILLED} in the log of the host or the container, and give it "
        "more memory, or declare fewer resources.cores. Spark's own words are in writer.log"
    )
