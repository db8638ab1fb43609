"""The branches of a table, and their newest snapshots."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

MAIN = "main"


def head_of(metadata: TableMetadata, branch: str = MAIN) -> Snapshot | None:
    """The newest snapshot of a branch."""
    ref = metadata.refs.get(branch)
    return metadata.snapshot_by_id(ref.snapshot_id) if ref else None


def live_rows(snapshot: Snapshot) -> int | None:
    """How many rows a reader finds in a snapshot, from its summary; None if that does not say.

    Iceberg's `total-records` counts the rows of data files, also those that position deletes name. A row that two
    deletes name, or that left with its file while its delete did not, counts as deleted twice.
    """
    if snapshot.summary is None or (text := snapshot.summary.get("total-records")) is None:
        return None
    return max(int(text) - int(snapshot.summary.get("total-position-deletes") or 0), 0)
