"""Finds the newest snapshots of a table's branches."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

MAIN = "main"
"""The name of a table's default branch."""


def head_of(metadata: TableMetadata, branch: str = MAIN) -> Snapshot | None:
    """Return the newest snapshot of a branch; None if the branch does not exist."""
    ref = metadata.refs.get(branch)
    newest_first = reversed(metadata.snapshots)  # the head is most often the newest of hundreds
    return next((one for one in newest_first if one.snapshot_id == ref.snapshot_id), None) if ref else None


def count_live_rows(snapshot: Snapshot) -> int | None:
    """Return the number of rows that a reader finds in a snapshot; None if its summary has no row count.

    The number is too small if two delete files list the same row, or if a data file was removed without its delete
    file.
    """
    if snapshot.summary is None or (text := snapshot.summary.get("total-records")) is None:
        return None
    return max(int(text) - int(snapshot.summary.get("total-position-deletes") or 0), 0)
