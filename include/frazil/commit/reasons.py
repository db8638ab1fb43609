"""The new dead letters of a batch by error class, for journals and snapshots' summaries: counts and places.

They include neither values of records nor error messages, which may quote one.
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
"""Maximum of error classes; no format has as many."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Dead letters of one error class."""

    count: int
    places: tuple[str, ...] = ()
    """A few places, as `topic[partition]@offset`."""

    def __add__(self, other: Reason) -> Reason:
        return Reason(self.count + other.count, (*self.places, *other.places)[:PLACES])


Reasons = Mapping[str, Reason]


def reasons_of(rejects: Rejects) -> Reasons:
    """Return the reasons of counted dead letters, without those that an operator accepted."""
    places: dict[str, list[str]] = {}
    for reject in rejects.samples:
        places.setdefault(reject.error_class, []).append(f"{reject.topic}[{reject.partition}]@{reject.offset}")
    named = sorted(rejects.counts.items(), key=lambda item: -item[1])[:MAX_REASONS]
    return {name: Reason(count, tuple(places.get(name, ())[:PLACES])) for name, count in named}


def reasons_summary(reasons: Reasons) -> dict[str, str]:
    """Return the entry of a snapshot's summary; without places if long topic names would make it too long."""
    if not reasons:
        return {}
    text = json.dumps(reasons_json(reasons), separators=(",", ":"))
    if len(text) > MAX_SUMMARY_CHARACTERS:
        text = json.dumps(reasons_json({name: Reason(of.count) for name, of in reasons.items()}), separators=(",", ":"))
    return {NAME: text}


def reasons_in(summary: Mapping[str, str]) -> Reasons:
    """Parse what `reasons_summary` wrote; empty for the summary of an earlier version or another program."""
    try:
        return reasons_from_json(json.loads(summary.get(NAME, "{}")))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}


def reasons_json(reasons: Reasons) -> dict[str, list[Any]]:
    return {name: [of.count, *of.places] for name, of in reasons.items()}


def reasons_from_json(raw: Mapping[str, Any]) -> Reasons:
    return {str(name): Reason(int(count), tuple(map(str, places))) for name, (count, *places) in raw.items()}
