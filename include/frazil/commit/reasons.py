"""The new dead letters of a batch by error class, as journals and snapshots' summaries carry them: counts and places.

No value of a record is in them, and no text of an error, which may quote one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frazil.commit.snapshot import MAX_SUMMARY_CHARACTERS
from frazil.ingest.contract import Rejects

NAME = "frazil.rejected-by"
PLACES = 3
MAX_REASONS = 30
"""More error classes than any format has."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Dead letters of one error class."""

    count: int
    places: tuple[str, ...] = ()
    """A few of them, as `topic[partition]@offset`."""

    def __add__(self, other: Reason) -> Reason:
        return Reason(self.count + other.count, (*self.places, *other.places)[:PLACES])


Reasons = Mapping[str, Reason]


def reasons_of(rejects: Rejects) -> Reasons:
    """Those that were counted; what a person has accepted is not."""
    places: dict[str, list[str]] = {}
    for reject in rejects.samples:
        places.setdefault(reject.error_class, []).append(f"{reject.topic}[{reject.partition}]@{reject.offset}")
    named = sorted(rejects.counts.items(), key=lambda item: -item[1])[:MAX_REASONS]
    return {name: Reason(count, tuple(places.get(name, ())[:PLACES])) for name, count in named}


def reasons_summary(reasons: Reasons) -> dict[str, str]:
    """The entry of a snapshot's summary; without places where long names of topics would make it too long."""
    if not reasons:
        return {}
    text = json.dumps(reasons_json(reasons), separators=(",", ":"))
    if len(text) > MAX_SUMMARY_CHARACTERS:
        text = json.dumps(reasons_json({name: Reason(of.count) for name, of in reasons.items()}), separators=(",", ":"))
    return {NAME: text}


def reasons_in(summary: Mapping[str, str]) -> Reasons:
    """What `reasons_summary` wrote; nothing in the summary of an earlier version, or of somebody else."""
    try:
        return reasons_from_json(json.loads(summary.get(NAME, "{}")))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}


def reasons_json(reasons: Reasons) -> dict[str, list[Any]]:
    return {name: [of.count, *of.places] for name, of in reasons.items()}


def reasons_from_json(raw: Mapping[str, Any]) -> Reasons:
    return {str(name): Reason(int(count), tuple(map(str, places))) for name, (count, *places) in raw.items()}
