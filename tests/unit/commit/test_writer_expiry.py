"""A writer's own commits expire old snapshots, except those still needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import BadRequestError, ForbiddenError
from pyiceberg.table.update import (
    RemoveSnapshotsUpdate,
    SetPartitionStatisticsUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
)

from frazil.commit import manifest_lists, writer_expiry
from frazil.commit.expiry import Pins
from frazil.commit.history import ancestors
from frazil.commit.journal import bare_path
from frazil.commit.writer_expiry import WriterExpiry
from frazil.errors import AccessDenied
from frazil.spec.maintenance import Expiry
from frazil.table.faster_commits import BoundedCache

SETTINGS = Expiry(keep=timedelta(hours=6), at_least=2, at_most=8)
MAX_SNAPSHOTS = 11


class Writer:
    """Commits a record a batch. Its thread's work runs at once, or when `work` is called."""

    def __init__(
        self, world: Any, read_pins: Callable[[], Pins] = Pins, *, waits: bool = False, delay_ms: int = 0
    ) -> None:
        self.world, self.committer = world, world.begin()
        self.work: Callable[[], None] = lambda: None
        start = self._wait if waits else lambda work: work()
        self.expiry = WriterExpiry(SETTINGS, read_pins, lambda: world.clock_ms, start, delay_ms)
        world.tables.main.expiry = self.expiry
        self.records = 0

    def _wait(self, work: Callable[[], None]) -> None:
        self.work = work

    def commit(self, batches: int = 1, *, ends: bool = True) -> None:
        for _ in range(batches):
            self.world.clock_ms += 1_000
            self.world.run(self.committer, {0: (self.records, self.records + 1)})
            self.records += 1
            if ends:
                self.expiry.continue_after(self.world.tables.main.current())

    def is_whole(self) -> bool:
        return bool(self.world.rows() == [(0, number) for number in range(self.records)])


def ids(world: Any) -> list[int]:
    return [snapshot.snapshot_id for snapshot in world.load().metadata.snapshots]


def versions(world: Any) -> set[str]:
    return {path.name for path in Path(bare_path(world.load().metadata_location)).parent.glob("*.metadata.json")}


def test_snapshots_and_files_of_metadata_stay_few_however_often_a_writer_commits(world: Any):
    world.load().transaction().set_properties(
        {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "5"}
    ).commit_transaction()
    writer = Writer(world)
    for _ in range(60):
        writer.commit()
        assert len(ids(world)) <= MAX_SNAPSHOTS
    writer.expiry.end()
    assert writer.is_whole()
    assert world.manifests() == world.used_manifests()
    log = world.load().metadata.metadata_log
    assert versions(world) <= {entry.metadata_file.rsplit("/", 1)[-1] for entry in log} | {
        world.load().metadata_location.rsplit("/", 1)[-1]
    }
    assert len(world.parquet_files()) == 60


@pytest.mark.filterwarnings("ignore:Failed to delete old metadata")
def test_a_writer_continues_if_another_engine_has_set_an_invalid_flag_for_old_files_of_metadata(world: Any):
    world.load().transaction().set_properties(
        {"write.metadata.delete-after-commit.enabled": "maybe"}
    ).commit_transaction()
    writer = Writer(world)
    writer.commit(3)
    assert writer.is_whole()


def test_snapshots_stay_few_if_a_thread_chooses_those_that_expire(world: Any):
    writer = Writer(world)
    writer.expiry.start = writer_expiry.start_thread
    for _ in range(20):
        writer.commit()
        if writer.expiry._running:
            writer.expiry._running.join()
        assert len(ids(world)) <= MAX_SNAPSHOTS


def test_a_table_with_many_old_snapshots_expires_them_by_several_commits(world: Any):
    writer = Writer(world)
    world.tables.main.expiry = None
    writer.commit(40, ends=False)
    world.tables.main.expiry = writer.expiry
    before = len(ids(world))
    for _ in range(12):
        writer.commit()
        assert before - len(ids(world)) <= SETTINGS.at_most
        before = len(ids(world))
    assert before <= MAX_SNAPSHOTS
    assert writer.is_whole()


