"""Counts the dead letters that a commit adds or removes, by error class and hour of rejection, in the snapshot's
summary.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from frazil.commit.snapshot import MAX_SUMMARY_CHARACTERS

COUNTS_KEY = "frazil.letters-by"
SPAN_KEY = "frazil.letters-by-hours"
HOUR_MS = timedelta(hours=1) // timedelta(milliseconds=1)
MAX_RECENT_AGE_MS = timedelta(days=1) // timedelta(milliseconds=1)
BUCKET_HOURS = (1, 4, 12)
"""Bucket sizes, each a divisor of the next. A larger size is used if the summary would be too long."""

Counts = Mapping[tuple[str, int], int]
"""How many dead letters a commit added (negative: removed), by error class and hour since 1970."""


class CountChanges(NamedTuple):
    by: Counts
    span: int
    """Bucket size in hours. Buckets are named by their first hour."""


UNCHANGED_COUNTS = CountChanges({}, BUCKET_HOURS[0])


def count_recent(rows: pa.Table, *, now_ms: int) -> Counter[tuple[str, int]]:
    """Count the recently rejected dead letters by error class and hour. Omits discarded ones."""
    at = rows["rejected_at"].cast(pa.timestamp("us", tz="UTC"))
    first = span_start((now_ms - MAX_RECENT_AGE_MS) // HOUR_MS, BUCKET_HOURS[-1])
    counts = pc.fill_null(pc.greater_equal(at, pa.scalar(first * HOUR_MS * 1000, at.type)), False)
    if "discarded_at" in rows.column_names:
        counts = pc.and_(counts, pc.is_null(rows["discarded_at"]))
    hours = pc.divide(at.filter(counts).cast(pa.int64()), HOUR_MS * 1000)
    return Counter(zip(rows["error_class"].filter(counts).to_pylist(), hours.to_pylist(), strict=True))


def dead_letter_summary(changed: Counts) -> dict[str, str]:
    """Return the summary entries with the counts; empty if the counts are too long for a summary."""
    for span in BUCKET_HOURS:
        by_class: dict[str, dict[int, int]] = {}
        for (error_class, hour), count in sum_by_span(changed, span).items():
            if count:
                by_class.setdefault(error_class, {})[hour] = count
        text = json.dumps(by_class, separators=(",", ":"))
        if len(text) <= MAX_SUMMARY_CHARACTERS:
            return {COUNTS_KEY: text, SPAN_KEY: str(span)} if by_class else {}
    return {}


def parse_dead_letter_summary(summary: Mapping[str, str]) -> CountChanges:
    """Parse the entries of `dead_letter_summary`. Returns no counts if the entries are missing or invalid."""
    try:
        by_class, span = json.loads(summary.get(COUNTS_KEY, "{}")), int(summary.get(SPAN_KEY, BUCKET_HOURS[0]))
        by = {(str(name), int(hour)): int(count) for name, hours in by_class.items() for hour, count in hours.items()}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return UNCHANGED_COUNTS
    return CountChanges(by, span) if span in BUCKET_HOURS else UNCHANGED_COUNTS


def sum_by_span(changed: Counts, span: int) -> Counter[tuple[str, int]]:
    sums = Counter[tuple[str, int]]()
    for (error_class, hour), count in changed.items():
        sums[error_class, span_start(hour, span)] += count
    return sums


def span_start(hour: int, span: int) -> int:
    return hour - hour % span
