"""The engine that runs the tasks of batches on Spark, and shortens Spark's errors. Imports only what is needed to start
the JVM: see `frazil.stream.main`.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from frazil.errors import PythonStartTimeout, WorkerDied
from frazil.spec.model import StreamSpec
from frazil.spec.resources import ClusterManager
from frazil.stream.session import check_executors, start_context, warn_if_executors_lost

if TYPE_CHECKING:
    from frazil.stream.engine import TaskAnswer
    from frazil.stream.merge_tasks import MergeTasks
    from frazil.stream.stage_rows import StageRows

MAX_MERGE_ROUNDS = 4
"""Maximum number of tasks in a merge job, as a multiple of the concurrent tasks."""
log = logging.getLogger(__name__)

STOP_CHECK_INTERVAL_S = 0.2
WARN_INTERVAL_S = 30.0
"""Interval of the warnings that a cluster provides no executors."""
CLUSTER_HINTS: Mapping[ClusterManager | None, str] = {
    ClusterManager.STANDALONE: "The master's web page shows who uses them",
    ClusterManager.YARN: "`yarn application -list` and the ResourceManager's web page show who uses them",
    ClusterManager.KUBERNETES: "`kubectl describe pod` shows why an executor's pod waits",
}
"""Places to look if a cluster provides no executors."""
NOT_CONNECTED = "Python worker failed to connect back"
"""Spark's error for a Python process that takes more than 10 s to start."""
LOST_PROCESSES = {"Python worker exited unexpectedly": "a Python worker", "ExecutorLostFailure": "an executor"}
"""Names of dead processes, by Spark's message."""
APPLICATION_ENDED = "SparkContext was shut down"
"""Spark's message for a job whose application has ended."""
_TASK_GIVEN_UP_PATTERN = re.compile(
    r"failed (?P<tries>\d+) times, most recent failure: Lost task [^(]*\(TID \d+\) \((?P<host>\S+)"
)
_EXIT_CODE_PATTERN = re.compile(r"exited? (?:with|status:?|code:?) ?(?:code:? ?)?(?P<code>\d+)", re.IGNORECASE)
KILLED_EXIT_CODE = 137


