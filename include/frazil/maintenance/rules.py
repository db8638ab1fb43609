"""Every rule of an alert by its name: what it is compared with, and where its way out is described.

A rule's name may go on behind a colon, with what it is about: `freshness:<stream>`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

RUNBOOK_VARIABLE = "FRAZIL_RUNBOOK"
"""Where a team keeps its runbook: an address, or a path."""
RUNBOOK = "docs/runbook.md"


class Hold(StrEnum):
    """How long a value must be beyond its threshold before the alert fires."""

    DECLARED = "hold"
    """What `maintenance.alerts.hold` declares."""
    NONE = "at once"


@dataclass(frozen=True, slots=True)
class Rule:
    """What is known of a rule before anything is measured."""

    threshold: str | None
    """The key in `maintenance.alerts`; None for a fact, which is so or is not."""
    hold: Hold = Hold.DECLARED


RULES = {
    "manifest-list": Rule("manifest-list-bytes-per-file"),
    "manifests": Rule("manifests"),
    "snapshots": Rule("snapshots"),
    "metadata": Rule("metadata-bytes"),
    "small-files": Rule("small-files"),
    "delete-files": Rule("delete-files"),
    "deleted-rows": Rule("deleted-rows"),
    "since-compaction": Rule("since-compaction"),
    "freshness": Rule("freshness"),
    "lag": Rule("lag"),
    "declaration": Rule(None, Hold.NONE),
    "table": Rule(None, Hold.NONE),
    "writer": Rule("writer-down"),
    "restarts": Rule("restarts"),
    "registry": Rule(None),
    "stall": Rule(None),
    "waiting-batches": Rule("waiting-batches"),
    "dead-letters": Rule("dead-letters"),
    "stale-changes": Rule("stale-changes"),
    "audit": Rule(None, Hold.NONE),
    "late-window": Rule("late-window"),
    "held": Rule(None, Hold.NONE),
    "aggregation": Rule(None, Hold.NONE),
    "runs": Rule("failed-runs"),
    "unmeasured": Rule(None),
}


def runbook_of(rule: str) -> str:
    """Where the runbook says what to do."""
    return f"{os.environ.get(RUNBOOK_VARIABLE) or RUNBOOK}#{rule.partition(':')[0]}"
