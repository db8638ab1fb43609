"""Finds the newest snapshots of a table's branches, and reads snapshots' summaries."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

MAIN = "main"


def head_of(metadata: TableMetadata, branch: str = MAIN) -> Snapshot | None:
    ref = metadata.refs.get(branch)
    newest_first = reversed(metadata.snapshots)  # the head is most often the newest of hundreds
    return (
        next((snapshot for snapshot in newest_first if snapshot.snapshot_id == ref.snapshot_id), None) if ref else None
    )


def snapshot_summary(snapshot: Snapshot | None) -> Mapping[str, str]:
    summary = None if snapshot is None else snapshot.summary
    return {} if summary is None else summary.additional_properties


def summary_value(snapshot: Snapshot | None, key: str) -> str | None:
    return snapshot_summary(snapshot).get(key)


def count_live_rows(snapshot: Snapshot) -> int | None:
    """Return a snapshot's number of rows from its summary, if known; too low if rows were deleted twice."""
    if (text := summary_value(snapshot, "total-records")) is None:
        return None
    return max(int(text) - int(summary_value(snapshot, "total-position-deletes") or 0), 0)
