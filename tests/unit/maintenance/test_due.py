"""When a run of the PySpark app is worth its JVM, decided without opening a manifest."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from frazil.maintenance.due import DEFAULT_MANIFEST_BYTES, Action, find_due_actions
from frazil.maintenance.health import ManifestGroup, TableHealth
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import find_maintained
from frazil.spec.maintenance import Compaction, Expiry, Maintenance, Manifests
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import land

HOUR_MS = 3_600_000
NOON_MS = 1_000 * 24 * HOUR_MS + 12 * HOUR_MS
MIB = 2**20
SETTINGS = Maintenance(
    compaction=Compaction(min_files=5),
    manifests=Manifests(max_count=10),
    expiry=Expiry(keep=timedelta(hours=6), at_least=20),
)
LARGE = TableHealth(
    table="demo.flights", at_ms=NOON_MS, snapshot_id=1, target_file_bytes=512 * MIB, data_files=10_000,
    data_bytes=10_000 * 500 * MIB, rows=1, delete_files=0, manifests=3, manifests_bytes=3, manifest_list_bytes=1,
    metadata_bytes=1, snapshots=20, oldest_snapshot_at_ms=NOON_MS, last_compaction_at_ms=None,
    files_since_compaction=0, bytes_since_compaction=0, recent=None, streams=(), main_snapshots=20,
    main_oldest_at_ms=NOON_MS,
)  # fmt: skip


def is_due(action: Action, **changes: Any) -> bool:
    return find_due_actions(dataclasses.replace(LARGE, **changes), SETTINGS, full_check_at=timedelta(0))[action].due


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({}, False),
        ({"files_since_compaction": 3_000, "bytes_since_compaction": 3_000 * MIB}, True),
        ({"files_since_compaction": 3_000, "bytes_since_compaction": 3_000 * 500 * MIB}, False),
        ({"files_since_compaction": 4, "bytes_since_compaction": 4 * MIB}, False),
        ({"data_bytes": 10_000 * MIB, "last_compaction_at_ms": 0}, False),
        ({"delete_files": 1}, False),
        ({"delete_files": 1_000}, True),
        ({"delete_files": 9_000, "merged": True, "rows": 95, "deleted_rows": 5}, False),
        ({"delete_files": 9_000, "merged": True, "rows": 90, "deleted_rows": 10}, True),
        ({"delete_files": 10_001, "merged": True, "rows": 99, "deleted_rows": 1}, True),
        ({"delete_files": 9_000, "merged": True, "rows": 99, "deleted_rows": 1, "data_bytes": 500_000 * MIB}, True),
        (
            {"delete_files": 9_000, "merged": True, "rows": 99, "deleted_rows": 1, "data_bytes": 10_000 * 52 * MIB},
            False,
        ),
    ],
    ids=[
        *("large", "small since", "large since", "few since", "compacted", "a delete", "many deletes"),
        *("few rows deleted by merges", "many rows deleted by merges", "delete files of files that are gone"),
        *("many for small files", "few for small files"),
    ],
)
def test_whether_compaction_is_due_depends_on_changes_since_the_last_compaction(
    changes: dict[str, Any], worth: bool
) -> None:
    assert is_due(Action.COMPACTION, **changes) is worth


@pytest.mark.parametrize("changes", [{}, {"delete_files": 1}])
def test_changes_that_the_check_cannot_see_are_due_in_one_run_a_day(changes: dict[str, Any]) -> None:
    hours = [is_due(Action.COMPACTION, at_ms=NOON_MS + hour * HOUR_MS, **changes) for hour in range(48)]
    assert sum(hours) == 2
    assert not is_due(Action.COMPACTION, at_ms=NOON_MS + 12 * HOUR_MS, data_files=4)


def test_snapshots_held_outside_mains_history_are_counted_separately(made: MadeStream) -> None:
    land(made, 3)
    table = made.tables.main.refresh()
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[-2].snapshot_id).commit()
    found = measure(load_catalog(None), find_maintained([made.spec], "demo.made"), now_ms=made.now_ms)
    assert found
    assert (found.snapshots, found.main_snapshots, found.main_oldest_at_ms) == (3, 1, made.now_ms)


@pytest.mark.parametrize(
    ("groups", "due"),
    [
        ([(0, False, 60, 60 * DEFAULT_MANIFEST_BYTES)], False),
        ([(0, False, 60, 60 * DEFAULT_MANIFEST_BYTES), (1, False, 40, 40)], True),
        ([(0, False, 9, 9)], False),
        ([(spec, deletes, 1, 1) for spec in range(9) for deletes in (False, True)], False),
    ],
    ids=["full", "a full spec and a tiny one", "few", "none to merge with"],
)
def test_manifests_are_due_where_some_can_be_merged_with_each_other(groups: list[Any], due: bool) -> None:
    assert is_due(Action.MANIFESTS, manifest_groups=tuple(ManifestGroup(*of) for of in groups)) is due


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({"snapshots": 22, "oldest_snapshot_at_ms": 0}, False),
        ({"snapshots": 21, "main_snapshots": 21}, False),
        ({"snapshots": 21, "main_snapshots": 21, "main_oldest_at_ms": NOON_MS - 6 * HOUR_MS}, True),
        ({"snapshots": 501}, True),
        ({"snapshots": 0, "main_snapshots": 0, "main_oldest_at_ms": None}, False),
    ],
    ids=["an idle marker", "all young", "old ones", "too many", "empty"],
)
def test_whether_expiry_is_due_depends_on_the_age_of_snapshots_of_main(changes: dict[str, Any], worth: bool) -> None:
    assert is_due(Action.EXPIRY, **changes) is worth


def test_the_daily_full_check_is_due_only_for_callers_that_pass_its_time() -> None:
    midnight = dataclasses.replace(LARGE, at_ms=NOON_MS + 12 * HOUR_MS)
    assert find_due_actions(midnight, SETTINGS, full_check_at=timedelta(0))[Action.COMPACTION].due
    assert not find_due_actions(midnight, SETTINGS)[Action.COMPACTION].due
