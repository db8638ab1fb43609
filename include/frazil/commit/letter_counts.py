"""How a change of dead letters changes their number, by error class and by the hour in which they were rejected.

The summary of its snapshot carries that, so nobody need read the letters to know what a replay or a discard left of
those that were rejected lately.
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
HOUR_MS = timedelta(hours=1) // timedelta(milliseconds=1)
LATELY_MS = timedelta(days=1) // timedelta(milliseconds=1)
"""Letters that were rejected longer before the change do not count."""
SPANS = (1, 4, 8)
"""Hours that are told as the first of them, where a summary would be too long with less."""

Changes = Mapping[tuple[str, int], int]
"""How many more letters there are, by error class and by the hour of rejection, counted since 1970."""


def listed(rows: pa.Table, *, now_ms: int) -> Counter[tuple[str, int]]:
    """The letters that were rejected lately and that nobody discarded, by error class and hour."""
    at = rows["rejected_at"].cast(pa.timestamp("us", tz="UTC"))
    meant = pc.fill_null(pc.greater_equal(at, pa.scalar((now_ms - LATELY_MS) * 1000, at.type)), False)
    if "discarded_at" in rows.column_names:
        meant = pc.and_(meant, pc.is_null(rows["discarded_at"]))
    hours = pc.divide(at.filter(meant).cast(pa.int64()), HOUR_MS * 1000)
    return Counter(zip(rows["error_class"].filter(meant).to_pylist(), hours.to_pylist(), strict=True))


def letters_summary(changed: Changes) -> dict[str, str]:
    """The entry of a snapshot's summary."""
    for span in SPANS:
        text = json.dumps(_by_class(changed, span), separators=(",", ":"))
        if len(text) <= TEXT_MOST:
            return {} if text == "{}" else {NAME: text}
    return {}


def letters_in(summary: Mapping[str, str]) -> Changes:
    """What `letters_summary` wrote; nothing in the summary of an earlier version, or of somebody else."""
    try:
        found = json.loads(summary.get(NAME, "{}"))
        return {(str(name), int(hour)): int(more) for name, hours in found.items() for hour, more in hours.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _by_class(changed: Changes, span: int) -> dict[str, dict[int, int]]:
    told = Counter[tuple[str, int]]()
    for (name, hour), more in changed.items():
        told[name, hour - hour % span] += more
    found: dict[str, dict[int, int]] = {}
    for (name, hour), more in told.items():
        if more:
            found.setdefault(name, {})[hour] = more
    return found
