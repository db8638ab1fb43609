"""What a backfill staged, compared with its source before it is published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from frazil.backfill.rules import StagedRecords, find_problems
from frazil.ingest.contract import RangeProgress
from frazil.offsets.spans import offset_bitmap
from frazil.offsets.tally import OffsetTally

SHOP = ("shop", 0)


def staged(*progress: RangeProgress, rows: list[int]) -> StagedRecords:
    journal: Any = SimpleNamespace(progress=progress, records=sum(p.records for p in progress), rejected=0)
    return StagedRecords((journal,), {SHOP: OffsetTally(rows)}, {}, (), {SHOP: offset_bitmap(0, 30)})


def test_records_dropped_by_the_transform_in_several_ranges_are_not_reported_as_lost() -> None:
    """A journal has a range for each gap that it fills, often many of one partition."""
    ranges = [RangeProgress("shop", 0, n, n + 10, 4, 0, None, dropped=6) for n in (0, 10, 20)]
    rows = [n + i for n in (0, 10, 20) for i in range(4)]
    assert find_problems(staged(*ranges, rows=rows)) == []
    (problem,) = find_problems(staged(*ranges, rows=[*rows[:-1], 35]))
    assert "19 records of the source are not on the branch" in problem
    assert "(according to its journals, the transform dropped 18)" in problem
