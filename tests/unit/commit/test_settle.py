"""A new epoch commits what an earlier epoch has journaled, discards the rest, and leaves no orphaned file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import StringType

from frazil.commit.backfill_records import BackfillMarker, BackfillState, staging_stream
from frazil.commit.committer import Committer
from frazil.commit.compare_and_swap import TableHandle
from frazil.commit.journal import VOID, bare_path
from frazil.commit.marker import NO_TRANSACTION, BatchKey, BatchOutcome, LastTransaction
from frazil.commit.marker_changes import change_marker, forget, reset
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.settle import highest_epoch
from frazil.commit.sweep import (
    MAX_SWEPT_EPOCHS,
    _is_commit_of,
    batch_folder,
    delete_fenced_batch,
    sweep,
    sweep_batch,
)
from frazil.errors import CommitUnavailable, Fenced, StaleBatch, TableLost
from frazil.offsets.spans import SourceIdentity
from frazil.table.storage import LocalStore
from frazil.table.tables import state_location
from tests.unit.commit.conftest import World


def journaled(world, committer, ranges, **more):
    """A batch whose writer dies right after the journal."""
    journal = world.stage(committer, ranges, **more)
    assert world.tables.journals.put(journal)
    return journal


def write_marker(world, marker):
    """Write the marker as a reset does."""
    change_marker(world.tables, world.tables.main, lambda _: marker, operation="reset")


def test_the_last_journal_is_committed_again_without_writing_one_parquet_file(world):
    first = world.begin()
    world.run(first, {0: (0, 2)})
    journal = journaled(world, first, {0: (2, 5)}, rejected={0: [3]})
    staged = world.all_parquet_files()

    second = world.take_over()
    settled = world.settle(second)

    assert settled.committed == (journal,)
    assert world.all_parquet_files() == staged
    assert world.rows() == [(0, 0), (0, 1), (0, 2), (0, 4)]
    assert world.dead_letters() == [(0, 3)]
    assert (world.marker().key, world.marker().settled) == (BatchKey(2, 1), journal.key)
    assert world.run(second, {0: (5, 6)}).offsets["events", 0] == 6


def test_a_journal_that_landed_before_the_crash_is_not_committed_again(world):
    first = world.begin()
    first.commit(journaled(world, first, {0: (0, 3)}))

    settled = world.settle(world.take_over())

    assert (settled.committed, settled.discarded, settled.deleted_files) == ((), (), 0)
    assert len(world.rows()) == 3


def test_a_crash_between_the_commits_to_the_two_tables_commits_only_the_main_table(world):
    first = world.begin()
    journal = journaled(world, first, {0: (0, 4)}, rejected={0: [1]})
    world.commit_dead_letters(first, journal)
    second = world.take_over()
    tried = len(world.catalog.attempts)

    world.settle(second)

    assert world.catalog.attempts[tried:] == ["demo.events"]
    assert (world.rows(), world.dead_letters()) == ([(0, 0), (0, 2), (0, 3)], [(0, 1)])


def test_a_stale_journal_is_discarded_with_its_files(world):
    first = world.begin()
    journal = journaled(world, first, {0: (7, 9)}, rejected={0: [8]})

    settled = world.settle(world.take_over())

    assert settled.discarded == (journal.key,)
    assert settled.deleted_files == 2
    assert world.all_parquet_files() == set()
    assert (world.rows(), world.dead_letters()) == ([], [])


def test_dead_letter_files_of_a_discarded_journal_are_kept_when_they_landed(world):
    first = world.begin()
    journal = journaled(world, first, {0: (0, 4)}, rejected={0: [1]})
    world.commit_dead_letters(first, journal)
    with world.load().update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", StringType(), required=True)

    settled = world.settle(world.take_over())

    assert settled.discarded == (journal.key,)
    assert world.dead_letters() == [(0, 1)]
    assert world.parquet_files() == set()
    assert len(world.parquet_files(world.load_dead_letters())) == 1


def test_a_journal_of_a_topic_that_a_reset_abandoned_is_discarded(world):
    """Its offsets belong to the topic of before; it must not stop the writer either."""
    first = world.begin()
    journal = journaled(world, first, {0: (0, 2)})
    world.source = SourceIdentity("cluster-1", {"events": "topic-2"})
    write_marker(world, dataclasses.replace(world.marker().with_epoch(2), source=world.source))

    settled = world.settle(world.take_over())

    assert settled.discarded == (journal.key,)
    assert world.all_parquet_files() == set()


def test_a_journal_that_a_reset_jumped_over_is_discarded(world):
    """All its ends are below the marker, but its records were never committed: the reset skipped them."""
    first = world.begin()
    journal = journaled(world, first, {0: (0, 3)}, rejected={0: [1]})
    moved = dataclasses.replace(world.marker().with_epoch(2), offsets={("events", 0): 50, ("events", 1): 0})
    write_marker(world, moved)

    settled = world.settle(world.take_over())

    assert settled.discarded == (journal.key,)
    assert (world.rows(), world.dead_letters(), world.all_parquet_files()) == ([], [], set())


def test_a_journal_does_not_change_partitions_that_a_reset_moved(world):
    """The journal's facts about a partition refer to its old position: the former leader may end before the new one."""
    there, moved = ("events", 0), ("events", 1)
    first = world.begin()
    staged = world.stage(first, {0: (0, 2)})
    journal = dataclasses.replace(
        staged, idle=frozenset({moved}), leader_epochs={there: 3, moved: 3}, transaction=LastTransaction("571", "24")
    )
    assert world.tables.journals.put(journal)
    write_marker(world, dataclasses.replace(world.marker().with_epoch(2), offsets={there: 0, moved: 50}))

    assert world.settle(world.take_over()).committed == (journal,)

    marker = world.marker()
    assert marker.offsets == {there: 2, moved: 50}
    assert (marker.leader_epochs, marker.idle, marker.transaction) == ({there: 3}, frozenset(), NO_TRANSACTION)


