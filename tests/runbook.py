"""The runbook's entries, and the commands that they tell a person to give."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "runbook.md"


def entries() -> dict[str, str]:
    """The text of each entry, by its rule."""
    _, *found = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


def commands(rule: str) -> list[list[str]]:
    """What the entry has a person type, in its order, without `frazil` itself."""
    blocks = re.findall(r"```console\n(.*?)```", entries()[rule], flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ frazil ")]
    return [shlex.split(line)[2:] for line in lines]
