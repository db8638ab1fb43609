"""Late rows of a commit, by window of event time: written into its snapshot's summary, and read back from there.

A row is late where the watermark had passed its window's end before the batch began. Few windows are late at a time;
where they are more than a summary should carry, it says so, and the commit record has them all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from pyiceberg.table.metadata import TableMetadata

from frazil.commit.history import ancestors
from frazil.commit.snapshot import TEXT_MOST
from frazil.table.storage import ObjectStore

LATE = "frazil.late"
MANY = "many"


def late_summary(late: Mapping[int, int]) -> dict[str, str]:
    """What a commit's summary says of late rows, by their window's start in microseconds; nothing where it has none."""
    if not late:
        return {}
    text = json.dumps(dict(sorted(late.items())), separators=(",", ":"))
    return {LATE: text if len(text) <= TEXT_MOST else MANY}


def late_since(metadata: TableMetadata, store: ObjectStore, *, sequence_number: int) -> dict[int, int]:
    """Late rows by window's start, of all commits to main after one."""
    late: Counter[int] = Counter()
    for snapshot in ancestors(metadata):
        if (snapshot.sequence_number or 0) <= sequence_number:
            break
        summary = snapshot.summary
        text = summary.get(LATE) if summary else None
        if summary and text:
            counts = _in_record(store, summary.get("frazil.commit-record")) if text == MANY else json.loads(text)
            late.update({int(start): rows for start, rows in counts.items()})
    return dict(late)


def _in_record(store: ObjectStore, path: str | None) -> Mapping[str, int]:
    data = store.get(path) if path else None
    found: Mapping[str, int] = json.loads(data).get("late", {}) if data else {}
    return found
