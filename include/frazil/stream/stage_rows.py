"""The function that an engine runs on each task of a batch. It takes a plan and returns an answer, both as JSON."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pyspark import TaskContext

from frazil import __version__, errors
from frazil.errors import FrazilError, VersionChanged
from frazil.ingest.contract import StageContext, StageTask
from frazil.ingest.progress import OnProgress
from frazil.ingest.sensitive import to_safe_error
from frazil.ingest.shuffle import Parcel
from frazil.ingest.stage import PossibleRecordError, stage, stage_after_shuffle, stage_before_shuffle
from frazil.stream.attempt import check_not_abandoned
from frazil.stream.progress import ProgressFolder, writer_task_name
from frazil.table.storage_mistakes import translate_staging_failure

T = TypeVar("T")
ShuffleItem = tuple[int, str | tuple[int, int, bytes]]
"""One item of a shuffle: the number of the receiving writer, and its content.

The content is a reader's answer, or a `Parcel`'s task, row count and data.
"""


@dataclass(frozen=True)
class VersionRefusal:
    """Replaces the function that a driver of another version sent. Each of its answers is an error, which ends the
    writer.
    """

    sentence: str

    def __call__(self, plans: Iterable[str]) -> Iterator[str]:
        return map(self.answer, plans)

    def answer(self, _: str) -> str:
        return json.dumps(error_answer(VersionChanged(self.sentence)))

    def read(self, plans: Iterable[str]) -> Iterator[ShuffleItem]:
        return ((0, self.answer(plan)) for plan in plans)

    def write(self, _: int, __: Iterable[ShuffleItem]) -> Iterator[str]:
        yield self.answer("")


def error_answer(error: FrazilError) -> dict[str, object]:
    """Return the answer with which a task reports this error."""
    return {"error_type": type(error).__name__, "error": str(error)}


def parse_answer(answer: str) -> dict[str, Any]:
    """Parse a task's answer. Raises the FrazilError with which the task ended, if any."""
    value: dict[str, Any] = json.loads(answer)
    if "error" in value:
        raise getattr(errors, value["error_type"])(value["error"])
    return value


def shipped(work: Mapping[str, Any]) -> StageRows | VersionRefusal:
    """Rebuild the function that a driver sent, or return a refusal if the driver has another version.

    Drivers of earlier versions call this function, so keep its name, and keep `version` and `context.stream` in the
    argument.
    """
    return rebuild(work, lambda: StageRows(StageContext.from_dict(work["context"]), ProgressFolder(**work["progress"])))


def rebuild(work: Mapping[str, Any], build: Callable[[], T]) -> T | VersionRefusal:
    """Return the result of `build`, or a refusal if the driver that sent `work` has another version."""
    try:
        if work["version"] == __version__:
            return build()
        why = f"version {work['version']}, and version {__version__} was installed since"
    except (KeyError, TypeError) as error:
        why = f"other code of version {__version__} than is installed now ({error})"
    stream = work["context"]["stream"]
    return VersionRefusal(
        f"the writer of stream {stream!r} runs {why}: it ends, and the next start uses the installed code"
    )


def warm_up_worker(_: Iterable[int]) -> None:
    """Do nothing. To run this function, Spark starts a Python worker that imports this module."""


