"""The function that an engine runs on each task of a merge: it takes a task and returns its result, both JSON."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from frazil import __version__, clock, errors
from frazil.errors import FrazilError, VersionChanged
from frazil.ingest.contract import TargetTable
from frazil.merge.contract import MergeContext, MergeResult, MergeRules, MergeTask
from frazil.merge.task import merge
from frazil.stream.attempt import check_wanted
from frazil.stream.progress import MERGE_PERIOD_S, ProgressFolder
from frazil.table.storage_mistakes import staging_failure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MergeTasks:
    """The function that an engine ships to its executors. A FrazilError is an answer, as for `StageRows`."""

    context: MergeContext
    progress: ProgressFolder

    def __call__(self, tasks: Iterable[str]) -> Iterator[str]:
        return map(self._answer, tasks)

    def __reduce__(self) -> tuple[Any, ...]:
        """Nothing of ours is pickled but the name of one function, as for `StageRows`."""
        work = {"version": __version__, "context": asdict(self.context), "progress": asdict(self.progress)}
        return shipped_merge, (work,)

    def _answer(self, plan: str) -> str:
        task = MergeTask.from_json(json.loads(plan))
        try:
            return json.dumps(merge(self.context, task, on_progress=self._reporter(task.index)).to_json())
        except FrazilError as error:
            found: FrazilError = error
        except OSError as error:
            meant = staging_failure(self.context.target.folder, error)
            if meant is None:
                raise
            found = meant
        return json.dumps({"error_type": type(found).__name__, "error": str(found)})

    def _reporter(self, task: int) -> Callable[[int], None]:
        period_s = max(self.progress.period_s, MERGE_PERIOD_S)
        due = time.monotonic() + period_s

        def report(rows: int) -> None:
            nonlocal due
            check_wanted()
            if (now := time.monotonic()) >= due:
                due = now + period_s
                self.progress.write_merged(task, rows=rows)

        return report


@dataclass(frozen=True, slots=True)
class MergeRun:
    """Runs the tasks of merges on an engine, with a count of their progress that begins anew each time."""

    merge: Callable[[Sequence[MergeTask], MergeTasks], Sequence[MergeResult]]
    """Of an `Engine`."""
    progress: ProgressFolder

    def __call__(self, context: MergeContext, tasks: Sequence[MergeTask]) -> Sequence[MergeResult]:
        progress = replace(self.progress, io=context.target.io, attempt=clock.now_ms())
        try:
            progress.clear()
        except Exception as error:  # storages raise anything; the count is for people and the supervisor alone
            log.info("the progress of an earlier merge was left behind: %r", error)
        return self.merge(tasks, MergeTasks(context, progress))


@dataclass(frozen=True)
class MergeRefusal:
    """Stands for `MergeTasks` of another version: answers each task with an error, which ends the writer."""

    sentence: str

    def __call__(self, tasks: Iterable[str]) -> Iterator[str]:
        return (json.dumps({"error_type": VersionChanged.__name__, "error": self.sentence}) for _ in tasks)


def shipped_merge(work: Mapping[str, Any]) -> MergeTasks | MergeRefusal:
    """What a driver ships, where it arrives. Keep its name, and `version` and `context.stream` in what it gets."""
    context = work["context"]
    try:
        if work["version"] == __version__:
            changes, target = (TargetTable(**context[name]) for name in ("changes", "target"))
            merging = MergeContext(context["stream"], MergeRules(**context["rules"]), changes, target)
            return MergeTasks(merging, ProgressFolder(**work["progress"]))
        why = f"version {work['version']}, and version {__version__} was installed since"
    except (KeyError, TypeError) as error:
        why = f"other code of version {__version__} than is installed by now ({error})"
    return MergeRefusal(
        f"the writer of stream {context['stream']!r} runs {why}: it ends, and the next start takes what is installed"
    )


def read_results(answers: Iterable[str]) -> tuple[MergeResult, ...]:
    """Parse the answers of `MergeTasks`, in the order of the tasks; raises the FrazilError that a task ended with."""
    return tuple(_read(json.loads(answer)) for answer in answers)


def _read(answer: Mapping[str, Any]) -> MergeResult:
    if "error" in answer:
        raise getattr(errors, answer["error_type"])(answer["error"])
    return MergeResult.from_json(answer)