def test_the_marker_has_the_last_transaction_of_the_journal(world):
    first = world.begin()
    journal = dataclasses.replace(world.stage(first, {0: (0, 2)}), transaction=LastTransaction("571", "24"))
    assert world.tables.journals.put(journal)
    assert first.commit(journal).transaction == world.marker().transaction == LastTransaction("571", "24")


def test_a_journal_whose_files_are_gone_is_discarded(world):
    first = world.begin()
    journal = journaled(world, first, {0: (0, 3)})
    Path(bare_path(journal.files[0].path)).unlink()

    settled = world.settle(world.take_over())

    assert settled.discarded == (journal.key,)
    assert world.rows() == []


@pytest.mark.parametrize("kind", ["torn", "another stream's", "another table's", "of another batch", "newer"])
def test_an_object_that_is_not_this_batch_s_journal_is_ignored(world, kind):
    first = world.begin()
    journal = world.stage(first, {0: (0, 3)})
    data = {
        "torn": journal.to_bytes()[:-40],
        "another stream's": dataclasses.replace(journal, stream="other").to_bytes(),
        "another table's": dataclasses.replace(journal, table_uuid="0").to_bytes(),
        "of another batch": dataclasses.replace(journal, key=BatchKey(1, 9)).to_bytes(),
        "newer": journal.to_bytes().replace(b'"format":1', b'"format":2'),
    }[kind]
    world.store.put(world.tables.journals.path(journal.key), data)

    settled = world.settle(world.take_over())

    assert (settled.committed, settled.discarded) == ((), ())
    assert world.rows() == []
    theirs = {bare_path(file.path) for file in journal.files} if kind == "another table's" else set()
    assert world.all_parquet_files() == theirs
    assert world.store.get(world.tables.journals.path(journal.key)) == data


def test_a_foreign_object_in_place_of_a_commit_record_loses_no_committed_file(world):
    first = world.begin()
    journal = world.stage(first, {0: (0, 3)})
    assert world.tables.journals.put(journal)
    first.commit(journal)
    foreign = dataclasses.replace(journal, stream="other", files=()).to_bytes()
    world.store.put(world.tables.journals.path(journal.key), foreign)

    world.begin()

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]


def test_a_journal_deleted_before_it_is_settled_loses_nothing_and_leaves_no_file(world):
    first = world.begin()
    world.run(first, {0: (0, 2)})
    journal = journaled(world, first, {0: (2, 4)})
    world.lose_journal(journal.key)

    second = world.begin()
    assert world.marker().offsets["events", 0] == 2
    world.run(second, {0: (2, 4)})

    assert world.rows() == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert len(world.all_parquet_files()) == 2


