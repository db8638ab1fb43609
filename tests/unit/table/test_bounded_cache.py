"""A cache that keeps the most recently used entries."""

from __future__ import annotations

from frazil.table.faster_commits import BoundedCache


def test_a_bounded_cache_evicts_the_oldest_entry() -> None:
    recent = BoundedCache[int](2)
    for name, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        recent.keep(name, value)
    assert (recent.get("a"), recent.get("b"), recent.get("c"), len(recent)) == (3, None, 4, 2)
