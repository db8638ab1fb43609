"""Detects an open backfill or replay that no process is working on."""

from __future__ import annotations

import socket
from datetime import timedelta

from pyiceberg.table.metadata import TableMetadata

from frazil.commit.backfill_marker import BackfillMarker, BackfillState, branch_name
from frazil.host.processes import is_alive
from frazil.host.records import ProcessMark
from frazil.table.branches import head_of
from frazil.timetext import format_elapsed

COMMIT_TIMEOUT_MS = timedelta(minutes=15) // timedelta(milliseconds=1)
"""After this time without a commit, a backfill of another host counts as interrupted."""


def describe_progress(last: BackfillMarker, metadata: TableMetadata, *, now_ms: int) -> str:
    what, chunks = "replay" if last.replays else "backfill", f"{last.chunks:,} of {max(last.planned, last.chunks):,}"
    why = describe_interruption(last, metadata, now_ms=now_ms)
    return f"{what} {last.id}: {last.state}, {chunks} chunks" + (f"; {why}" if why else "")


def describe_interruption(last: BackfillMarker, metadata: TableMetadata, *, now_ms: int) -> str | None:
    """Return why an open backfill makes no progress, and what to do; None if it may be running."""
    if not last.is_open or (last.state is BackfillState.STAGED and last.request.get("target") == "branch"):
        return None
    ways = f"run the same command again, or `frazil backfill {last.stream} --abandon`"
    worker, head = last.worker, head_of(metadata, branch_name(last.stream))
    if worker is not None and worker.host == socket.gethostname():
        alive = is_alive(ProcessMark(worker.pid, worker.started_at_s))
        return None if alive else f"interrupted: no process works on it. To finish or end it, {ways}"
    quiet_ms = now_ms - head.timestamp_ms if head else 0
    if quiet_ms < COMMIT_TIMEOUT_MS:
        return None
    where = f"process {worker.pid} of host {worker.host}" if worker else "an unknown process"
    return f"no commit for {format_elapsed(quiet_ms)} by {where}. If the process has ended, {ways}"