def test_a_sweep_deletes_abandoned_attempts_and_never_a_committed_file(world):
    first = world.begin()
    world.run(first, {0: (0, 2)}, rejected={0: [1]})
    committed = world.all_parquet_files()
    abandoned = world.write(BatchKey(1, 1), [(0, 0)]) + world.write(BatchKey(1, 2), [(0, 2), (0, 3)])

    settled = world.settle(world.take_over())

    assert settled.deleted_files == len(abandoned)
    assert world.all_parquet_files() == committed


@pytest.mark.parametrize("batch", [2, 3])
def test_a_start_sweeps_the_last_two_batches_that_a_killed_writer_had_no_time_to_sweep_again(world, batch):
    first = world.begin()
    for offset in range(2):
        world.run(first, {0: (offset, offset + 1)})
    journaled(world, first, {0: (2, 3)})  # the next start commits it
    committed = world.all_parquet_files()
    stray = world.write(BatchKey(1, batch), [(0, 0)])

    assert world.settle(world.take_over()).deleted_files == len(stray)
    assert world.all_parquet_files() == committed


def test_a_sweep_spares_committed_files_whose_commit_record_is_gone(world):
    first = world.begin()
    world.run(first, {0: (0, 2)}, rejected={0: [1]})
    committed = world.all_parquet_files()
    world.write(BatchKey(1, 1), [(0, 0)])
    world.lose_journal(BatchKey(1, 1))

    world.begin()

    assert world.all_parquet_files() == committed
    assert (world.rows(), world.dead_letters()) == ([(0, 0)], [(0, 1)])


def test_a_sweep_leaves_folders_older_than_the_oldest_commit_record_alone(world):
    first = world.begin()
    for offset in range(3):
        world.run(first, {0: (offset, offset + 1)})
    world.lose_journal(BatchKey(1, 1))
    world.lose_journal(BatchKey(1, 2))
    left = world.write(BatchKey(1, 1), [(0, 0)])

    world.begin()

    assert {bare_path(f.path) for f in left} <= world.parquet_files()


def test_a_start_after_many_starts_lists_only_the_newest_epochs_folders(world, monkeypatch):
    for epoch in range(MAX_SWEPT_EPOCHS + 2):
        world.run(world.begin(), {0: (epoch, epoch + 1)})
    listed = []
    list_folders = LocalStore.list_folders

    def record(store, folder):
        listed.append(folder)
        return list_folders(store, folder)

    monkeypatch.setattr(LocalStore, "list_folders", record)
    world.begin()
    epochs = {int(name) for folder in listed if (name := folder.rsplit("/", 1)[-1]).isdigit()}
    assert epochs == set(range(3, MAX_SWEPT_EPOCHS + 3))


def test_files_left_by_failed_attempts_of_a_committed_batch_are_deleted(world):
    first = world.begin()
    journal = journaled(world, first, {0: (0, 2)}, rejected={0: [1]})
    first.commit(journal)
    kept = world.all_parquet_files()
    world.write(journal.key, [(0, 0)])
    world.write_dead_letters(journal.key, [(0, 1)])

    assert sweep_batch(world.tables, journal) == 2
    assert world.all_parquet_files() == kept


def test_a_paused_writer_cannot_journal_a_batch_whose_files_were_swept(world):
    """Else a later epoch would commit that journal: a table that references deleted files."""
    paused = world.begin()
    world.run(paused, {0: (0, 1)})
    journal = world.stage(paused, {0: (1, 3)})
    world.begin()

    assert world.store.get(world.tables.journals.path(journal.key)) == VOID
    with pytest.raises(FileNotFoundError):
        world.tables.journals.put(journal)
    bare = dataclasses.replace(journal, files=())  # an object store does not look whether the files are there
    assert not world.tables.journals.put(bare)

    third = world.begin()
    world.run(third, {0: (1, 3)})
    assert world.rows() == [(0, 0), (0, 1), (0, 2)]


def test_a_journal_that_a_paused_writer_writes_late_is_removed_with_its_files(world):
    paused = world.begin()
    second = world.begin()
    world.run(second, {0: (0, 2)})
    journal = dataclasses.replace(world.stage(paused, {0: (0, 2)}), key=BatchKey(1, 1))
    journal = dataclasses.replace(journal, files=world.write(journal.key, [(0, 0), (0, 1)]))
    assert world.tables.journals.put(journal)
    with pytest.raises(Fenced):
        paused.commit(journal)

    world.begin()

    assert world.rows() == [(0, 0), (0, 1)]
    assert world.tables.journals.get(journal.key) is None
    assert not world.store.list_files(batch_folder(world.load(), "events", journal.key))


