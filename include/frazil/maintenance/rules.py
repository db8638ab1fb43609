"""All alert rules by name, with the threshold's setting and the runbook's section.

A rule's name may be followed by a colon and its subject: `freshness:<stream>`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

RUNBOOK_VARIABLE = "FRAZIL_RUNBOOK"
"""Environment variable with the location of a team's runbook: a URL or a path."""
RUNBOOK = "docs/runbook.md"


class Hold(StrEnum):
    """Time that a value must be beyond its threshold before the alert fires."""

    DECLARED = "hold"
    """The hold of `maintenance.alerts.hold`."""
    NONE = "at once"


@dataclass(frozen=True, slots=True)
class Rule:
    """The static properties of a rule."""

    threshold: str | None
    """The key in `maintenance.alerts`; None for a rule about a fact."""
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
    """The runbook's section with what to do."""
    return f"{os.environ.get(RUNBOOK_VARIABLE) or RUNBOOK}#{rule.partition(':')[0]}"