def test_tags_and_branches_and_all_after_a_readers_tag_stay_readable(world: Any):
    writer = Writer(world)
    writer.commit(3)
    tagged = world.load().metadata.current_snapshot_id
    world.load().manage_snapshots().create_tag(tagged, "audit").commit()
    world.load().manage_snapshots().create_branch(ids(world)[1], "theirs").commit()
    writer.commit(40)
    read = world.load().metadata.current_snapshot_id
    world.load().manage_snapshots().create_tag(read, "frazil-reader-sums").commit()
    writer.commit(40)
    line = [snapshot.snapshot_id for snapshot in ancestors(world.load().metadata)]
    assert line.index(read) == 40, "all snapshots after the reader's are kept"
    assert len(world.rows(snapshot_id=tagged)) == 3
    assert len(world.rows(snapshot_id=world.load().metadata.refs["theirs"].snapshot_id)) == 1
    assert writer.is_whole()


@pytest.mark.parametrize("tag", ["late", "main-before-the-migration"])
def test_a_tag_created_after_expiry_planning_keeps_its_snapshot(world: Any, tag: str):
    writer = Writer(world, waits=True)
    writer.commit(10)
    oldest = ids(world)[0]
    writer.work()  # plans to expire the oldest
    world.load().manage_snapshots().create_tag(oldest, tag).commit()
    writer.commit()
    assert oldest in ids(world)
    writer.work()
    writer.commit(2)
    assert oldest in ids(world)
    assert len(ids(world)) < 12, "the others expire by the next plan"


def test_a_reader_tag_moved_forward_after_expiry_planning_lets_snapshots_expire(world: Any):
    writer = Writer(world)
    for _ in range(40):
        writer.commit()
        head = world.load().metadata.current_snapshot_id
        tag = SetSnapshotRefUpdate(ref_name="frazil-reader-sums", type="tag", snapshot_id=head)
        world.catalog.inner.commit_table(world.load(), (), (tag,))
    assert len(ids(world)) <= MAX_SNAPSHOTS