@pytest.mark.parametrize("closed", ["not yet", "by its successor's start", "by a batch after it"])
def test_a_fenced_writer_deletes_files_that_nobody_will_commit(world, closed):
    paused = world.begin()
    world.run(paused, {0: (0, 2)})
    journal = world.stage(paused, {0: (2, 5)}, rejected={0: [3]})
    own = world.view()
    successor = world.begin() if closed == "by its successor's start" else world.take_over()
    # The sweep of that start took them, and the paused writer goes on staging.
    files = world.write(journal.key, [(0, 2), (0, 4)]) + world.write_dead_letters(journal.key, [(0, 3)])
    journal = dataclasses.replace(journal, files=files)
    if closed == "by a batch after it":
        world.run(successor, {0: (2, 3)})
    journaled = own.journals.put(journal)
    assert journaled == (closed != "by its successor's start")

    others = {path for path in world.all_parquet_files() if "00000001/00000002" not in path}

    deleted = delete_fenced_batch(own, journal.key)

    if closed == "not yet":
        assert deleted == 0
        assert world.settle(successor).committed == (journal,)
        assert world.rows() == [(0, 0), (0, 1), (0, 2), (0, 4)]
    else:
        assert deleted >= 2
        assert world.all_parquet_files() == others
        world.begin()
        assert world.tables.journals.get(journal.key) is None


def test_a_fenced_writer_keeps_its_dead_letters_that_landed(world):
    first = world.begin()
    journal = journaled(world, first, {0: (0, 4)}, rejected={0: [1]})
    world.commit_dead_letters(first, journal)
    own = world.view()
    successor = world.take_over()
    world.run(successor, {0: (0, 1)})

    assert delete_fenced_batch(own, journal.key) == 1
    assert (world.rows(), world.dead_letters()) == ([(0, 0)], [(0, 1)])


def test_files_of_a_committed_batch_or_of_the_running_epoch_are_not_deleted(world):
    first = world.begin()
    journal = journaled(world, first, {0: (0, 3)})
    assert delete_fenced_batch(world.view(), journal.key) == 0
    second = world.begin()
    world.run(second, {0: (3, 4)})
    assert delete_fenced_batch(world.view(), journal.key) == 0
    assert len(world.rows()) == 4


def test_a_settling_epoch_that_was_replaced_deletes_nothing(world):
    """The epoch found a journal stale; then a reset made the journal valid, and the next epoch committed it."""
    first = world.begin()
    journaled(world, first, {0: (5, 8)})
    second_view = world.view()
    second = world.take_over(second_view)
    original = second.commit

    def commit(found):
        try:
            return original(found)
        except StaleBatch:
            moved = dataclasses.replace(world.marker().with_epoch(3), offsets={("events", 0): 5, ("events", 1): 0})
            write_marker(world, moved)
            world.settle(world.take_over())
            raise

    second.commit = commit
    with pytest.raises(Fenced):
        world.settle(second, second_view)

    assert world.rows() == [(0, 5), (0, 6), (0, 7)]


@dataclass
class CachedCatalog:
    """Answers each load with the table as it first was; commits go through."""

    inner: Any
    name: str = "cache"
    first: dict[str, Any] = field(default_factory=dict)

    def load_table(self, name: str) -> Any:
        return self.first.setdefault(name, self.inner.load_table(name))

    def commit_table(self, *commit: Any) -> Any:
        return self.inner.commit_table(*commit)


def cached(world):
    catalog = CachedCatalog(world.catalog)
    handles = [TableHandle(catalog, name) for name in (world.table, world.dead_letter_table)]
    return dataclasses.replace(world.view(), targets={"main": handles[0], "dead-letters": handles[1]})


def test_a_start_with_a_stale_catalog_cache_uses_its_own_committed_state(world):
    """The start saw the previous epoch in the cache, which must not count as another writer's take-over."""
    first = world.begin()
    world.run(first, {0: (0, 2)}, rejected={0: [1]})
    journal = journaled(world, first, {0: (2, 4)})
    view = cached(world)

    second = world.take_over(view)
    settled = world.settle(second, view)

    assert settled.committed == (journal,)
    assert view.marker() == world.marker()
    assert (world.rows(), world.dead_letters()) == ([(0, 0), (0, 2), (0, 3)], [(0, 1)])


