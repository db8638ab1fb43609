"""Each guarantee and limit in the docs has a test, and each test of a fault with real parts is listed."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = [Path("docs/reference", name).read_text() for name in ("guarantees.md", "limits.md")]
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", "".join(PAGES))
HEADS = ("| what holds |", "| a producer chooses |")


def test_each_guarantee_names_a_test_that_exists() -> None:
    lines = [line for page in PAGES for line in page.splitlines()]
    rows = [line for line in lines if line.startswith("| ") and not line.startswith(HEADS)]
    assert rows
    assert [row for row in rows if "`tests/" not in row] == []
    missing = [f"{file}::{name}" for file, name in NAMED if not defines(Path(file).read_text(), name)]
    assert missing == []


def test_each_fault_test_is_listed_in_the_guarantees() -> None:
    for file in ("test_kafka_faults.py", "test_table_faults.py"):
        names = re.findall(r"^def (test_\w+)", Path("tests/faults", file).read_text(), re.MULTILINE)
        assert set(names) <= {name for _, name in NAMED}


def defines(text: str, name: str) -> bool:
    """Whether the test is there by its whole name; the name is empty where a row names a file."""
    return not name or f"def {name}(" in text
