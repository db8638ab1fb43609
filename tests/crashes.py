"""Points at which a writer in a test kills itself with SIGKILL, as if its host died."""

from __future__ import annotations

import os
import signal
from typing import Any

from frazil.commit import committer


def between_the_tables_of_a_batch() -> None:
    """Die after a batch's dead letters are committed, but before its rows are."""
    original = committer.commit_snapshots

    def dying(commits: Any, **kwargs: Any) -> Any:
        landed = original(commits[:1], **kwargs)
        if len(commits) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return landed

    committer.commit_snapshots = dying  # type: ignore[attr-defined]