def lose_dead_letters(world: World) -> Committer:
    """Let the catalog lose two confirmed commits of the dead-letter table, but none of the default table."""
    committer = world.begin()
    world.run(committer, {0: (0, 2)}, rejected={0: [1]})
    before = world.load_dead_letters()
    world.run(committer, {0: (2, 4)}, rejected={0: [3]})
    world.run(committer, {0: (4, 6)}, rejected={0: [5]})
    world.run(committer, {0: (6, 8)})
    world.catalog.go_back(before)
    return committer


def test_dead_letters_that_only_the_default_table_knows_are_committed_again(world):
    first = lose_dead_letters(world)
    waiting = journaled(world, first, {0: (8, 10)}, rejected={0: [9]})

    for committed in ((waiting,), ()):
        view = world.view()
        assert world.settle(world.take_over(view), view).committed == committed
        assert world.dead_letters() == [(0, n) for n in (1, 3, 5, 9)]
    assert world.rows() == [(0, n) for n in (0, 2, 4, 6, 7, 8)]


def test_dead_letters_that_another_writers_commit_replaced_are_committed_again_by_the_next_writer(world):
    committer = world.begin()
    world.run(committer, {0: (0, 2)}, rejected={0: [1]})
    before = world.load_dead_letters()
    world.run(committer, {0: (2, 4)}, rejected={0: [3]})
    waiting = journaled(world, committer, {0: (4, 6)}, rejected={0: [5]})
    world.catalog.go_back(before)
    world.load_dead_letters().append(before.scan().to_arrow().slice(0, 0))

    with pytest.raises(CommitUnavailable, match=r"events_dead_letters no longer has the dead letters of batch 1-2"):
        committer.commit(waiting)

    view = world.view()
    assert world.settle(world.take_over(view), view).committed == (waiting,)
    assert world.dead_letters() == [(0, 1), (0, 3), (0, 5)]


def replay_in_default_table_only(world):
    replay = BackfillMarker("events", "b-1", {"dead-letters": "--all"}, "digest", 1, BackfillState.PUBLISHED)
    world.load().transaction().set_properties({"frazil.backfill.events": replay.to_property()}).commit_transaction()


def remove_dead_letter_files(world):
    for path in set(world.parquet_files(world.load_dead_letters())):
        Path(path).unlink()


def move_dead_letters(world):
    moved = {"write.data.path": f"{world.load_dead_letters().location()}/elsewhere"}
    world.load_dead_letters().transaction().set_properties(moved).commit_transaction()


def recreate_topic(world):
    world.source = SourceIdentity("cluster-1", {"events": "topic-2"})
    view = world.view()
    reset(view, target={}, source=world.source, seen=read_state_before_reset(view))


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        (replay_in_default_table_only, "replay b-1, which the catalog has also lost, may have turned them into rows"),
        (remove_dead_letter_files, "these files no longer exist"),
        (recreate_topic, "was deleted and recreated"),
        (move_dead_letters, None),
    ],
)
def test_dead_letters_that_may_be_outdated_are_not_committed_again(world, caplog, change, warned):
    lose_dead_letters(world)
    change(world)
    files = world.load_dead_letters().inspect.files()["file_path"].to_pylist()

    view = world.view()
    world.settle(world.take_over(view), view)

    assert world.load_dead_letters().inspect.files()["file_path"].to_pylist() == files
    found = [
        r.getMessage() for r in caplog.records if "the catalog has lost the dead letters of batch 1-2" in r.getMessage()
    ]
    assert len(found) == (1 if warned else 0)
    assert all(warned in message for message in found)


def test_a_settling_epoch_that_does_not_see_its_successor_deletes_nothing(world):
    """It judged a journal stale; a reset made it right, and the next epoch is about to commit it. The cache shows none
    of that."""
    first = world.begin()
    waiting = journaled(world, first, {0: (5, 8)})
    view = cached(world)
    second = world.take_over(view)
    original = second.commit

    def commit(found):
        try:
            return original(found)
        except StaleBatch:
            moved = dataclasses.replace(world.marker().with_epoch(3), offsets={("events", 0): 5, ("events", 1): 0})
            write_marker(world, moved)
            world.third = world.take_over()
            raise

    second.commit = commit
    with pytest.raises(CommitUnavailable, match=r"returns an older state .* although it had confirmed snapshot"):
        world.settle(second, view)

    world.third.commit(waiting)
    assert world.rows() == [(0, 5), (0, 6), (0, 7)]


