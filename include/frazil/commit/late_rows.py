"""Counts rows that arrived in windows after their signal, from any writer.

A signal counts its window's rows at one snapshot, and the table's cursor names the last commit that signals have
counted. Rows that a later commit adds to a signalled window are late: stragglers, backfills, records that are read
again, rows of other streams or engines, and rows from a branch. The summary of a frazil commit has its rows by
window, so most commits need only the summary. For any other commit, its files are read.
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
from frazil.partitions.window_rows import added_rows
from frazil.partitions.windows import Grain

WINDOWS = "frazil.windows"


def windows_summary(windows: Mapping[int, int] | None) -> dict[str, str]:
    """Return the summary entry with a commit's rows by window; empty if they are unknown, or too many windows."""
    if windows is None:
        return {}
    text = json.dumps(dict(sorted(windows.items())), separators=(",", ":"))
    return {WINDOWS: text} if len(text) <= MAX_SUMMARY_CHARACTERS else {}


def late_rows(table: Table, cursor: Cursor | None, *, column: str, grain: Grain) -> dict[int, int]:
    """Return late rows by window start: rows that commits after the cursor's added to signalled windows.

    Empty without a cursor, because nothing is signalled yet. `column` has the event time.
    """
    late: Counter[int] = Counter()
    if cursor is None or cursor.grain is not grain:
        return {}
    for snapshot in ancestors(table.metadata):
        if (snapshot.sequence_number or 0) <= cursor.sequence_number:
            break
        if may_be_late(snapshot, cursor):
            rows = _rows_in_summary(snapshot)
            late.update(added_rows(table, snapshot, cursor, column=column) if rows is None else rows)
    return {start: count for start, count in late.items() if cursor.from_us <= start < cursor.through_us and count}


def may_be_late(snapshot: Snapshot, cursor: Cursor) -> bool:
    """Whether a commit may have rows of signalled windows, by its summary."""
    rows = _rows_in_summary(snapshot)
    if rows is not None:
        return any(cursor.from_us <= start < cursor.through_us for start in rows)
    summary = snapshot.summary
    if not summary or not int(summary.get("added-records") or 0):
        return False
    # A rewrite only adds rows that the table had already. A merge of ours that changed rows of too many windows to name
    # them also adds others; its files tell more windows than it changed, rather than fewer.
    return summary.operation is Operation.APPEND or summary.get("frazil.inserted") is not None


def _rows_in_summary(snapshot: Snapshot) -> dict[int, int] | None:
    """Return the rows of a commit by window start, from its summary; None if the summary does not have them."""
    text = snapshot.summary.get(WINDOWS) if snapshot.summary else None
    return None if text is None else {int(start): rows for start, rows in json.loads(text).items()}
