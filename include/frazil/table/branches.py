"""Finds the newest snapshots of a table's branches."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

MAIN = "main"


def head_of(metadata: TableMetadata, branch: str = MAIN) -> Snapshot | None:
    """The newest snapshot of a branch."""
    ref = metadata.refs.get(branch)
    return metadata.snapshot_by_id(ref.snapshot_id) if ref else None


def live_rows(snapshot: Snapshot) -> int | None:
    """Number of rows that a reader finds in a snapshot, from its summary; None if the summary does not tell.

    Iceberg's `total-records` includes rows that position deletes remove. A row counts as deleted twice if two deletes
    name it, or if its file was removed without its delete.
    """
    if snapshot.summary is None or (text := snapshot.summary.get("total-records")) is None:
        return None
    return max(int(text) - int(snapshot.summary.get("total-position-deletes") or 0), 0)
