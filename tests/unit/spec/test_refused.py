"""Incompatible settings are refused, and one table of the documentation lists them all."""

from __future__ import annotations

from pathlib import Path

from frazil.spec.incompatible_settings import REFUSALS

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "declare-a-stream.md"
CALLED = {"source.format.lines": "JSON `lines`", "mode": "`mode: upsert`", "coordinates": "`coordinates: false`"}
CALLED["transform"] = "`unnest`"


def test_the_documentation_lists_each_refused_combination_of_settings() -> None:
    _, _, section = PAGE.read_text().partition("## Incompatible settings")
    rows = [line.split(" | ")[:2] for line in section.splitlines() if line.startswith("| `")]
    for feature, place, values, _ in REFUSALS:
        whole = len(values) > 1 or place == "commit.align"
        named = CALLED.get(place, f"`{place}`" if whole else f"`{place}: {values[0]}`")
        assert any(f"`{feature}`" in left and named in right for left, right in rows), (feature, place)
