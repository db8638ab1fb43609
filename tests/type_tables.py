"""Reads the tables in docs/reference/ that say which columns each written type fills. Tests try each pair."""

from __future__ import annotations

import re
from pathlib import Path

COLUMNS = {
    **{name: name for name in ("boolean", "int", "long", "float", "double", "string", "binary", "uuid")},
    **{name: name for name in ("date", "time", "timestamp", "timestamptz")},
    "decimal": "decimal(38, 2)",
    "fixed": "fixed[2]",
    "list": "list<int>",
    "map": "map<string, int>",
    "struct": "struct<a: int>",
}
"""A column type for each word in the tables."""


def written_types(page: str) -> list[tuple[str, set[str]]]:
    """Return each written type of a page's table, with the names of the column types that it fills."""
    table = Path("docs/reference", page).read_text().split("## Types")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+`) \| (`.+`) \|$", table, re.MULTILINE)
    words = re.compile(r"`([^`]+)`")
    return [(each, set(words.findall(columns))) for written, columns in rows for each in words.findall(written)]
