"""Lists all alert rules by name, with the setting of each rule's threshold, and links to their runbook sections.

A rule's name may be followed by a colon and the rule's subject: `freshness:<stream>`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

RUNBOOK_VARIABLE = "FRAZIL_RUNBOOK"
"""Environment variable with the location of a team's runbook: a URL or a path."""
RUNBOOK = "docs/runbook.md"


class Hold(StrEnum):
    """How long a value must be beyond its threshold before the alert fires."""

    DECLARED = "hold"
    """The time in `maintenance.alerts.hold`."""
    NONE = "at once"


@dataclass(frozen=True, slots=True)
class Rule:
    """The settings of one rule."""

    threshold: str | None
    """Key of the threshold in `maintenance.alerts`; None for a rule about a fact, which has no threshold."""
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
    """Return the link to the runbook section about the rule."""
    return f"{os.environ.get(RUNBOOK_VARIABLE) or RUNBOOK}#{rule.partition(':')[0]}"
