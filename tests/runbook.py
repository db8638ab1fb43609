"""Reads the runbook's entries, and the commands that they tell an operator to run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "runbook.md"
ELSEWHERE = {
    "restarts",
    "declaration",
    "registry",
    "stall",
    "late-window",
    "unmeasured",
    "aggregation",
    "runs",
    "stale-changes",
}
"""Entries whose *Fix* is done on the machine, in another system or in Airflow's UI, as the page says."""
IN_THE_SENTENCE = {"table"}
"""Entries whose *Fix* is a command in the alert's message."""


def entries() -> dict[str, str]:
    """Return the text of each entry, by its rule."""
    _, *found = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


def part(rule: str, name: str) -> str:
    """Return an entry's text under **Check**, **Fix** or **Verify**. "Check and fix" counts as both."""
    _, *found = re.split(r"^\*\*(Check|Fix|Verify)\*\*", entries()[rule], flags=re.MULTILINE)
    parts = dict(zip(found[::2], found[1::2], strict=True))
    if "Fix" not in parts and parts["Check"].startswith(" and **fix**"):
        parts["Fix"] = parts["Check"]
    return parts[name]


def commands(rule: str, name: str) -> list[list[str]]:
    """Return the commands that a part of the entry tells an operator to type, in order, without `frazil` itself."""
    text = part(rule, name)
    lines = re.findall(r"^\$ (frazil .+)$", text, flags=re.MULTILINE)
    if name == "Verify":
        lines += re.findall(r"`(frazil [^`]+)`", text)
    return [shlex.split(line)[1:] for line in lines]
