"""The writer's main program, which here kills itself with SIGKILL at one point of its first batch.

`FRAZIL_TEST_CRASHES` names a file of points, one per line. Each start takes the first point; when none is left, the
writer runs as usual. It runs on Spark if `FRAZIL_TEST_ENGINE` is `spark`. Otherwise it runs without a JVM, because all
points except one are in the driver's Python code.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frazil.commit.committer import Committer
from frazil.commit.journal import JournalStore
from frazil.commit.merging import MergeWriter
from frazil.stream.batch import BatchRunner
from frazil.stream.engine import Stage
from frazil.stream.stage_rows import StageRows

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.crashes import between_the_tables_of_a_batch
from tests.writer_without_jvm import main


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: type, name: str) -> None:
    """Let the process die after a method has finished."""
    original: Callable[..., Any] = getattr(owner, name)

    def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
        original(self, *args, **kwargs)
        die()

    setattr(owner, name, dying)


def around_stage(wrap: Callable[[Stage], Stage]) -> None:
    """Let every batch use the stage function that `wrap` makes from the engine's."""
    run = BatchRunner.run

    def wrapped(self: BatchRunner, stage: Stage, *of_batch: Any, **counts: Any) -> None:
        run(self, wrap(stage), *of_batch, **counts)

    BatchRunner.run = wrapped  # type: ignore[method-assign]


def after_stage(stage: Stage) -> Stage:
    return lambda work: die(stage(work))


def while_staging(stage: Stage) -> Stage:
    """Die as soon as an executor has begun a Parquet file, while Spark still runs the tasks."""

    def dying(work: StageRows) -> Any:
        folder = Path(work.context.main.folder.removeprefix("file://"))
        threading.Thread(target=_die_on_first_file, args=(folder,), daemon=True).start()
        return after_stage(stage)(work)

    return dying


def _die_on_first_file(folder: Path) -> None:
    while not (folder.is_dir() and any(folder.iterdir())):
        pass
    die()


POINTS: dict[str, Callable[[], None]] = {
    "while-staging": lambda: around_stage(while_staging),
    "after-stage": lambda: around_stage(after_stage),
    "after-journal": lambda: after(JournalStore, "put"),
    "after-dead-letters": between_the_tables_of_a_batch,
    "while-merging": lambda: after(MergeWriter, "_run"),
    "after-commit": lambda: after(Committer, "commit"),
}


def next_point() -> str | None:
    points = Path(os.environ["FRAZIL_TEST_CRASHES"])
    first, *others = [*points.read_text().split(), None]
    points.write_text("\n".join(filter(None, others)))
    return first


if __name__ == "__main__":
    if point := next_point():
        POINTS[point]()
    main(without_jvm=os.environ.get("FRAZIL_TEST_ENGINE") != "spark")
