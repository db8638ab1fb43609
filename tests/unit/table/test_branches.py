"""A snapshot's number of rows, from its summary."""

from __future__ import annotations

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from frazil.table.branches import count_live_rows


@pytest.mark.parametrize(
    ("totals", "rows"),
    [
        ({"total-records": "0"}, 0),
        ({"total-records": "10"}, 10),
        ({"total-records": "10", "total-position-deletes": "0"}, 10),
        ({"total-records": "10", "total-position-deletes": "4"}, 6),
        ({"total-records": "10", "total-position-deletes": "12"}, 0),  # some of them dangle
        ({"total-position-deletes": "4"}, None),
        ({}, None),
    ],
)
def test_rows_removed_by_position_deletes_are_not_counted(totals: dict[str, str], rows: int | None) -> None:
    summary = Summary(Operation.OVERWRITE, **totals)
    assert count_live_rows(Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="list", summary=summary)) == rows


def test_a_snapshot_without_a_summary_has_an_unknown_row_count() -> None:
    assert count_live_rows(Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="list")) is None