def test_a_repeated_put_of_a_journal_recognizes_its_own_journal(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 2)})

    assert world.tables.journals.put(journal)
    assert world.tables.journals.put(journal)
    assert not world.tables.journals.put(dataclasses.replace(journal, created_at_ms=1))


def test_a_stream_that_was_forgotten_never_uses_an_epoch_again(world):
    for offset in range(3):
        world.run(world.begin(), {0: (offset, offset + 1)})
    forget(world.tables, state=state_location(world.load(), "events"))
    world.load().delete()

    again = world.begin()

    assert again.epoch == 4 == highest_epoch(world.tables)
    assert world.marker().outcome_of(BatchKey(2, 1)) is BatchOutcome.UNKNOWN


def test_journals_older_than_a_forget_are_not_committed_again(world):
    """The first one begins where the stream begins again, and its files may have been compacted and expired."""
    first = world.begin()
    world.run(first, {0: (0, 2)})
    world.compact()
    world.expire_all_but_newest()
    world.load().delete()
    change_marker(world.tables, world.tables.main, lambda _: None, operation="forget")

    second = world.begin()

    assert world.marker().settled is None
    world.run(second, {0: (0, 2)})
    assert world.rows() == [(0, 0), (0, 1)]


def test_a_table_created_in_the_folder_of_another_deletes_none_of_its_files(world):
    """An earlier frazil created a table after the catalog was lost: both streams continue alternately."""
    inner = world.catalog.inner
    for name in ("events", "events_dead_letters"):
        old = inner.load_table(f"demo.{name}")
        inner.create_table(f"demo.again_{name}", old.schema(), location=old.location(), partition_spec=old.spec())
    again = World(
        world.catalog, world.root, table="demo.again_events", dead_letter_table="demo.again_events_dead_letters"
    )
    world.run(world.begin(), {0: (0, 2)}, rejected={0: [1]})
    again.run(again.begin(), {0: (0, 1)})
    world.run(world.begin(), {0: (2, 4)}, rejected={0: [3]})
    again.run(again.begin(), {0: (1, 2)})
    sweep(again.tables, below_epoch=9)
    assert world.rows() == [(0, 0), (0, 2)]
    assert len(world.load_dead_letters().scan().to_arrow()) == 2
    records = world.store.list_files(world.tables.state)
    with pytest.raises(TableLost, match=r"also holds the table demo\.events"):
        forget(again.tables, state=again.tables.state)
    assert again.marker().settled
    assert world.store.list_files(world.tables.state) == records


def test_forgetting_a_stream_keeps_the_records_of_another_table(world):
    """The other one's metadata may be elsewhere; a creation that lost a race leaves metadata, and no table."""
    world.catalog.inner.create_table("demo.lost_a_race", world.load().schema(), location=world.load().location())
    first = world.begin()
    world.run(first, {0: (0, 2)})
    theirs = dataclasses.replace(world.stage(first, {0: (2, 4)}), table_uuid="another")
    world.store.put(world.tables.journals.path(theirs.key), theirs.to_bytes())
    assert forget(world.tables, state=world.tables.state) == 1
    assert [file.path for file in world.store.list_files(world.tables.state)] == [
        world.tables.journals.path(theirs.key)
    ]


@pytest.mark.parametrize(
    ("stream", "key", "is_its_own"),
    [
        ("s", BatchKey(3, 4), True),
        ("s", BatchKey(3, 5), False),
        ("other", BatchKey(3, 4), False),
        (staging_stream("s", "b1"), BatchKey(1, 1), False),
    ],
)
def test_a_snapshot_is_the_commit_of_the_batch_that_its_summary_names(stream: str, key: BatchKey, is_its_own: bool):
    of_batch = Summary(Operation.APPEND, **{"frazil.stream": "s", "frazil.epoch": "3", "frazil.batch-id": "4"})
    of_backfill = Summary(Operation.APPEND, **{"frazil.backfill-stream": "s", "frazil.backfill": "b1"})
    assert _is_commit_of(of_batch, stream, key) == is_its_own
    assert _is_commit_of(of_backfill, stream, key) == (stream == staging_stream("s", "b1"))
