"""Counts late rows: rows that land in a window after its signal. They come from delayed records, backfills, repeated
reads, or other streams and engines. The table's cursor names the last commit that the signals cover.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from frazil.commit.history import ancestors
from frazil.commit.snapshot import MAX_SUMMARY_CHARACTERS
from frazil.partitions.completeness import Cursor
from frazil.partitions.window_rows import count_added_rows
from frazil.partitions.windows import Grain

WINDOWS_KEY = "frazil.windows"


def windows_summary(windows: Mapping[int, int] | None) -> dict[str, str]:
    """Return the summary entry with a commit's rows by window; empty if unknown or too long."""
    if windows is None:
        return {}
    text = json.dumps(dict(sorted(windows.items())), separators=(",", ":"))
    return {WINDOWS_KEY: text} if len(text) <= MAX_SUMMARY_CHARACTERS else {}


def late_rows(table: Table, cursor: Cursor | None, *, column: str, grain: Grain) -> dict[int, int]:
    """Return the number of rows that later commits than the cursor added to signalled windows, by window start (us)."""
    late: Counter[int] = Counter()
    if cursor is None or cursor.grain is not grain:
        return {}
    for snapshot in ancestors(table.metadata):
        if (snapshot.sequence_number or 0) <= cursor.sequence_number:
            break
        if may_add_late_rows(snapshot, cursor):
            rows = _rows_in_summary(snapshot)
            late.update(count_added_rows(table, snapshot, cursor, column=column) if rows is None else rows)
    return {start: count for start, count in late.items() if cursor.from_us <= start < cursor.through_us and count}


def may_add_late_rows(snapshot: Snapshot, cursor: Cursor) -> bool:
    """Return whether a commit may have added rows to signalled windows, according to its summary."""
    rows = _rows_in_summary(snapshot)
    if rows is not None:
        return any(cursor.from_us <= start < cursor.through_us for start in rows)
    summary = snapshot.summary
    if not summary or not int(summary.get("added-records") or 0):
        return False
    # A compaction adds no new rows. A frazil merge does, and may have changed too many windows to list in its summary.
    # Its files contain rows of all these windows, and perhaps of others.
    return summary.operation is Operation.APPEND or summary.get("frazil.inserted") is not None


def _rows_in_summary(snapshot: Snapshot) -> dict[int, int] | None:
    text = snapshot.summary.get(WINDOWS_KEY) if snapshot.summary else None
    return None if text is None else {int(start): rows for start, rows in json.loads(text).items()}
