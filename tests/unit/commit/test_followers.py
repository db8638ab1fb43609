"""The default table decides a batch; routed tables follow. Each row lands once, and tables fail independently."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.table import Table

from frazil.commit.committer import Committer
from frazil.commit.followers import Followers, _advance_marker
from frazil.commit.journal import Journal, JournalStore, UnusableJournal, bare_path
from frazil.commit.marker import MAX_EPOCHS, BatchKey, Marker, read_marker
from frazil.commit.marker_changes import discard_rows_of_existing_table, is_ahead, write_first_marker
from frazil.commit.missing_rows import find_lagging_tables
from frazil.commit.routed_table_records import write_table_record
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import discard_batch, sweep, sweep_batch, sweep_routed
from frazil.errors import CommitUnavailable
from frazil.ingest.contract import StagedFile
from frazil.maintenance.orphans import UndecidedFiles
from frazil.offsets.spans import SourceIdentity
from frazil.table.atomic_catalogs import TableChange, find_commit_tables
from frazil.table.object_store import FileInfo
from frazil.table.storage import LocalStore

from .conftest import BY_DAY, SCHEMA, TOPIC, World, catalog_in, event_time, new_world

ORDERS, PAYMENTS = "demo.orders", "demo.payments"
Rows = Mapping[str, Sequence[int]]
"""Offsets of partition 0, by target."""


class Routed:
    """A world whose stream has two routed tables."""

    def __init__(self, world: World) -> None:
        self.world = world
        for identifier in (ORDERS, PAYMENTS):
            world.catalog.inner.create_table(identifier, SCHEMA, partition_spec=BY_DAY)
        self.begin()
        for identifier in (ORDERS, PAYMENTS):
            write_first_marker(self.tables, self.tables.handle(identifier), self.world.marker())

    @property
    def tables(self) -> StreamTables:
        return self.world.tables

    def begin(self) -> Followers:
        """Take over in another process."""
        self.world.tables = self.world.view()
        self.committer: Committer = self.world.begin()
        return self.follow()

    def follow(self, *, atomic: bool | Sequence[str] = True) -> Followers:
        self.followers = Followers.load(self.tables, self.world.marker(), atomic=atomic)
        self.committer.followers = self.followers
        return self.followers

    def stage(self, rows: Rows, end: int) -> Journal:
        marker = self.world.marker()
        key = BatchKey(self.committer.epoch, marker.key.batch + 1)
        files: list[StagedFile] = []
        for target, offsets in rows.items():
            table = self.world.load() if target == "main" else self.load(target)
            files += self.world._write(table, key, target, [self.row(offset) for offset in offsets])
        ranges = {0: (marker.offsets[TOPIC, 0], end)}
        return self.world.journal(key, ranges, tuple(files), seen=self.committer.newest_dead_letters())

    def row(self, offset: int) -> dict[str, Any]:
        return {"ts": event_time(offset), "name": str(offset), "kafka_partition": 0, "kafka_offset": offset}

    def decide(self, rows: Rows, end: int) -> Journal:
        """Journal a batch and commit it to the default table, but not to the routed tables."""
        journal = self.stage(rows, end)
        assert self.tables.journals.put(journal)
        self.committer.commit(journal)
        return journal

    def run(self, rows: Rows, end: int) -> Journal:
        journal = self.decide(rows, end)
        self.followers.commit()
        return journal

    def load(self, identifier: str) -> Table:
        return self.world.catalog.inner.load_table(identifier)

    def offsets(self, identifier: str) -> list[int]:
        return [offset for _, offset in self.world._coordinates(self.load(identifier))]

    def marker(self, identifier: str) -> Marker:
        found = read_marker(self.load(identifier).metadata.properties, self.world.stream)
        assert found is not None
        return found


@pytest.fixture
def routed(world: World) -> Routed:
    return Routed(world)


def test_each_table_gets_its_rows_in_one_snapshot_and_the_default_table_has_overall_progress(routed: Routed) -> None:
    first = routed.run({"main": [0], ORDERS: [1, 3], PAYMENTS: [2]}, 4)
    second = routed.run({ORDERS: [4]}, 5)
    assert (routed.offsets("demo.events"), routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([0], [1, 3, 4], [2])
    assert routed.marker(ORDERS).settled == second.key
    assert routed.marker(PAYMENTS).settled == first.key, "a batch without rows for a table leaves it alone"
    assert routed.world.marker().routed == first.key, "what the default table said when it decided the second"
    assert routed.followers.last_complete_batch == second.key
    assert len(routed.load(ORDERS).metadata.snapshots) == 3, "its marker, and a snapshot for each batch"


@pytest.mark.parametrize("followed", [[], [ORDERS], [ORDERS, PAYMENTS]])
def test_a_crash_after_the_commit_to_the_default_table_loses_and_duplicates_nothing(
    routed: Routed, followed: list[str]
) -> None:
    routed.run({"main": [0]}, 1)
    routed.decide({"main": [1], ORDERS: [2], PAYMENTS: [3]}, 4)
    waiting = routed.followers.waiting
    routed.followers.waiting = {target: waiting[target] for target in followed}
    routed.followers.commit()

    found = routed.begin()
    assert sorted(found.waiting) == [ORDERS, PAYMENTS], "the tables themselves tell what they have"
    found.commit()
    assert (routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([2], [3])
    assert (found.waiting, found.behind) == ({}, {})
    routed.run({ORDERS: [4]}, 5)
    assert routed.offsets(ORDERS) == [2, 4]


def test_routed_tables_get_no_batch_before_the_default_table_has_committed_it(
    routed: Routed,
) -> None:
    journal = routed.stage({"main": [0], ORDERS: [1]}, 2)
    assert routed.tables.journals.put(journal)
    routed.world.tables = routed.world.view()
    routed.committer = routed.world.take_over()
    assert Followers.load(routed.tables, routed.world.marker()).waiting == {}
    routed.world.settle(routed.committer)
    assert routed.offsets(ORDERS) == []
    assert routed.world.marker().routed == BatchKey(0, 0), "its first routed batch"
    found = Followers.load(routed.tables, routed.world.marker())
    found.commit()
    assert routed.offsets(ORDERS) == [1]


def test_a_paused_writer_and_its_successor_commit_a_batch_once(routed: Routed) -> None:
    journal = routed.decide({ORDERS: [0], PAYMENTS: [1]}, 2)
    paused = routed.followers

    def successor() -> None:
        found = routed.begin()
        assert found.waiting[ORDERS] == [journal]
        found.commit()
        routed.run({ORDERS: [2], PAYMENTS: [3]}, 4)

    routed.world.catalog.next_meets(successor, ORDERS)
    paused.commit()
    assert (routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([0, 2], [1, 3])
    assert paused.behind == {}


def test_a_writer_with_only_some_of_the_waiting_batches_leaves_them_to_a_writer_with_all(routed: Routed) -> None:
    routed.decide({ORDERS: [0]}, 1)
    paused = Followers(routed.tables, BatchKey(0, 0), {ORDERS: [*routed.followers.waiting[ORDERS]]})
    routed.decide({ORDERS: [1]}, 2)
    routed.world.catalog.next_meets(paused.commit, ORDERS)
    routed.followers.commit()
    assert routed.offsets(ORDERS) == [0, 1]


def test_an_error_of_one_routed_table_does_not_stop_others_and_its_rows_land_later_in_order(
    routed: Routed, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = routed.world.catalog
    catalog.next_fails_before(ForbiddenError("not yours"), ORDERS, times=2)
    first = routed.run({"main": [0], ORDERS: [1], PAYMENTS: [2]}, 3)
    routed.world.clock_ms += 60_000
    routed.run({ORDERS: [3, 4], PAYMENTS: [5]}, 6)
    assert (routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([], [2, 5])
    behind = routed.followers.behind[ORDERS]
    assert str(behind) == (
        "demo.orders is missing 3 rows of 2 batches: frazil is not permitted to commit to table demo.orders: not yours"
    )
    assert behind.since_ms == first.created_at_ms
    assert routed.followers.last_complete_batch < first.key

    snapshots = len(routed.load(ORDERS).metadata.snapshots)
    routed.run({PAYMENTS: [6]}, 7)
    assert routed.world.marker().routed == BatchKey(first.key.epoch, first.key.batch - 1)
    assert (routed.offsets(ORDERS), routed.followers.behind) == ([1, 3, 4], {})
    assert len(routed.load(ORDERS).metadata.snapshots) == snapshots + 1
    assert "table demo.orders has all rows again" in caplog.text


def test_rows_waiting_for_a_failing_table_land_after_the_writer_restarts(routed: Routed) -> None:
    routed.world.catalog.next_fails_before(ForbiddenError("not yours"), ORDERS, times=2)
    routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    routed.run({ORDERS: [2], PAYMENTS: [3]}, 4)
    found = routed.begin()
    assert [j.key.batch for j in found.waiting[ORDERS]] == [1, 2]
    found.commit()
    assert (routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([0, 2], [1, 3])


def test_a_rolled_back_routed_table_is_behind_until_it_is_rolled_forward(routed: Routed) -> None:
    routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    head = routed.load(ORDERS).current_snapshot()
    assert head is not None
    routed.world.roll_back(1, routed.load(ORDERS))
    routed.run({ORDERS: [2], PAYMENTS: [3]}, 4)
    behind = routed.followers.behind[ORDERS]
    assert "was rolled back" in behind.explanation.reason
    assert "`frazil route events --give-up demo.orders`" in behind.explanation.remedy, "a reset is about home"
    assert "reset" not in str(behind)
    assert routed.offsets(PAYMENTS) == [1, 3]
    routed.world.move_branch(head.snapshot_id, routed.load(ORDERS))
    routed.followers.commit()
    assert routed.offsets(ORDERS) == [0, 2]


def test_a_dropped_table_is_behind_even_if_another_table_has_its_name(routed: Routed) -> None:
    inner = routed.world.catalog.inner
    routed.decide({ORDERS: [0], PAYMENTS: [1]}, 2)
    inner.drop_table(ORDERS)
    routed.followers.commit()
    assert "no longer exists" in routed.followers.behind[ORDERS].explanation.reason
    inner.create_table(ORDERS, SCHEMA, partition_spec=BY_DAY, location=str(routed.world.root / "elsewhere"))
    routed.run({PAYMENTS: [2]}, 3)
    assert "has no marker of stream 'events'" in routed.followers.behind[ORDERS].explanation.reason
    assert routed.offsets(PAYMENTS) == [1, 2]


def test_a_rolled_back_routed_table_may_continue_without_its_lost_rows(routed: Routed) -> None:
    routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    routed.world.roll_back(1, routed.load(ORDERS))
    routed.run({ORDERS: [2], PAYMENTS: [3]}, 4)
    (behind,) = find_lagging_tables(routed.tables, routed.world.marker())
    assert (behind.target, behind.rows, behind.batches) == (ORDERS, 1, 1)
    assert "was rolled back" in behind.explanation.reason
    discard_rows_of_existing_table(routed.tables, ORDERS, routed.world.marker())
    assert find_lagging_tables(routed.tables, routed.world.marker()) == []
    routed.run({ORDERS: [4]}, 5)
    assert (routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([4], [1, 3])
    assert (routed.followers.behind, routed.followers.waiting) == ({}, {})


def test_rows_committed_while_a_user_discards_others_are_kept(routed: Routed) -> None:
    shown = routed.world.marker()
    last = routed.run({ORDERS: [0]}, 1)
    discard_rows_of_existing_table(routed.tables, ORDERS, shown)
    assert routed.marker(ORDERS).settled == last.key, "else its rows would come again"
    routed.begin().commit()
    assert routed.offsets(ORDERS) == [0]


def test_a_routed_table_ahead_of_a_recreated_default_table_is_detected(routed: Routed) -> None:
    routed.run({ORDERS: [0]}, 1)
    other = dataclasses.replace(routed.world.marker(), settled=None)
    assert is_ahead(routed.marker(ORDERS), other)
    assert not is_ahead(routed.marker(ORDERS), routed.world.marker())


def test_files_that_wait_are_kept_by_every_sweep(routed: Routed) -> None:
    routed.world.catalog.next_fails_before(ForbiddenError("not yours"), ORDERS)
    journal = routed.run({"main": [0], ORDERS: [1]}, 2)
    (waiting,) = journal.staged_for(ORDERS)
    assert UndecidedFiles.of(routed.load(ORDERS).properties).holds(waiting.path)
    routed.begin()
    routed.begin()
    epoch, tables = routed.committer.epoch, routed.tables
    tables.handle(ORDERS)  # a sweep knows the tables that have handles
    for swept in (
        lambda: sweep(tables, below_epoch=epoch),
        lambda: sweep_routed(tables, below_epoch=epoch),
        lambda: sweep_batch(tables, journal),
    ):
        (failed,) = routed.world._write(routed.load(ORDERS), journal.key, ORDERS, [routed.row(1)])
        assert swept() == 1, "the table was swept"
        assert not Path(bare_path(failed.path)).exists()
        assert Path(bare_path(waiting.path)).exists()
    routed.world.lose_journal(journal.key)
    assert sweep_routed(tables, below_epoch=epoch) == 0, "nothing tells which files wait"
    routed.followers.commit()
    assert routed.offsets(ORDERS) == [1]
    assert not UndecidedFiles.of(routed.load(ORDERS).properties).holds(waiting.path)


def test_a_sweep_reads_each_journal_once_for_all_tables(routed: Routed, monkeypatch: pytest.MonkeyPatch) -> None:
    journals = [routed.run({"main": [n], ORDERS: [n + 1], PAYMENTS: [n + 2]}, n + 3) for n in (0, 3)]
    routed.begin()
    read: list[BatchKey] = []
    entry = JournalStore.entry

    def counted(store: JournalStore, key: BatchKey, **expected: str) -> Journal | UnusableJournal:
        read.append(key)
        return entry(store, key, **expected)

    for target in (ORDERS, PAYMENTS):
        routed.tables.handle(target)
    monkeypatch.setattr(JournalStore, "entry", counted)
    for swept in (sweep_routed, sweep):
        read.clear()
        swept(routed.tables, below_epoch=routed.committer.epoch)
        assert sorted(read) == [journal.key for journal in journals]


def test_a_table_that_cannot_be_swept_leaves_the_other_tables_files_to_the_sweep(
    routed: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    routed.begin()
    failed = [routed.world._write(routed.load(t), journal.key, t, [routed.row(0)])[0] for t in (ORDERS, PAYMENTS)]
    list_files = LocalStore.list_files

    def refuse(store: LocalStore, folder: str) -> list[FileInfo]:
        if folder.startswith(str(routed.load(ORDERS).location())):
            raise PermissionError(folder)
        return list_files(store, folder)

    for target in (ORDERS, PAYMENTS):
        routed.tables.handle(target)
    monkeypatch.setattr(LocalStore, "list_files", refuse)
    assert sweep_routed(routed.tables, below_epoch=routed.committer.epoch) == 1
    assert [Path(bare_path(f.path)).exists() for f in failed] == [True, False]


def test_files_that_a_lost_batch_staged_for_a_routed_table_are_deleted(routed: Routed) -> None:
    own = routed.stage({"main": [0], ORDERS: [1]}, 2)
    assert discard_batch(routed.tables, own.key) == 2
    unjournaled = routed.stage({"main": [0], ORDERS: [1]}, 2)
    assert len(unjournaled.routed) == 1
    routed.tables.handle(ORDERS)
    tables = routed.tables
    routed.committer = routed.world.take_over(tables)
    assert routed.world.settle(routed.committer, tables).deleted_files == 2
    assert routed.world.parquet_files(routed.load(ORDERS)) == set()


def test_files_deleted_by_others_are_never_referenced(routed: Routed) -> None:
    routed.world.catalog.next_fails_before(ForbiddenError("not yours"), ORDERS)
    journal = routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    Path(bare_path(journal.staged_for(ORDERS)[0].path)).unlink()
    routed.followers.commit()
    assert routed.followers.behind[ORDERS].explanation.reason.startswith(
        "1 file with rows for table demo.orders cannot be found"
    )
    assert routed.offsets(ORDERS) == []


def test_files_that_a_compaction_and_an_expiry_deleted_are_not_missed_by_the_next_start(routed: Routed) -> None:
    """The default table records the routed tables' progress only with its next batch, which may be days away."""
    journal = routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    table = routed.load(ORDERS)
    table.overwrite(table.scan().to_arrow())
    routed.world.expire_all_but_newest(routed.load(ORDERS))
    Path(bare_path(journal.staged_for(ORDERS)[0].path)).unlink()
    found = routed.begin()
    found.commit()
    assert (found.behind, found.waiting) == ({}, {})
    routed.run({ORDERS: [2]}, 3)
    assert routed.offsets(ORDERS) == [0, 2]


