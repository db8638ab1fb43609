"""The function that an engine runs on each task of a merge: it takes a task and returns its result, both JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from frazil import __version__, errors
from frazil.errors import FrazilError, VersionChanged
from frazil.ingest.contract import TargetTable
from frazil.merge.contract import MergeContext, MergeResult, MergeRules, MergeTask
from frazil.merge.task import merge
from frazil.table.storage_mistakes import staging_failure


@dataclass(frozen=True)
class MergeTasks:
    """The function that an engine ships to its executors. A FrazilError is an answer, as for `StageRows`."""

    context: MergeContext

    def __call__(self, tasks: Iterable[str]) -> Iterator[str]:
        return map(self._answer, tasks)

    def __reduce__(self) -> tuple[Any, ...]:
        """Nothing of ours is pickled but the name of one function, as for `StageRows`."""
        return shipped_merge, ({"version": __version__, "context": asdict(self.context)},)

    def _answer(self, task: str) -> str:
        try:
            return json.dumps(merge(self.context, MergeTask.from_json(json.loads(task))).to_json())
        except FrazilError as error:
            found: FrazilError = error
        except OSError as error:
            meant = staging_failure(self.context.target.folder, error)
            if meant is None:
                raise
            found = meant
        return json.dumps({"error_type": type(found).__name__, "error": str(found)})


@dataclass(frozen=True)
class MergeRefusal:
    """Stands for `MergeTasks` of another version: answers each task with an error, which ends the writer."""

    sentence: str

    def __call__(self, tasks: Iterable[str]) -> Iterator[str]:
        return (json.dumps({"error_type": VersionChanged.__name__, "error": self.sentence}) for _ in tasks)


def shipped_merge(work: Mapping[str, Any]) -> MergeTasks | MergeRefusal:
    """What a driver ships, where it arrives. Keep its name, and `version` and `context.stream` in what it gets."""
    context = work["context"]
    if work["version"] != __version__:
        return MergeRefusal(
            f"the writer of stream {context['stream']!r} runs version {work['version']}, and version {__version__} was "
            "installed since: it ends, and the next start takes what is installed"
        )
    changes, target = (TargetTable(**context[name]) for name in ("changes", "target"))
    return MergeTasks(MergeContext(context["stream"], MergeRules(**context["rules"]), changes, target))


def read_results(answers: Iterable[str]) -> tuple[MergeResult, ...]:
    """Parse the answers of `MergeTasks`, in the order of the tasks; raises the FrazilError that a task ended with."""
    return tuple(_read(json.loads(answer)) for answer in answers)


def _read(answer: Mapping[str, Any]) -> MergeResult:
    if "error" in answer:
        raise getattr(errors, answer["error_type"])(answer["error"])
    return MergeResult.from_json(answer)
