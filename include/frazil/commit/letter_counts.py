"""How a change of dead letters changes their number by error class, as the summary of its snapshot carries it.

So nobody need read the letters to know what a replay or a discard left of those that were rejected lately.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from frazil.commit.snapshot import TEXT_MOST

NAME = "frazil.letters-by"
LATELY_MS = timedelta(days=1) // timedelta(milliseconds=1)
"""Letters that were rejected longer before the change do not count."""


def listed(rows: pa.Table, *, now_ms: int) -> Counter[str]:
    """The letters that were rejected lately and that nobody discarded, by error class."""
    since = pa.scalar((now_ms - LATELY_MS) * 1000, pa.timestamp("us", tz="UTC"))
    meant = pc.fill_null(pc.greater_equal(rows["rejected_at"].cast(since.type), since), False)
    if "discarded_at" in rows.column_names:
        meant = pc.and_(meant, pc.is_null(rows["discarded_at"]))
    return Counter(rows.filter(meant)["error_class"].to_pylist())


def letters_summary(changed: Mapping[str, int]) -> dict[str, str]:
    """The entry of a snapshot's summary: how many more letters of each class there are."""
    text = json.dumps({name: more for name, more in changed.items() if more}, separators=(",", ":"))
    return {} if text == "{}" or len(text) > TEXT_MOST else {NAME: text}


def letters_in(summary: Mapping[str, str]) -> dict[str, int]:
    """What `letters_summary` wrote; nothing in the summary of an earlier version, or of somebody else."""
    try:
        return {str(name): int(more) for name, more in json.loads(summary.get(NAME, "{}")).items()}
    except (ValueError, TypeError, AttributeError):
        return {}