def test_only_rows_that_land_late_at_a_start_are_reported(routed: Routed, caplog: pytest.LogCaptureFixture) -> None:
    routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    routed.decide({ORDERS: [2, 3]}, 4)
    found, late = routed.begin(), list[int]()
    found.on_late_rows = late.append
    found.commit()
    assert late == [2]
    said = [record.getMessage() for record in caplog.records if "received" in record.getMessage()]
    assert said == [f"table {ORDERS} received 2 rows that had been waiting for it"]


def test_a_table_dropped_during_a_commit_causes_no_warning_of_unused_files(
    routed: Routed, caplog: pytest.LogCaptureFixture
) -> None:
    routed.decide({"main": [0], ORDERS: [1]}, 2)
    routed.tables.handle(ORDERS).current()
    routed.world.catalog.inner.drop_table(ORDERS)
    routed.followers.commit()
    assert "no longer exists" in routed.followers.behind[ORDERS].explanation.reason
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [text for text in warned if "unused files" in text] == []


def test_a_purged_table_continues_once_it_is_recreated_and_its_rows_are_given_up(routed: Routed) -> None:
    routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    routed.world.catalog.inner.purge_table(ORDERS)
    routed.world.catalog.inner.create_table(ORDERS, SCHEMA, partition_spec=BY_DAY)
    discard_rows_of_existing_table(routed.tables, ORDERS, routed.world.marker())
    found = routed.begin()
    found.commit()
    assert (found.behind, found.waiting) == ({}, {})
    routed.run({ORDERS: [2]}, 3)
    assert (routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([2], [1])


def test_a_routed_tables_marker_remembers_as_many_epochs_as_that_of_the_default_table() -> None:
    marker = Marker("s", BatchKey(1, 0), None, {}, SourceIdentity("c", {}), batches={1: 0})
    for epoch in range(2, MAX_EPOCHS + 5):
        for batch in (1, 2):
            journal: Any = SimpleNamespace(key=BatchKey(epoch, batch), progress=(), source=marker.source)
            marker = _advance_marker(marker, journal)
            assert (marker.key, marker.settled, marker.batches[epoch]) == (journal.key, journal.key, batch)
    assert marker.batches == dict.fromkeys(range(5, MAX_EPOCHS + 5), 2)


def test_a_marker_without_routed_tables_reads_and_writes_as_before(routed: Routed) -> None:
    text = routed.world.marker().to_property()
    assert "routed" not in text
    assert Marker.from_property("events", text).routed is None


@pytest.mark.parametrize("event", ["well", "refused", "lost answer", "crash"])
def test_with_atomic_commits_either_all_routed_tables_have_a_batch_or_none_has(routed: Routed, event: str) -> None:
    at_once = find_commit_tables(routed.world.catalog.inner)
    steps: list[list[str]] = []

    def committed(changes: Sequence[TableChange]) -> Any:
        steps.append([".".join(change.table.name()) for change in changes])
        if event == "refused" and len(steps) == 1:
            raise CommitFailedException("lost a race")
        done = at_once(changes)
        assert routed.offsets(ORDERS) == routed.offsets(PAYMENTS) == routed.offsets("demo.events") == [0]
        if event == "lost answer" and len(steps) == 1:
            raise ConnectionError("the answer was lost")
        if event == "crash":
            raise KeyboardInterrupt
        return done

    def begin() -> None:
        routed.world.tables = dataclasses.replace(routed.world.view(), commit_atomically=committed)
        routed.committer = routed.world.take_over()
        routed.follow()
        routed.world.settle(routed.committer)

    begin()
    rows = {"main": [0], ORDERS: [0], PAYMENTS: [0]}
    if event == "crash":
        with pytest.raises(KeyboardInterrupt):
            routed.run(rows, 1)
        begin()
        routed.followers.commit()
    else:
        routed.run(rows, 1)
    assert routed.offsets(ORDERS) == routed.offsets(PAYMENTS) == routed.offsets("demo.events") == [0]
    assert set(steps[0]) == {"demo.events", ORDERS, PAYMENTS}
    assert len(steps) == (2 if event == "refused" else 1)


def test_a_journal_of_an_earlier_writer_is_committed_atomically_too(routed: Routed) -> None:
    journal = routed.stage({"main": [0], ORDERS: [0], PAYMENTS: [0]}, 1)
    assert routed.tables.journals.put(journal)
    at_once, steps = find_commit_tables(routed.world.catalog.inner), []

    def committed(changes: Sequence[TableChange]) -> Any:
        steps.append(len(changes))
        return at_once(changes)

    routed.world.tables = dataclasses.replace(routed.world.view(), commit_atomically=committed)
    routed.committer = routed.world.take_over()
    routed.follow()
    routed.world.settle(routed.committer)
    assert steps == [3]
    assert routed.offsets(ORDERS) == routed.offsets(PAYMENTS) == routed.offsets("demo.events") == [0]


def test_with_atomic_commits_a_table_gets_the_rows_of_earlier_batches_first(routed: Routed) -> None:
    routed.world.catalog.next_fails_before(ForbiddenError("not yours"), ORDERS, times=2)
    routed.run({ORDERS: [0]}, 1)
    at_once = find_commit_tables(routed.world.catalog.inner)
    routed.world.tables = dataclasses.replace(routed.world.view(), commit_atomically=at_once)
    routed.committer = routed.world.begin()
    routed.follow()
    with pytest.raises(CommitUnavailable, match=r"demo\.orders is missing 1 row of 1 batch: .*not yours"):
        routed.run({"main": [1], ORDERS: [2]}, 3)
    assert routed.offsets("demo.events") == []
    routed.begin().commit()
    assert (routed.offsets(ORDERS), routed.offsets("demo.events")) == ([0, 2], [1])


@settings(
    max_examples=max(10, settings().max_examples // 8), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["main", ORDERS, PAYMENTS]), min_size=1, max_size=4),
            st.sampled_from(["well", "refused", "lost answer", "late", "crash before", "crash after"]),
            st.sampled_from([ORDERS, PAYMENTS]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_row_lands_once_whatever_fails(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[str], str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("law")
    with catalog_in(folder) as catalog:
        routed = Routed(new_world(catalog, folder))
        expected: dict[str, list[int]] = {"main": [], ORDERS: [], PAYMENTS: []}
        at = 0
        for targets, event, of in steps:
            rows: dict[str, list[int]] = {}
            for target in targets:
                rows.setdefault(target, []).append(at)
                expected[target].append(at)
                at += 1
            if event == "crash before":
                routed.decide(rows, at)
                routed.begin()
                continue
            match event:
                case "refused":
                    catalog.next_fails_before(ForbiddenError("not yours"), of)
                case "lost answer":
                    catalog.next_answer_is_lost(of)
                case "late":
                    catalog.next_lands_late(of)
            routed.run(rows, at)
            if event == "crash after":
                routed.begin()
        catalog.faults.clear()
        routed.begin().commit()
        assert routed.followers.behind == {}
        assert (routed.offsets("demo.events"), routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == tuple(
            expected.values()
        )


def test_listed_tables_commit_atomically_with_the_default_table_and_the_others_follow(
    routed: Routed,
) -> None:
    at_once, steps = find_commit_tables(routed.world.catalog.inner), []

    def committed(changes: Sequence[TableChange]) -> Any:
        steps.append({".".join(change.table.name()) for change in changes})
        return at_once(changes)

    def begin() -> None:
        routed.world.tables = dataclasses.replace(routed.world.view(), commit_atomically=committed)
        routed.committer = routed.world.take_over()
        routed.follow(atomic=(ORDERS, "demo.events"))
        routed.world.settle(routed.committer)

    begin()
    routed.world.catalog.next_fails_before(ForbiddenError("not yours"), PAYMENTS, times=2)
    routed.run({"main": [0], ORDERS: [1], PAYMENTS: [2]}, 3)
    assert steps == [{"demo.events", ORDERS}]
    assert (routed.offsets("demo.events"), routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([0], [1], [])
    routed.run({ORDERS: [3], PAYMENTS: [4]}, 5)
    assert steps[1] == {"demo.events", ORDERS}, "one table's trouble is no other's"
    begin()
    routed.followers.commit()
    assert (routed.offsets(ORDERS), routed.offsets(PAYMENTS)) == ([1, 3], [2, 4])


def test_an_error_of_a_listed_table_holds_the_batch_back_for_all_tables(routed: Routed) -> None:
    at_once = find_commit_tables(routed.world.catalog.inner)
    routed.world.catalog.next_fails_before(ForbiddenError("not yours"), ORDERS, times=2)
    routed.run({ORDERS: [0]}, 1)
    routed.world.tables = dataclasses.replace(routed.world.view(), commit_atomically=at_once)
    routed.committer = routed.world.begin()
    routed.follow(atomic=(ORDERS,))
    with pytest.raises(CommitUnavailable, match=r"in one step, but a table is behind: demo\.orders is missing 1 row"):
        routed.run({"main": [1], ORDERS: [2]}, 3)
    assert routed.offsets("demo.events") == []


def test_a_dropped_table_that_was_complete_is_reported_when_an_atomic_commit_needs_it(world):
    routed = Routed(world)
    routed.run({ORDERS: [0], PAYMENTS: [1]}, 2)
    write_table_record(routed.tables, ORDERS, None, routed.load(ORDERS))
    routed.begin()
    journal = routed.stage({"main": [2], ORDERS: [3]}, 4)
    world.catalog.inner.drop_table(ORDERS)

    with pytest.raises(CommitUnavailable, match=f"a table is behind: {ORDERS}: the table is not in the catalog"):
        dataclasses.replace(routed.followers, atomic=True).atomic_commits(journal)

    assert routed.followers.behind == {}
