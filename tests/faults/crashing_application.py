"""A shared application, without a JVM, that kills itself with SIGKILL at one point of one stream's batch.

`FRAZIL_TEST_CRASH` has the point and the stream, such as `after-journal:b`. Without it, the application runs as usual.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from frazil import spark_apps
from frazil.commit.committer import Committer
from frazil.commit.journal import JournalStore
from tests.crashes import between_the_tables_of_a_batch
from tests.faults.crashing_writer import around_stage, die
from tests.writer_without_jvm import main


def after(owner: type, name: str, stream: str) -> None:
    """Let the process die after a method has finished its work for a journal of that stream."""
    original = getattr(owner, name)

    def dying(self: Any, journal: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(self, journal, *args, **kwargs)
        if journal.stream == stream:
            die()
        return done

    setattr(owner, name, dying)


def after_stage(of: str) -> None:
    def wrap(stage: Any) -> Any:
        def staged(work: Any) -> Any:
            answers = stage(work)
            if work.context.stream == of:
                die()
            return answers

        return staged

    around_stage(wrap)


if __name__ == "__main__":
    point, _, name = os.environ.get("FRAZIL_TEST_CRASH", "").partition(":")
    if point == "after-stage":
        after_stage(name)
    elif point == "after-journal":
        after(JournalStore, "put", name)
    elif point == "after-dead-letters":
        between_the_tables_of_a_batch()  # only that stream has dead letters
    elif point == "after-commit":
        after(Committer, "commit", name)
    main(program=spark_apps.WRITE_APPLICATION)
