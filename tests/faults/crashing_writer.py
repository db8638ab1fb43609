"""The writer's main, made to kill itself with SIGKILL at one point of its first batch.

`FRAZIL_TEST_CRASHES` names a file of points, one a line: each start takes the first, and with none left runs as usual.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frazil.commit.committer import Committer
from frazil.commit.journal import JournalStore
from frazil.stream.batch import BatchRunner

MAIN = Path(__file__).parents[2] / "spark_apps" / "write_stream.py"


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: type, name: str) -> None:
    """Die when a method has done its work."""
    original: Callable[..., Any] = getattr(owner, name)

    def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
        original(self, *args, **kwargs)
        die()

    setattr(owner, name, dying)


def while_staging() -> None:
    """Die as soon as an executor has begun a Parquet file, while Spark still runs the tasks."""
    original = BatchRunner._stage

    def dying(self: BatchRunner, ranges: Any, context: Any) -> Any:
        folder = Path(context.main.folder.removeprefix("file://"))
        threading.Thread(target=_die_on_first_file, args=(folder,), daemon=True).start()
        answers = original(self, ranges, context)
        die()
        return answers

    BatchRunner._stage = dying  # type: ignore[method-assign]


def _die_on_first_file(folder: Path) -> None:
    while not (folder.is_dir() and any(folder.iterdir())):
        pass
    die()


POINTS: dict[str, Callable[[], None]] = {
    "while-staging": while_staging,
    "after-stage": lambda: after(BatchRunner, "_stage"),
    "after-journal": lambda: after(JournalStore, "put"),
    "after-dead-letters": lambda: after(Committer, "_commit_dead_letters"),
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
    sys.argv[0] = str(MAIN)
    runpy.run_path(str(MAIN), run_name="__main__")
