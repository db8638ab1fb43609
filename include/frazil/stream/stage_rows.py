"""The function that an engine runs on each task of a batch. Tasks' plans and answers are exchanged as JSON.

A driver imports this module, too. Only the function itself imports `frazil.ingest.stage`, which loads Numba.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import TaskContext

from frazil import __version__, errors
from frazil.errors import FrazilError, VersionChanged
from frazil.ingest.contract import StageContext, StageTask
from frazil.ingest.partitioning import Parcel
from frazil.ingest.progress import OnProgress, compilation
from frazil.ingest.sensitive import to_safe_error
from frazil.stream.attempt import check_not_abandoned
from frazil.stream.progress import ProgressFolder, RecordCounts, writer_task_name
from frazil.table.storage_errors import translate_staging_failure

if TYPE_CHECKING:
    from frazil.ingest.stage import PossibleRecordError

T = TypeVar("T")
ShuffleItem = tuple[int, str | tuple[int, int, bytes]]
"""A writer's number, with a reader's answer or with a `Parcel`'s task, row count and data."""


@dataclass(frozen=True)
class VersionRefusal:
    """Replaces the function of a driver with another frazil version. Answers with an error, which ends the writer."""

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
    return {"error_type": type(error).__name__, "error": error.reason, "stream": error.stream, "remedy": error.remedy}


def parse_answer(answer: str) -> dict[str, Any]:
    """Parse a task's answer. Raises the task's FrazilError."""
    value: dict[str, Any] = json.loads(answer)
    if "error" in value:
        raise getattr(errors, value.pop("error_type"))(value.pop("error"), **value)
    return value


def shipped(work: Mapping[str, Any]) -> StageRows | VersionRefusal:
    """Rebuild or refuse a driver's function. Other versions use this name, `version` and `context.stream`."""
    return rebuild(work, lambda: StageRows(StageContext.from_dict(work["context"]), ProgressFolder(**work["progress"])))


def rebuild(work: Mapping[str, Any], build: Callable[[], T]) -> T | VersionRefusal:
    """Return the result of `build`, or a refusal if a driver of another version sent `work`."""
    try:
        if work["version"] == __version__:
            return build()
        code = f"version {work['version']}, and version {__version__} was installed since"
    except (KeyError, TypeError) as error:
        code = f"other code of version {__version__} than is installed now ({error})"
    stream = work["context"]["stream"]
    return VersionRefusal(
        f"the writer of stream {stream!r} runs {code}: it ends, and the next start uses the installed code"
    )


def warm_up_worker(_: Iterable[int]) -> None:
    """Import what staging needs."""
    import frazil.ingest.stage  # noqa: F401 - see the module's docstring


@dataclass(frozen=True)
class StageRows:
    """The function of staging tasks. Answers with FrazilErrors, because Spark would retry raised ones."""

    context: StageContext
    progress: ProgressFolder

    def __call__(self, plans: Iterable[str]) -> Iterator[str]:
        return map(self.answer, plans)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only a function's name and argument, because the worker's frazil may be newer."""
        return shipped, (
            {"version": __version__, "context": self.context.to_dict(), "progress": asdict(self.progress)},
        )

    def answer(self, plan: str) -> str:
        """Stage one task, and return an answer for `frazil.stream.engine.read_answers`."""
        from frazil.ingest.stage import stage  # see the module's docstring

        task = StageTask.from_json(json.loads(plan))
        took = _start_timer()
        try:
            result = stage(
                self.context, task, attempt=_attempt_number(), on_progress=self._progress_reporter(str(task.index))
            )
        except (FrazilError, OSError) as error:
            return json.dumps(self._answer_error(error))
        return json.dumps({"result": result.to_json(), **took()})

    def read(self, plans: Iterable[str]) -> Iterator[ShuffleItem]:
        """Read the plans' records before a shuffle. Yields rows by writer number, and each task's answer under 0."""
        for plan in plans:
            yield from self._read(json.loads(plan))

    def _read(self, plan: Mapping[str, Any]) -> Iterator[ShuffleItem]:
        from frazil.ingest.stage import PossibleRecordError, stage_before_shuffle  # see the module's docstring

        task = StageTask.from_json(plan)
        took = _start_timer()
        try:
            for staged in stage_before_shuffle(
                self.context, task, attempt=_attempt_number(), on_progress=self._progress_reporter(str(task.index))
            ):
                if isinstance(staged, Parcel):
                    yield staged.writer, (staged.task, staged.rows, staged.data)
                else:
                    counts = {"sent": staged.sent, "partitions": staged.partitions}
                    answer = {"read": task.index, "result": staged.result.to_json(), **counts, **took()}
        except (FrazilError, PossibleRecordError, OSError) as error:
            answer = self._answer_error(error)
        yield 0, json.dumps(answer)

    def write(self, writer: int, sent: Iterable[ShuffleItem]) -> Iterator[str]:
        """Write the rows that a shuffle sent to one writer. Returns its answer and its readers' answers."""
        from frazil.ingest.stage import PossibleRecordError, stage_after_shuffle  # see the module's docstring

        answers = []

        def parcels() -> Iterator[Parcel]:
            for _, item in sent:
                if isinstance(item, str):
                    answers.append(item)
                else:
                    yield Parcel(writer, *item)

        took = _start_timer()
        try:
            report = self._progress_reporter(writer_task_name(writer))
            written = stage_after_shuffle(
                self.context, parcels(), writer=writer, attempt=_attempt_number(), on_progress=report
            )
        except (FrazilError, PossibleRecordError, OSError) as error:
            answers.append(json.dumps(self._answer_error(error)))
        else:
            files, received = [file.to_json() for file in written.files], dict(written.received)
            answers.append(json.dumps({"write": writer, "files": files, "received": received, **took()}))
        return iter(answers)

    def _answer_error(self, error: FrazilError | PossibleRecordError | OSError) -> dict[str, object]:
        """Return the answer that reports an error. An OSError with an unknown cause is raised instead."""
        from frazil.ingest.stage import PossibleRecordError  # see the module's docstring

        reported = error.error if isinstance(error, PossibleRecordError) else error
        if isinstance(reported, OSError) and not isinstance(reported, FrazilError):
            translated = translate_staging_failure(self.context.main.folder, reported)
            if translated is None and reported is error:
                raise error
            reported = translated or reported
        if isinstance(reported, FrazilError):
            return error_answer(reported)
        safe_error = to_safe_error(reported, self.context)
        return {"suspect": f"{type(safe_error).__name__}: {safe_error}"}

    def _progress_reporter(self, task: str) -> OnProgress:
        period_s = self.progress.period_s
        due, compiling = time.monotonic() + period_s, False

        def report(records: int, delay_s: float) -> None:
            nonlocal due, compiling
            check_not_abandoned()
            if (now_s := time.monotonic()) < due and compilation.is_running is compiling:
                return
            due, compiling = now_s + period_s, compilation.is_running
            counts = RecordCounts(records, delay_s=delay_s, compiling=compiling)
            self.progress.write(task, counts, epoch=self.context.epoch, batch=self.context.batch)

        return report


def _start_timer() -> Callable[[], dict[str, Any]]:
    """Return a function that returns the time and CPU time since this call, and the process."""
    began, cpu_s = time.monotonic(), time.process_time()
    return lambda: {"task_s": time.monotonic() - began, "cpu_s": time.process_time() - cpu_s, "process": process_name()}


def process_name() -> str:
    """Return this process's host and id. Processes in two containers may have the same id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _attempt_number() -> int:
    running = TaskContext.get()
    return running.attemptNumber() if running else 0