def test_a_reader_tag_moved_back_after_expiry_planning_keeps_its_snapshot(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(10)
    oldest = ids(world)[0]
    for snapshot_id in (world.load().metadata.current_snapshot_id, oldest):
        tag = SetSnapshotRefUpdate(ref_name="frazil-reader-sums", type="tag", snapshot_id=snapshot_id)
        world.catalog.inner.commit_table(world.load(), (), (tag,))
        writer.commit()
        writer.work()
    writer.commit()
    assert oldest in ids(world)


def test_a_reader_of_an_expired_snapshot_still_has_its_data_files(world: Any):
    writer = Writer(world)
    writer.commit(5)
    reading = [task.file.file_path for task in world.load().scan().plan_files()]
    writer.commit(30)
    assert all(Path(bare_path(path)).exists() for path in reading)


def test_metadata_files_stay_for_a_while_for_readers_of_an_earlier_snapshot(world: Any):
    writer = Writer(world, delay_ms=30_000)
    writer.commit(5)
    loaded = world.load()
    writer.commit(20)
    assert loaded.metadata.current_snapshot_id not in ids(world)
    assert len([*loaded.scan().plan_files()]) == 5
    writer.commit(40)
    with pytest.raises(FileNotFoundError):
        loaded.inspect.manifests()
    assert len(world.manifests() - world.used_manifests()) < 120
    loaded = world.load()
    writer.commit(20)
    writer.expiry.end()
    assert loaded.metadata.current_snapshot_id not in ids(world)
    assert len([*loaded.scan().plan_files()]) == 65, "an end of the writer shortens no delay"
    world.clock_ms += 30_000
    writer.expiry.end()
    assert world.manifests() == world.used_manifests()
    assert writer.is_whole()


def test_registering_the_newest_metadata_after_a_catalog_restore_loses_no_row(
    world: Any,
):
    def restore(metadata: str) -> None:
        world.catalog.inner.drop_table(world.table)
        world.catalog.inner.register_table(world.table, metadata)

    writer = Writer(world)
    writer.commit(5)
    backup = world.load().metadata_location
    writer.commit(40)
    newest = world.load().metadata_location
    restore(backup)
    with pytest.raises(FileNotFoundError):
        world.rows()

    restore(newest)
    world.tables = world.view()
    again = Writer(world)
    again.records = writer.records
    again.commit(20)
    assert again.is_whole()


def test_manifests_of_a_snapshot_expired_by_another_program_stay_while_readers_may_need_them(world: Any):
    writer = Writer(world, delay_ms=30_000)
    writer.commit(5)
    snapshot = world.load().current_snapshot()
    world.load().manage_snapshots().create_tag(snapshot.snapshot_id, "held").commit()
    writer.commit(50)
    world.load().manage_snapshots().remove_tag("held").commit()
    world.load().maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    writer.commit(20)
    theirs = {Path(path).name for path in manifest_lists.manifest_paths(snapshot, world.load().io)}
    assert not theirs & world.used_manifests(), "the writer expired the other snapshots that had them"
    assert theirs <= world.manifests()


def test_after_a_concurrent_commit_of_another_engine_the_next_attempt_expires_nothing(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(10)
    writer.work()
    before = ids(world)

    def their_commit() -> None:
        world.load().delete("kafka_offset == 0")

    world.catalog.next_meets(their_commit, world.table)
    writer.commit(ends=False)
    assert set(before) <= set(ids(world))
    writer.expiry.continue_after(world.tables.main.current())
    writer.work()
    writer.commit()
    assert len(ids(world)) < len(before)
    assert world.rows() == [(0, number) for number in range(1, writer.records)]


def test_a_commit_whose_answer_is_lost_expires_once_and_its_files_are_deleted(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(10)
    writer.work()
    world.catalog.next_answer_is_lost(world.table)
    writer.commit()
    writer.work()
    assert writer.is_whole()
    assert world.manifests() == world.used_manifests()


def test_a_planned_snapshot_that_another_writer_expires_first_does_not_stop_later_expiries(
    world: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    # A snapshot of another writer: this process does not know its manifests.
    monkeypatch.setattr(manifest_lists, "_paths", BoundedCache[tuple[str, ...]](0))
    writer = Writer(world, waits=True)
    writer.commit(10)
    writer.work()

    def their_expiry() -> None:
        world.expire_all_but_newest()
        world.foreign_append()

    world.catalog.next_meets(their_expiry, world.table)
    writer.commit()
    writer.work()
    assert "cannot expire" not in caplog.text
    assert world.manifests() == world.used_manifests()


@pytest.mark.parametrize("kind", [BadRequestError, ForbiddenError])
def test_a_catalog_that_refuses_expiry_gets_the_commits_without_it(world: Any, kind: type[Exception]):
    refused: list[int] = []

    def commit_table(table: Any, requirements: Any, updates: Any) -> Any:
        if any(isinstance(update, RemoveSnapshotsUpdate) for update in updates):
            refused.append(len(table.metadata.snapshots))
            raise kind("the principal may not remove snapshots")
        return commit(table, requirements, updates)

    writer = Writer(world)
    commit, world.catalog.inner.commit_table = world.catalog.inner.commit_table, commit_table
    writer.commit(40)
    assert len(ids(world)) == 41
    assert writer.is_whole()
    assert world.time.waits == []
    assert 0 < len(refused) <= 40 / SETTINGS.at_most, "it is rarely tried again"


def test_files_left_by_a_killed_writer_are_used_by_no_snapshot(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(10)
    writer.work()
    writer.commit()
    left = world.manifests() - world.used_manifests()
    assert left, "the writer was killed before it deleted the files"
    again = Writer(world)
    again.records = writer.records
    again.commit(30)
    assert world.manifests() - world.used_manifests() == left, "which the orphan cleanup deletes"
    assert again.is_whole()


def test_a_snapshot_that_removed_files_and_its_parent_are_not_expired(world: Any):
    writer = Writer(world)
    writer.commit(5)
    before = world.load().metadata.current_snapshot_id
    world.load().delete("kafka_offset == 2")
    removed = world.load().metadata.current_snapshot_id
    writer.commit(40)
    assert {before, removed} <= set(ids(world)), "maintenance finds the removed files only by these"
    assert len(ids(world)) <= MAX_SNAPSHOTS + 2
    assert len(world.rows(snapshot_id=before)) == 5
    assert world.rows() == [(0, number) for number in range(writer.records) if number != 2]


def test_time_travel_to_a_kept_time_reads_the_snapshot_of_that_time(world: Any):
    writer = Writer(world)
    writer.commit(5)
    world.load().delete("kafka_offset == 2")
    writer.commit(40)
    metadata = world.load().metadata
    oldest = [*ancestors(metadata)][-1]
    assert metadata.snapshot_log[0].snapshot_id == oldest.snapshot_id
    assert len(metadata.snapshot_log) == len([*ancestors(metadata)])


def test_statistics_expire_only_with_their_own_snapshots(world: Any):
    """See apache/iceberg-go#836."""
    writer = Writer(world)
    for name in ("early", "kept"):
        writer.commit(4)
        read = world.load().metadata.current_snapshot_id
        whole = {"snapshot-id": read, "statistics-path": f"file:///nowhere/{name}", "file-size-in-bytes": 9}
        puffin = {**whole, "file-footer-size-in-bytes": 1, "blob-metadata": []}
        updates = (
            SetPartitionStatisticsUpdate.model_validate({"partition-statistics": whole}),
            SetStatisticsUpdate.model_validate({"statistics": puffin}),
        )
        world.catalog.inner.commit_table(world.load(), (), updates)
    world.load().manage_snapshots().create_tag(read, "audit").commit()
    writer.commit(40)
    metadata = world.load().metadata
    assert [one.snapshot_id for one in metadata.statistics] == [read]
    assert [one.snapshot_id for one in metadata.partition_statistics] == [read]


def test_signals_that_cannot_be_read_expire_nothing_and_stop_no_commit(world: Any):
    def fail() -> Pins:
        raise ConnectionError("no answer")

    writer = Writer(world, fail)
    writer.commit(30)
    assert len(ids(world)) == 31
    assert writer.is_whole()


def test_snapshots_expire_although_no_file_may_be_deleted(world: Any, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> Any:
        raise AccessDenied("deletion is refused")

    monkeypatch.setattr(writer_expiry, "open_store", refuse)
    writer = Writer(world)
    writer.commit(60)
    assert len(ids(world)) <= MAX_SNAPSHOTS
    assert writer.is_whole()


def test_a_snapshot_referenced_by_a_signal_is_not_expired(world: Any):
    named: set[int] = set()
    writer = Writer(world, lambda: Pins(signalled_snapshots=frozenset(named)))
    writer.commit(4)
    named.add(world.load().metadata.current_snapshot_id)
    writer.commit(40)
    assert named <= set(ids(world))
    assert len(ids(world)) <= MAX_SNAPSHOTS + 1


def test_expiry_stops_if_files_may_be_shared_since_it_was_planned(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(10)
    writer.work()
    world.load().transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    writer.commit()
    assert len(ids(world)) == 12


@pytest.mark.parametrize("properties", [{"gc.enabled": "false"}])
def test_a_table_with_gc_disabled_keeps_all_snapshots(world: Any, properties: dict[str, str]):
    world.load().transaction().set_properties(properties).commit_transaction()
    writer = Writer(world)
    writer.commit(30)
    assert len(ids(world)) == 31
