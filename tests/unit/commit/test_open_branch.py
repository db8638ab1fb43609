"""`commit.align: watermark`: a reader of main sees each window whole or not at all; no row is lost or repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetPropertiesUpdate
from pyiceberg.transforms import DayTransform

from frazil.audit.stream_audit import audit_stream
from frazil.commit.marker_changes import forget
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.sweep import sweep
from frazil.errors import Fenced, RolledBack, SchemaIncompatible
from frazil.offsets.spans import SourceIdentity
from frazil.partitions.completeness import Alignment
from frazil.partitions.windows import Grain
from tests.unit.commit.aligned import (
    BRANCH,
    FAR,
    P0,
    P1,
    TOPIC,
    Aligned,
    aligned_in,
    expire,
)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Aligned]:
    made = aligned_in(tmp_path)
    yield made
    made.world.catalog.inner.engine.dispose()


def test_rows_of_an_open_window_wait_and_come_as_new_files_of_main(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    assert (stream.main(), len(stream.waiting())) == ([], 4)
    stream.run([95], [100])
    assert stream.main() == [(0, 0), (1, 0)]
    stream.check()

    head = stream.world.load().current_snapshot()
    added = [
        (entry.status, entry.snapshot_id, entry.sequence_number)
        for manifest in head.manifests(stream.world.load().io)
        for entry in manifest.fetch_manifest_entry(stream.world.load().io)
    ]
    assert added == [(ManifestEntryStatus.ADDED, head.snapshot_id, head.sequence_number)] * 1
    assert (head.summary["added-records"], head.summary["total-records"]) == ("2", "2")
    branch = stream.world.load().snapshot_by_id(stream.head())
    assert (branch.summary["deleted-records"], branch.summary["total-records"]) == ("2", "4")


def test_no_manifest_entry_marks_a_file_of_main_as_deleted(stream: Aligned) -> None:
    for minute in range(0, 400, 45):
        stream.run([minute], [minute])
    table = stream.world.load()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            assert manifest.deleted_files_count == 0
    assert stream.main()


def test_an_empty_commit_completes_windows_and_later_rows_of_them_go_to_main_at_once(stream: Aligned) -> None:
    stream.run([10, 200], [20])
    assert stream.main() == []
    stream.run(idle=frozenset({P1}))
    assert stream.main() == [(0, 0), (1, 0)]
    stream.run([15], [])
    assert stream.main() == [(0, 0), (0, 2), (1, 0)]
    stream.check()


def test_rows_without_event_time_or_with_an_absurd_one_do_not_wait_on_the_branch(stream: Aligned) -> None:
    stream.run([10, None], [FAR, 15 + 24 * 60])
    assert stream.main() == [(0, 1), (1, 0)]
    assert stream.waiting() == [(0, 0), (1, 1)]


def test_all_rows_wait_while_no_plausible_event_time_is_known(stream: Aligned) -> None:
    stream.run([FAR], [FAR])
    assert stream.waiting() == [(0, 0), (1, 0)]
    stream.run([10], [])
    assert stream.waiting() == [(0, 1)]


def test_a_table_that_is_partitioned_more_coarsely_is_refused_before_anything_is_read(stream: Aligned) -> None:
    with stream.world.load().update_spec() as change:
        change.remove_field("ts_hour")
        change.add_field("ts", DayTransform(), "ts_day")
    with pytest.raises(SchemaIncompatible, match=r"evolve its partitioning to hour\(ts\)"):
        stream.begin()
    stream.align(Alignment("ts", Grain.DAY))
    stream.begin()
    stream.run([10], [24 * 60 + 10])
    assert stream.waiting() == [(0, 0), (1, 0)]


def test_after_alignment_is_switched_off_the_next_commit_publishes_all_and_removes_the_branch(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    stream.align(None)
    stream.begin()
    assert len(stream.waiting()) == 4
    stream.run([200], [])
    assert len(stream.main()) == 5
    assert stream.head() is None
    assert "open" not in stream.world.marker().to_property()
    assert stream.world.left_behind() == []
    stream.check_storage()


def test_a_stream_without_aligned_commits_has_no_branch_and_no_open_snapshot(stream: Aligned) -> None:
    stream.align(None)
    stream.begin()
    stream.run([10], [20])
    assert stream.main() == [(0, 0), (1, 0)]
    assert list(stream.world.load().metadata.refs) == ["main"]
    assert "open" not in stream.world.marker().to_property()


def test_the_open_branch_outlives_every_expiry_of_references(stream: Aligned) -> None:
    stream.run([10], [20])
    stream.run([11], [21])
    assert stream.world.load().metadata.refs[BRANCH].max_ref_age_ms == 2**63 - 1


# Resets


def drop_branch(stream: Aligned) -> None:
    table = stream.world.load()
    stream.world.catalog.inner.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name=BRANCH),))


def test_a_branch_that_was_dropped_is_refused_and_put_back_by_a_reset(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    drop_branch(stream)
    journal = stream.stage([[300], [300]])
    with pytest.raises(RolledBack, match="frazil reset events --to marker"):
        stream.committer.commit(journal)
    with pytest.raises(RolledBack):
        stream.begin()
    stream.reset(dict(stream.world.marker().offsets))
    stream.check()
    stream.run()
    assert len(stream.main()) == 4
    stream.check()


def test_a_branch_lost_with_its_snapshots_is_discarded_only_by_a_reset_to_the_marker(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    drop_branch(stream)
    expire(stream)
    with pytest.raises(RolledBack, match="has expired"):
        stream.reset({P0: 0, P1: 0})
    stream.reset(dict(stream.world.marker().offsets))
    assert (stream.waiting(), stream.world.marker().open_snapshot_id) == ([], None)
    stream.reset({P0: 0, P1: 0})
    stream.run()
    stream.check()


@pytest.mark.parametrize("target", [{P0: 0, P1: 0}, {P0: 1, P1: 1}, {P0: 2, P1: 2}])
def test_rows_read_again_after_a_reset_leave_the_branch_and_others_stay(stream: Aligned, target: Any) -> None:
    stream.run([10], [20])
    stream.run([30], [40])
    stream.reset(target)
    assert stream.world.left_behind() == []
    assert stream.waiting() == sorted((p, o) for (_, p), end in target.items() for o in range(end))
    stream.run()
    stream.check()
    stream.run([200], [200])
    stream.check()
    stream.check_storage()
    assert audit_stream(stream.world.tables).clean


@pytest.mark.parametrize("owned", [True, False])
def test_files_of_rows_that_are_read_again_are_deleted_only_if_no_other_table_may_share_them(
    stream: Aligned, *, owned: bool
) -> None:
    stream.run([10], [20])
    gc = SetPropertiesUpdate(updates={"gc.enabled": str(owned).lower()})
    stream.world.catalog.inner.commit_table(stream.world.load(), (), (gc,))
    files = stream.world.parquet_files()
    stream.reset({P0: 0, P1: 0})
    assert stream.world.parquet_files() == (set() if owned else files)


def test_a_batch_that_spans_a_new_position_is_not_split(stream: Aligned) -> None:
    stream.run([10, 11], [20, 21])
    stream.reset({P0: 1, P1: 2})
    assert stream.waiting() == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_waiting_rows_of_a_recreated_topic_are_not_read_again_and_stay(stream: Aligned) -> None:
    stream.run([10], [20])
    stream.world.source = SourceIdentity("cluster-1", {TOPIC: "topic-2"})
    stream.reset({P0: 0, P1: 0})
    assert stream.waiting() == [(0, 0), (1, 0)]


def test_a_writer_that_was_replaced_moves_neither_branch(stream: Aligned) -> None:
    stream.run([10], [20])
    old, journal = stream.committer, stream.stage([[200], [200]])
    stream.begin()
    heads = (stream.head("main"), stream.head())
    with pytest.raises(Fenced):
        old.commit(journal)
    assert (stream.head("main"), stream.head()) == heads


def test_after_a_rollback_of_main_the_branch_is_rolled_back_with_it(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    stream.run([95], [100])
    assert stream.main() == [(0, 0), (1, 0)]
    stream.world.roll_back(1)
    with pytest.raises(RolledBack):
        stream.begin()
    seen = read_state_before_reset(stream.world.tables)
    assert seen.held == {P0: 2, P1: 2}
    stream.reset(dict(seen.held))
    assert sorted(stream.main() + stream.waiting()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    stream.run()
    stream.check()
    stream.check_storage()
    assert audit_stream(stream.world.tables).clean


def test_a_rollback_of_main_that_is_accepted_takes_no_row_from_the_branch(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    stream.run([95], [100])
    waiting = stream.waiting()
    stream.world.roll_back(1)
    stream.reset(dict(stream.world.marker().offsets))
    assert (stream.main(), stream.waiting()) == ([], waiting)
    stream.run([200], [200])
    assert stream.main() == [row for row in waiting if row[1] < 3]


def test_a_stream_that_is_forgotten_leaves_all_its_rows_in_main(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    forget(stream.world.tables, state=str(stream.world.root / "nothing"))
    assert (len(stream.main()), stream.head()) == (4, None)
    assert stream.world.left_behind() == []
    stream.check_storage()


def test_the_sweep_keeps_files_of_the_open_branch(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    for journal in list(stream.world.tables.journals.keys()):
        stream.world.lose_journal(journal)
    stream.begin()
    sweep(stream.world.tables, below_epoch=stream.committer.epoch)
    assert len(stream.waiting()) == 4


def test_the_audit_counts_rows_waiting_on_the_branch_with_and_without_coordinates(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    for coordinates in (True, False):
        assert audit_stream(stream.world.tables, coordinates=coordinates).clean
    drop_branch(stream)
    for coordinates in (True, False):
        assert not audit_stream(stream.world.tables, coordinates=coordinates).clean
