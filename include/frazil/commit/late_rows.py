"""Counts rows that came to windows after their signal, whoever wrote them and however.

A signal counts the rows of its window at one snapshot, and the table's cursor says up to which. So what a later commit
adds to a window that was signalled is late: a straggler, another stream's record, a backfill, a record that is read
again, rows that waited on a branch, another engine's append. A commit of ours says in its snapshot's summary how many
rows of each window it brings, so that most are judged by that alone; of any other, its files tell.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from frazil.commit.history import ancestors
from frazil.commit.snapshot import TEXT_MOST
from frazil.partitions.completeness import Cursor
from frazil.partitions.window_rows import added_rows
from frazil.partitions.windows import Grain

WINDOWS = "frazil.windows"


def windows_summary(windows: Mapping[int, int] | None) -> dict[str, str]:
    """What a commit's summary says of its rows by window; nothing where they are unknown, or more than it carries."""
    if windows is None:
        return {}
    text = json.dumps(dict(sorted(windows.items())), separators=(",", ":"))
    return {WINDOWS: text} if len(text) <= TEXT_MOST else {}


def late_rows(table: Table, cursor: Cursor | None, *, column: str, grain: Grain) -> dict[int, int]:
    """Late rows of signalled windows since the commit that the cursor has counted, by the start of their window.

    Empty without a cursor: nothing was signalled yet. `column` is that of the event time.
    """
    late: Counter[int] = Counter()
    if cursor is None or cursor.grain is not grain:
        return {}
    for snapshot in ancestors(table.metadata):
        if (snapshot.sequence_number or 0) <= cursor.sequence_number:
            break
        if may_be_late(snapshot, cursor):
            said = _said(snapshot)
            late.update(added_rows(table, snapshot, cursor, column=column) if said is None else said)
    return {start: rows for start, rows in late.items() if cursor.from_us <= start < cursor.through_us and rows}


def may_be_late(snapshot: Snapshot, cursor: Cursor) -> bool:
    """Whether a commit may have rows of windows that were signalled, as far as its summary tells."""
    said = _said(snapshot)
    if said is not None:
        return any(cursor.from_us <= start < cursor.through_us for start in said)
    summary = snapshot.summary
    # A rewrite adds what was there already.
    return bool(summary and summary.operation is Operation.APPEND and int(summary.get("added-records") or 0))


def _said(snapshot: Snapshot) -> dict[int, int] | None:
    text = snapshot.summary.get(WINDOWS) if snapshot.summary else None
    return None if text is None else {int(start): rows for start, rows in json.loads(text).items()}
