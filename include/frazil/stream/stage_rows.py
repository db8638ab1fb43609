"""The function that an engine runs on each task of a batch: it takes a plan and returns an answer, both JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark import TaskContext

from frazil import __version__
from frazil.errors import FrazilError, VersionChanged
from frazil.ingest.contract import StageContext, StageTask
from frazil.ingest.stage import stage
from frazil.stream.progress import ProgressFolder


@dataclass(frozen=True)
class VersionRefusal:
    """Stands for a `StageRows` of another version: answers each task with an error, which ends the writer."""

    sentence: str

    def __call__(self, plans: Iterable[str]) -> Iterator[str]:
        return map(self.answer, plans)

    def answer(self, _: str) -> str:
        return json.dumps({"error_type": VersionChanged.__name__, "error": self.sentence})


def shipped(work: Mapping[str, Any]) -> StageRows | VersionRefusal:
    """What a driver ships, where it arrives. Keep its name, and `version` and `context.stream` in what it gets: drivers
    of earlier versions call it.
    """
    try:
        if work["version"] == __version__:
            return StageRows(StageContext.from_named(work["context"]), ProgressFolder(**work["progress"]))
        why = f"version {work['version']}, and version {__version__} was installed since"
    except (KeyError, TypeError) as error:
        why = f"other code of version {__version__} than is installed by now ({error})"
    stream = work["context"]["stream"]
    return VersionRefusal(
        f"the writer of stream {stream!r} runs {why}: it ends, and the next start takes what is installed"
    )


def warm_up_worker(_: Iterable[int]) -> None:
    """A task that stages nothing: before it, Spark starts a Python worker, which imports this module."""


@dataclass(frozen=True)
class StageRows:
    """The function that an engine ships to its executors, where it is called with the plans of a task.

    A FrazilError is returned as an answer, because Spark would retry a task that raises, and staging has retried
    enough. Spark still retries a task whose worker died.
    """

    context: StageContext
    progress: ProgressFolder

    def __call__(self, plans: Iterable[str]) -> Iterator[str]:
        return map(self.answer, plans)

    def __reduce__(self) -> tuple[Any, ...]:
        """Nothing of ours is pickled but the name of one function, because the version of a worker may be another.

        A Python process that an executor starts while a writer runs imports what is installed by then; a worker that is
        forked has what Spark's daemon had imported before.
        """
        return shipped, ({"version": __version__, "context": self.context.named(), "progress": asdict(self.progress)},)

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
