"""Counts a batch's new dead letters by error class, with sample coordinates, for journals and summaries. Leaves out
values and error messages, which may be sensitive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frazil.commit.snapshot import MAX_SUMMARY_CHARACTERS
from frazil.ingest.contract import Rejects

SUMMARY_KEY = "frazil.rejected-by"
MAX_COORDINATES = 3
MAX_REASONS = 30


@dataclass(frozen=True, slots=True)
class Reason:
    count: int
    places: tuple[str, ...] = ()
    """Coordinates of a few of these dead letters, as `topic[partition]@offset`."""

    def __add__(self, other: Reason) -> Reason:
        return Reason(self.count + other.count, (*self.places, *other.places)[:MAX_COORDINATES])


Reasons = Mapping[str, Reason]


def count_reasons(rejects: Rejects) -> Reasons:
    """Return a batch's dead letters by error class, except accepted ones."""
    places: dict[str, list[str]] = {}
    for reject in rejects.samples:
        places.setdefault(reject.error_class, []).append(f"{reject.topic}[{reject.partition}]@{reject.offset}")
    named = sorted(rejects.counts.items(), key=lambda item: -item[1])[:MAX_REASONS]
    return {name: Reason(count, tuple(places.get(name, ())[:MAX_COORDINATES])) for name, count in named}


def reasons_summary(reasons: Reasons) -> dict[str, str]:
    """Return the summary entry. Omits coordinates if it would be too long."""
    if not reasons:
        return {}
    text = json.dumps(reasons_json(reasons), separators=(",", ":"))
    if len(text) > MAX_SUMMARY_CHARACTERS:
        text = json.dumps(reasons_json({name: Reason(of.count) for name, of in reasons.items()}), separators=(",", ":"))
    return {SUMMARY_KEY: text}


def parse_reasons(summary: Mapping[str, str]) -> Reasons:
    """Parse the entry of `reasons_summary`; empty for other programs' summaries."""
    try:
        return reasons_from_json(json.loads(summary.get(SUMMARY_KEY, "{}")))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}


def reasons_json(reasons: Reasons) -> dict[str, list[Any]]:
    return {name: [of.count, *of.places] for name, of in reasons.items()}


def reasons_from_json(raw: Mapping[str, Any]) -> Reasons:
    return {str(name): Reason(int(count), tuple(map(str, places))) for name, (count, *places) in raw.items()}
