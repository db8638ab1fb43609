"""The function that an engine runs on each task of a merge. Tasks and their results are exchanged as JSON."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from frazil import __version__, clock
from frazil.errors import FrazilError
from frazil.ingest.contract import TargetTable
from frazil.merge.contract import MergeContext, MergeResult, MergeRules, MergeTask
from frazil.merge.task import run_merge_task
from frazil.stream.attempt import check_not_abandoned
from frazil.stream.progress import MIN_MERGE_WRITE_INTERVAL_S, ProgressFolder
from frazil.stream.stage_rows import VersionRefusal, error_answer, parse_answer, rebuild
from frazil.table.storage_errors import translate_staging_failure
from frazil.typed_json import convert, decode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """One merge task, as JSON for an executor."""

    context: int
    """The index of the task's context in `MergeTasks.contexts`."""
    number: int
    """The task's number in its job."""
    task: MergeTask


@dataclass(frozen=True)
class MergeTasks:
    """The function of merge tasks, sent to executors. Returns FrazilErrors instead of raising them."""

    contexts: tuple[MergeContext, ...]
    """The contexts of one job. Their tables belong to one stream."""
    progress: ProgressFolder

    def __call__(self, tasks: Iterable[str]) -> Iterator[str]:
        return map(self._run_plan, tasks)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call of `shipped_merge`, which refuses functions of other versions of frazil."""
        contexts = [asdict(context) for context in self.contexts]
        context = {"stream": self.stream}
        work = {"version": __version__, "context": context, "contexts": contexts, "progress": asdict(self.progress)}
        return shipped_merge, (work,)

    @property
    def stream(self) -> str:
        return self.contexts[0].stream

    def _run_plan(self, plan: str) -> str:
        decoded = decode(plan, _Plan)
        context, report = self.contexts[decoded.context], self._progress_reporter(decoded.number)
        try:
            return msgspec.json.encode(run_merge_task(context, decoded.task, on_progress=report)).decode()
        except FrazilError as error:
            return json.dumps(error_answer(error))
        except OSError as error:
            if (translated := translate_staging_failure(context.target.folder, error)) is None:
                raise
            return json.dumps(error_answer(translated))

    def _progress_reporter(self, task: int) -> Callable[[int], None]:
        period_s = max(self.progress.period_s, MIN_MERGE_WRITE_INTERVAL_S)
        due = time.monotonic() + period_s

        def report(rows: int) -> None:
            nonlocal due
            check_not_abandoned()
            if (now_s := time.monotonic()) >= due:
                due = now_s + period_s
                self.progress.write_merged(task, rows=rows)

        return report


@dataclass(slots=True)
class _Request:
    context: MergeContext
    tasks: Sequence[MergeTask]
    results: Future[Sequence[MergeResult]] = field(default_factory=Future)


@dataclass(slots=True)
class MergeRunner:
    """Runs merges on an engine, one job at a time. Requests that arrive during a job share the next one."""

    merge: Callable[[Sequence[str], MergeTasks], Sequence[str]]
    progress: ProgressFolder
    on_job: Callable[[float], object] = lambda _: None
    """Called after each job with its duration (s)."""
    _waiting: list[_Request] = field(default_factory=list)
    _changing: threading.Lock = field(default_factory=threading.Lock)
    _running: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, context: MergeContext, tasks: Sequence[MergeTask]) -> Sequence[MergeResult]:
        request = _Request(context, tasks)
        with self._changing:
            self._waiting.append(request)
        with self._running:
            with self._changing:
                job, self._waiting = self._waiting, []
            if job:  # otherwise another thread's job included this request
                self._run_job(job)
        return request.results.result()

    def _run_job(self, job: Sequence[_Request]) -> None:
        """Run one job, and set the results of its requests. If the job fails, run each request on its own."""
        progress = replace(self.progress, io=job[0].context.target.io, attempt=clock.now_ms())
        try:
            progress.clear()
        except Exception as error:  # storages raise anything; only users and the supervisor need the count
            log.info("the progress files of an earlier merge were not deleted: %r", error)
        each = [(index, task) for index, request in enumerate(job) for task in request.tasks]
        encode = msgspec.json.encode
        plans = [encode(_Plan(index, number, task)).decode() for number, (index, task) in enumerate(each)]
        began = time.monotonic()
        try:
            answers = iter(self.merge(plans, MergeTasks(tuple(request.context for request in job), progress)))
        except Exception as error:
            if len(job) == 1:
                job[0].results.set_exception(error)
            for request in job if len(job) > 1 else ():  # an error of one table must not stop the others
                self._run_job([request])
            return
        self.on_job(time.monotonic() - began)
        for request in job:
            try:
                request.results.set_result(read_results([next(answers) for _ in request.tasks]))
            except Exception as error:  # an error of one table must not stop the others
                request.results.set_exception(error)


def shipped_merge(work: Mapping[str, Any]) -> MergeTasks | VersionRefusal:
    """Rebuild the function that a driver sent, or refuse the function; see `frazil.stream.stage_rows.shipped`."""
    return rebuild(
        work, lambda: MergeTasks(tuple(map(_parse_context, work["contexts"])), ProgressFolder(**work["progress"]))
    )


def _parse_context(value: Mapping[str, Any]) -> MergeContext:
    changes, target = (TargetTable(**value[name]) for name in ("changes", "target"))
    return MergeContext(value["stream"], MergeRules(**value["rules"]), changes, target)


def read_results(answers: Iterable[str]) -> tuple[MergeResult, ...]:
    """Parse the answers of `MergeTasks` in task order. Raises a task's FrazilError."""
    return tuple(convert(parse_answer(answer), MergeResult) for answer in answers)
