"""The branches of a table, and their newest snapshots."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

MAIN = "main"


def head_of(metadata: TableMetadata, branch: str = MAIN) -> Snapshot | None:
    """The newest snapshot of a branch."""
    ref = metadata.refs.get(branch)
    return metadata.snapshot_by_id(ref.snapshot_id) if ref else None
