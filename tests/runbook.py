"""The runbook's entries, and the commands that they tell a person to give."""

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
"""Entries whose *Do* is done at the machine, in another system or in Airflow's UI, as the page says."""
IN_THE_SENTENCE = {"table"}
"""Entries whose *Do* is a command that the alert's sentence has."""


def entries() -> dict[str, str]:
    """The text of each entry, by its rule."""
    _, *found = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


def part(rule: str, name: str) -> str:
    """What an entry says below **Look**, **Do** or **Verify**. Where it says "look and do", that is both."""
    _, *found = re.split(r"^\*\*(Look|Do|Verify)\*\*", entries()[rule], flags=re.MULTILINE)
    parts = dict(zip(found[::2], found[1::2], strict=True))
    if "Do" not in parts and parts["Look"].startswith(" and **do**"):
        parts["Do"] = parts["Look"]
    return parts[name]


def commands(rule: str, name: str) -> list[list[str]]:
    """What a part of the entry has a person type, in its order, without `frazil` itself."""
    text = part(rule, name)
    lines = re.findall(r"^\$ (frazil .+)$", text, flags=re.MULTILINE)
    if name == "Verify":
        lines += re.findall(r"`(frazil [^`]+)`", text)
    return [shlex.split(line)[1:] for line in lines]