@dataclass(frozen=True)
class StageRows:
    """The function that an engine sends to its executors, where it is called with the plans of a task.

    It returns a FrazilError as an answer instead of raising it: Spark would retry the task, although staging has
    already retried. Spark still retries a task whose worker died.
    """

    context: StageContext
    progress: ProgressFolder

    def __call__(self, plans: Iterable[str]) -> Iterator[str]:
        return map(self.answer, plans)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the name of one function and its argument, because a worker's version of frazil may differ.

        A Python process that starts while a writer runs imports the version that is installed at that time. A forked
        worker has the modules that Spark's daemon imported before.
        """
        return shipped, (
            {"version": __version__, "context": self.context.to_dict(), "progress": asdict(self.progress)},
        )

    def answer(self, plan: str) -> str:
        """Stage one task, and return an answer for `frazil.stream.engine.read_answers`."""
        task = StageTask.from_json(json.loads(plan))
        began, cpu_s = time.monotonic(), time.process_time()
        try:
            result = stage(
                self.context, task, attempt=_attempt_number(), on_progress=self._progress_reporter(str(task.index))
            )
        except (FrazilError, OSError) as error:
            return json.dumps(self._answer_error(error))
        return json.dumps({"result": result.to_json(), "task_s": time.monotonic() - began, **_cpu_since(cpu_s)})

    def read(self, plans: Iterable[str]) -> Iterator[ShuffleItem]:
        """Read the plans' records, before a shuffle. Yields rows with their writers' numbers, and the tasks' answers.

        The answers pass through the shuffle too. So they always belong to the tasks whose rows were written, even if
        Spark runs a task twice.
        """
        for plan in plans:
            yield from self._read(json.loads(plan))

    def _read(self, plan: Mapping[str, Any]) -> Iterator[ShuffleItem]:
        task = StageTask.from_json(plan)
        began, cpu_s = time.monotonic(), time.process_time()
        try:
            for found in stage_before_shuffle(
                self.context, task, attempt=_attempt_number(), on_progress=self._progress_reporter(str(task.index))
            ):
                if isinstance(found, Parcel):
                    yield found.writer, (found.task, found.rows, found.data)
                else:
                    answer = {
                        "read": task.index,
                        "result": found.result.to_json(),
                        "sent": found.sent,
                        "partitions": found.partitions,
                        "task_s": time.monotonic() - began,
                        **_cpu_since(cpu_s),
                    }
        except (FrazilError, PossibleRecordError, OSError) as error:
            answer = self._answer_error(error)
        yield 0, json.dumps(answer)

    def write(self, writer: int, sent: Iterable[ShuffleItem]) -> Iterator[str]:
        """Write the rows that a shuffle sent to one writer. Returns the answers of the writer and of its readers."""
        answers = []

        def parcels() -> Iterator[Parcel]:
            for _, what in sent:
                if isinstance(what, str):
                    answers.append(what)
                else:
                    yield Parcel(writer, *what)

        began, cpu_s = time.monotonic(), time.process_time()
        try:
            report = self._progress_reporter(writer_task_name(writer))
            written = stage_after_shuffle(
                self.context, parcels(), writer=writer, attempt=_attempt_number(), on_progress=report
            )
        except (FrazilError, PossibleRecordError, OSError) as error:
            answers.append(json.dumps(self._answer_error(error)))
        else:
            files = [file.to_json() for file in written.files]
            seconds = time.monotonic() - began
            answers.append(
                json.dumps(
                    {
                        "write": writer,
                        "files": files,
                        "received": dict(written.received),
                        "task_s": seconds,
                        **_cpu_since(cpu_s),
                    }
                )
            )
        return iter(answers)

    def _answer_error(self, error: FrazilError | PossibleRecordError | OSError) -> dict[str, object]:
        """Return the answer that reports an error. Raises the error if it is an OSError of unknown cause."""
        found = error.error if isinstance(error, PossibleRecordError) else error
        if isinstance(found, OSError) and not isinstance(found, FrazilError):
            meant = translate_staging_failure(self.context.main.folder, found)
            if meant is None and found is error:
                raise error
            found = meant or found
        if isinstance(found, FrazilError):
            return error_answer(found)
        shown = to_safe_error(found, self.context)
        return {"suspect": f"{type(shown).__name__}: {shown}"}

    def _progress_reporter(self, task: str) -> OnProgress:
        period_s = self.progress.period_s
        due = time.monotonic() + period_s

        def report(records: int, delay_s: float) -> None:
            nonlocal due
            check_not_abandoned()
            if (now := time.monotonic()) < due:
                return
            due = now + period_s
            self.progress.write(
                task, epoch=self.context.epoch, batch=self.context.batch, records=records, delay_s=delay_s
            )

        return report


def _cpu_since(began_s: float) -> dict[str, Any]:
    return {"cpu_s": time.process_time() - began_s, "process": process_name()}


def process_name() -> str:
    """Return the host and the id of this process. Processes of two containers may have the same id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _attempt_number() -> int:
    running = TaskContext.get()
    return running.attemptNumber() if running else 0