class SparkEngine:
    """Runs a stream's jobs in its own Spark context, or in a given session. Spark sees records only as bytes."""

    def __init__(self, spec: StreamSpec, session: SparkSession | None = None, *, output: Path | None = None) -> None:
        """If `output` is given, what the JVM prints is appended to this file."""
        self._spec, self._session_context = spec, session.sparkContext if session else None
        self._output = output
        self._pool = ThreadPoolExecutor(1, "spark")
        self._started: Future[SparkContext] | None = None
        self._unchecked: SparkContext | None = None
        """The Spark context, if it exists. Set before executors are checked, because executors may never arrive."""

    def start(self) -> Future[SparkContext]:
        """Start Spark once, in the background. In the main thread, Spark would replace signal handlers."""
        if self._started is None:
            self._started = self._pool.submit(self._start)
        return self._started

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._pool:
            if self._unchecked is not None and not self.start().done():
                # The engine still waits for executors. Stopping the context ends this wait.
                self._unchecked.stop()
            # An error that prevented Spark from starting was raised when the context was first used.
            if not self._session_context and self.start().exception() is None:
                context = self._context
                # If the JVM is gone, the writer has already ended with its own error.
                with suppress(OSError):
                    context.stop()

    @property
    def parallelism(self) -> int:
        return self._context.defaultParallelism

    def warm_up(self) -> None:
        # On a cluster, the check of executors has started the workers.
        if not self._spec.resources.on_cluster:
            self._pool.submit(self._start_workers)

    def ready(self, until: Callable[[], bool]) -> bool:
        started = self.start()
        if self._session_context or not self._spec.resources.on_cluster:
            return True
        warned_at = time.monotonic()
        while not wait_for([started], STOP_CHECK_INTERVAL_S).done:
            if until():
                return False
            if time.monotonic() - warned_at >= WARN_INTERVAL_S:
                warned_at = time.monotonic()
                resources = self._spec.resources
                log.warning(
                    "stream %r waits for executors of %s. Check that the cluster runs and has %d free cores, with %d "
                    "MiB of heap for each executor. %s",
                    *(self._spec.name, resources.master, resources.cores, resources.executor_memory // 2**20),
                    CLUSTER_HINTS.get(resources.manager, ""),
                )
        started.result()
        return True

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        from frazil.stream.engine import read_answers, read_shuffled_answers  # see the module

        if not plans:
            return ()
        stage = work.context
        with self._job(stage.stream, f"epoch {stage.epoch}, batch {stage.batch}") as context:
            tasks = context.parallelize(plans, len(plans))
            if stage.shuffle is None:
                return read_answers(tasks.mapPartitions(work).collect())
            # Each row has the number of its writer, which is also the number of the writer's task.
            sent = tasks.mapPartitions(work.read).partitionBy(stage.shuffle.writers, int)
            try:
                return read_shuffled_answers(sent.mapPartitionsWithIndex(work.write).collect())
            finally:
                # Otherwise Spark keeps the rows on disk until the JVM collects garbage, perhaps half an hour later.
                sent._jrdd.rdd().cleanShuffleDependencies(False)

    def merge(self, plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        if not plans:
            return ()
        with self._job(work.stream, "merge") as context:
            slices = min(len(plans), MAX_MERGE_ROUNDS * self.parallelism)  # with many tables, each has a small plan
            return context.parallelize(plans, slices).mapPartitions(work).collect()

    @contextmanager
    def _job(self, stream: str, description: str) -> Iterator[SparkContext]:
        """Yield the Spark context for one job. Translates Spark's errors, and logs lost executors."""
        context = self._context
        with translate_spark_errors(stream), self._watch_executors(stream):
            # Spark's UI shows the group and the description. An abandoned task attempt is interrupted; its Python
            # worker then finds the connection closed.
            context.setJobGroup(f"stream {stream}", f"stream {stream}: {description}", interruptOnCancel=True)
            # If streams share an application, each batch gets a share of the cores.
            context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
            yield context

    def check(self) -> None:
        with translate_spark_errors(self._spec.name):
            java = self._context._jsc
            if java is None or java.sc().isStopped():
                raise WorkerDied(_end_message(self._spec.name))

    def cancel(self, stream: str) -> None:
        """Cancel a stream's current batch, which then fails."""
        with translate_spark_errors(stream):
            self._context.cancelJobGroup(f"stream {stream}")

    def _watch_executors(self, stream: str) -> AbstractContextManager[None]:
        resources = self._spec.resources
        if not resources.on_cluster or self._session_context:
            return nullcontext()
        spark = self._context._jsc.sc()
        sentence = (
            f"stream {stream}: the current batch waits: no executor is left, and {resources.master} provides none. "
            f"Check that the cluster runs. {CLUSTER_HINTS.get(resources.manager, '')}. The batch continues on new "
            "executors"
        )
        # Spark counts the driver as well.
        return warn_if_executors_lost(lambda: spark.getExecutorMemoryStatus().size() - 1, sentence)

    @property
    def _context(self) -> SparkContext:
        return self.start().result()

    def _start_workers(self) -> None:
        """Start Python workers during the driver's take-over, and let them import what staging needs."""
        from frazil.stream.stage_rows import warm_up_worker  # see the module

        workers = self._spec.resources.cores
        self._context.parallelize(range(workers), workers).foreachPartition(warm_up_worker)

    def _start(self) -> SparkContext:
        if self._session_context:
            return self._session_context
        context = self._unchecked = start_context(self._spec, output=self._output)
        if self._spec.resources.on_cluster:
            check_executors(context, self._spec)
        return context


@contextmanager
def translate_spark_errors(stream: str) -> Iterator[None]:
    """Replace Spark's error by a short one if the cause is known."""
    try:
        yield
    except Exception as error:
        if short_error := _short_error(error, str(error), stream):
            raise short_error from error
        raise


def _short_error(error: Exception, text: str, stream: str) -> Exception | None:
    if NOT_CONNECTED in text:
        return PythonStartTimeout(
            f"a Python process of stream {stream!r} did not start within the 10 s that Spark gives it: this host is "
            "too busy"
        )
    if APPLICATION_ENDED in text:
        return WorkerDied(_end_message(stream))
    if died := next((cause for words, cause in LOST_PROCESSES.items() if words in text), None):
        return WorkerDied(_death_message(stream, died, text))
    if isinstance(error, Py4JJavaError):
        return RuntimeError(f"a task of stream {stream!r} failed: {python_error_message(text) or error.java_exception}")
    # If the JVM still responds, the error has a Java trace.
    if isinstance(error, ConnectionError) or (isinstance(error, Py4JError) and "Trace:" not in text):
        return WorkerDied(_death_message(stream, "the JVM", text))
    return None


def python_error_message(text: str) -> str | None:
    _, separator, trace = text.rpartition("PythonException: Traceback")
    lines = trace.partition("\n\tat ")[0].splitlines()
    frames = [index for index, line in enumerate(lines) if line.startswith(" ")]
    below = lines[frames[-1] + 1 :] if frames else []
    return " ".join(filter(None, map(str.strip, below))) if separator else None


def _end_message(stream: str) -> str:
    return (
        f"the Spark application of stream {stream!r} has ended. Nothing of the current batch was committed: the next "
        "start reads it again. A cluster's master ends an application that has no workers left, or that a user kills "
        "there; the next start waits for executors. Spark's messages are in writer.log"
    )


def _death_message(stream: str, died: str, text: str) -> str:
    """Return which process died and, if Spark's text contains them, where and how."""
    given_up, exit_code = _TASK_GIVEN_UP_PATTERN.search(text), _EXIT_CODE_PATTERN.search(text)
    code = int(exit_code["code"]) if exit_code else None
    where = f" on {given_up['host']}" if given_up else ""
    ending = f" with exit code {code}" if code is not None else ""
    note = f", and Spark gave up its task after {given_up['tries']} attempts" if given_up else ""
    cause = (
        "It was killed, most often by the kernel or a container because memory ran out"
        if code == KILLED_EXIT_CODE
        else "Most often the kernel or a container killed it because memory ran out"
    )
    return (
        f"{died} of stream {stream!r} died{where}{ending}{note}. Nothing of the batch was committed: the next start "
        f"reads it again. {cause}: look for exit code {KILLED_EXIT_CODE} in the log of the host or the container, and "
        "give it more memory, or declare fewer resources.cores. Spark's messages are in writer.log"
    )
