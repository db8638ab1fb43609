"""Counts the dead letters that a commit adds or removes, by error class and hour of rejection, in the snapshot's
summary. Counts a batch's new dead letters by error class, with sample coordinates, for journals and summaries. Leaves
out values and error messages, which may be sensitive.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from frazil.commit.snapshot import MAX_SUMMARY_CHARACTERS
from frazil.ingest.contract import Rejects

COUNTS_KEY = "frazil.letters-by"
SPAN_KEY = "frazil.letters-by-hours"
HOUR_MS = timedelta(hours=1) // timedelta(milliseconds=1)
MAX_RECENT_AGE_MS = timedelta(days=1) // timedelta(milliseconds=1)
BUCKET_HOURS = (1, 4, 12)
"""Bucket sizes; each divides the next larger size. A larger size is used if the summary would be too long."""

Counts = Mapping[tuple[str, int], int]
"""How many dead letters a commit added (negative: removed), by error class and hour since 1970."""
REASONS_KEY = "frazil.rejected-by"
ACCEPTED_KEY = "frazil.accepted-by"
"""Key of the dead letters that an operator accepted. `REASONS_KEY` has all other dead letters."""
MAX_COORDINATES = 3
MAX_REASONS = 30


class CountChanges(NamedTuple):
    by: Counts
    span: int
    """Bucket size in hours. Buckets are named by their first hour."""


UNCHANGED_COUNTS = CountChanges({}, BUCKET_HOURS[0])


def count_recent(rows: pa.Table, *, now_ms: int) -> Counter[tuple[str, int]]:
    """Count the recently rejected dead letters by error class and hour. Omits discarded dead letters."""
    times = rows["rejected_at"].cast(pa.timestamp("us", tz="UTC"))
    first = span_start((now_ms - MAX_RECENT_AGE_MS) // HOUR_MS, BUCKET_HOURS[-1])
    counts = pc.fill_null(pc.greater_equal(times, pa.scalar(first * HOUR_MS * 1000, times.type)), False)
    if "discarded_at" in rows.column_names:
        counts = pc.and_(counts, pc.is_null(rows["discarded_at"]))
    hours = pc.divide(times.filter(counts).cast(pa.int64()), HOUR_MS * 1000)
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


@dataclass(frozen=True, slots=True)
class Reason:
    count: int
    coordinates: tuple[str, ...] = ()
    """Coordinates of a few of these dead letters, as `topic[partition]@offset`."""

    def __add__(self, other: Reason) -> Reason:
        return Reason(self.count + other.count, (*self.coordinates, *other.coordinates)[:MAX_COORDINATES])


Reasons = Mapping[str, Reason]


def count_reasons(rejects: Rejects) -> Reasons:
    """Return a batch's dead letters by error class."""
    coordinates: dict[str, list[str]] = {}
    for reject in rejects.samples:
        coordinates.setdefault(reject.error_class, []).append(f"{reject.topic}[{reject.partition}]@{reject.offset}")
    largest = sorted(rejects.counts.items(), key=lambda item: -item[1])[:MAX_REASONS]
    return {name: Reason(count, tuple(coordinates.get(name, ())[:MAX_COORDINATES])) for name, count in largest}


def reasons_summary(reasons: Reasons, key: str = REASONS_KEY) -> dict[str, str]:
    """Return the summary entry. Omits coordinates if the entry would be too long."""
    if not reasons:
        return {}
    text = json.dumps(reasons_json(reasons), separators=(",", ":"))
    if len(text) > MAX_SUMMARY_CHARACTERS:
        text = json.dumps(reasons_json({name: Reason(r.count) for name, r in reasons.items()}), separators=(",", ":"))
    return {key: text}


def parse_reasons(summary: Mapping[str, str], key: str = REASONS_KEY) -> Reasons:
    """Parse the entry of `reasons_summary`; empty for other programs' summaries."""
    try:
        return reasons_from_json(json.loads(summary.get(key, "{}")))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}


def reasons_json(reasons: Reasons) -> dict[str, list[Any]]:
    return {name: [reason.count, *reason.coordinates] for name, reason in reasons.items()}


def reasons_from_json(raw: Mapping[str, Any]) -> Reasons:
    return {str(name): Reason(int(count), tuple(map(str, coordinates))) for name, (count, *coordinates) in raw.items()}
