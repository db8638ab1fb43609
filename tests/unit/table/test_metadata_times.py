"""Times in table metadata never decrease, even if a clock was ahead: otherwise no JVM engine can read the table."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    update_table_metadata,
)

from frazil.spec.model import StreamSpec
from frazil.table.metadata_times import next_ms, order_times
from frazil.table.tables import ensure_table
from tests.java_rules import check_times

AHEAD_MS = 3_600_000
COLUMNS = {"carrier": "string not null", "departed": "timestamptz not null", "delay": "int"}

CHANGES: dict[str, Callable[[Table, StreamSpec], object]] = {
    "a property": lambda table, _: table.transaction().set_properties({"a": "b"}).commit_transaction(),
    "a snapshot": lambda table, _: table.append(table.scan().to_arrow()),
    "a column": lambda table, wider: ensure_table(table.catalog, wider),
    "a tag": lambda table, _: table.manage_snapshots().create_tag(head(table), "kept").commit(),
    "a rollback": lambda table, _: table.manage_snapshots().set_current_snapshot(first(table)).commit(),
    "an expiry": lambda table, _: table.maintenance.expire_snapshots().by_id(first(table)).commit(),
}


def head(table: Table) -> int:
    return table.metadata.current_snapshot_id or 0


def first(table: Table) -> int:
    return table.metadata.snapshots[0].snapshot_id


def added(snapshot_id: int, number: int, at_ms: int) -> tuple[TableUpdate, ...]:
    """A snapshot of main, dated by a clock."""
    made = Snapshot(snapshot_id=snapshot_id, sequence_number=number, timestamp_ms=at_ms, manifest_list="none")
    moved = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id)
    return AddSnapshotUpdate(snapshot=made), moved


@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_a_commit_with_a_future_time_are_dated_after_it(
    catalog: Catalog,
    stream: Callable[..., StreamSpec],
    change: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = ensure_table(catalog, stream(schema=COLUMNS))
    table.append(table.scan().to_arrow())
    with monkeypatch.context() as ahead:
        now = time.time
        ahead.setattr(time, "time", lambda: now() + AHEAD_MS / 1000)
        table.append(table.scan().to_arrow())
    before = table.metadata.last_updated_ms
    assert before > time.time_ns() // 1_000_000 + AHEAD_MS / 2

    CHANGES[change](table, stream(schema=COLUMNS | {"new": "int"}))

    after = catalog.load_table(table.name()).metadata
    assert after.last_updated_ms > before
    check_times(after)
    assert "demo.flights was changed by a host whose clock is 3" in caplog.text


@given(
    st.lists(
        st.tuples(st.integers(-10_000_000, 10_000_000), st.sampled_from(["snapshot", "property", "expiry"])),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_metadata_times_never_go_back_whatever_the_clocks_and_a_broken_table_is_repaired(
    changes: list[tuple[int, str]], broken_before: bool
) -> None:
    metadata = new_table_metadata(Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "x", {})
    if broken_before:  # as PyIceberg leaves it
        metadata = update_table_metadata(metadata, added(1, 1, 5_000_000_000_000), metadata_location="0")
        metadata = update_table_metadata(metadata, (SetPropertiesUpdate(updates={"a": "b"}),), metadata_location="1")
        metadata = update_table_metadata(metadata, (SetPropertiesUpdate(updates={"a": "c"}),), metadata_location="2")
        with pytest.raises(AssertionError, match="Java refuses"):
            check_times(metadata)
    for number, (off_ms, kind) in enumerate(changes, 2):
        now_ms = metadata.last_updated_ms + off_ms
        updates: tuple[TableUpdate, ...] = (SetPropertiesUpdate(updates={"a": str(number)}),)
        if kind == "snapshot":
            updates = added(number, number, next_ms(metadata, now_ms))
        elif kind == "expiry" and metadata.snapshots:
            updates = (RemoveSnapshotsUpdate(snapshot_ids=[metadata.snapshots[0].snapshot_id]),)
        made = update_table_metadata(metadata, updates, metadata_location=str(number))
        after = order_times(metadata, made)
        assert after.last_updated_ms > newest(metadata)
        check_times(after)
        metadata = after


def newest(metadata: TableMetadata) -> int:
    return max([metadata.last_updated_ms, *(s.timestamp_ms for s in metadata.snapshots)])


def test_an_update_that_changes_nothing_returns_the_same_metadata() -> None:
    metadata = new_table_metadata(Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "x", {})
    assert order_times(metadata, metadata) is metadata
