"""A writer folds its small files while it runs: the same rows in fewer files. Every other commit wins."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import DateType

from frazil.commit import writer_expiry, writer_folding
from frazil.commit.commit_checks import check_ancestry
from frazil.commit.expiry import Pins, plan_expiry
from frazil.commit.manifest_writing import recently_written
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.staging_targets import target_table
from frazil.commit.writer_expiry import WriterExpiry
from frazil.commit.writer_folding import WriterFolding
from frazil.maintenance.measure import _growth_since_compaction
from frazil.merge.contract import TableFile
from frazil.merge.table_files import write_deletes
from frazil.spec.maintenance import Compaction, Expiry

FAN_IN = 3


class Writer:
    """Commits a record a batch, and folds. Its thread's work runs at once, or when `work` is called."""

    def __init__(self, world: Any, *, waits: bool = False) -> None:
        self.world, self.committer, self.records = world, world.begin(), 0
        self.work: Callable[[], None] = lambda: None
        start = self._wait if waits else lambda work: work()
        self.folding = WriterFolding(world.stream, world.tables.main, FAN_IN, lambda: world.clock_ms, start)

    def _wait(self, work: Callable[[], None]) -> None:
        self.work = work

    def commit(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.world.clock_ms += 1_000
            journal = self.world.stage(self.committer, {0: (self.records, self.records + 1)})
            assert self.world.tables.journals.put(journal)
            self.committer.commit(journal)
            self.records += 1
            self.folding.continue_after(journal.staged_for("main"))

    def commit_and_expire(self, batches: int) -> Expiry:
        """Commit with a writer's expiry that keeps few snapshots. Returns its settings."""
        settings, main = Expiry(at_least=1, at_most=4), self.world.tables.main
        main.expiry = WriterExpiry(settings, Pins, lambda: self.world.clock_ms, lambda work: work(), 0)  # type: ignore[arg-type, return-value]
        for _ in range(batches):
            self.commit()
            main.expiry.continue_after(main.current())
        return settings

    def is_whole(self) -> bool:
        return bool(self.world.rows() == [(0, number) for number in range(self.records)])


def live_files(world: Any) -> int:
    return len(list(world.load().scan().plan_files()))


def folds(world: Any) -> list[Any]:
    return [s for s in world.load().metadata.snapshots if s.summary.get("frazil.operation") == "fold"]


def test_files_stay_few_however_often_a_writer_commits_and_no_row_changes(world: Any):
    writer = Writer(world)
    for _ in range(40):
        writer.commit()
        assert live_files(world) <= 12
    assert writer.is_whole()
    summary = world.load().current_snapshot().summary
    assert (int(summary["total-data-files"]), int(summary["total-records"])) == (live_files(world), 40)
    check_ancestry(world.load().metadata, world.marker(), table="demo.events")


def test_a_fold_is_a_replace_snapshot_with_counts_in_its_summary(world: Any):
    writer = Writer(world)
    writer.commit(FAN_IN + 1)
    (fold,) = folds(world)
    assert fold.summary.operation is Operation.REPLACE
    counts = ("added-data-files", "deleted-data-files", "added-records", "deleted-records")
    assert [fold.summary[name] for name in counts] == ["1", "3", "3", "3"]
    assert fold.summary.get("frazil.stream") is None, "a fold moves no position"
    assert world.marker().settled.batch == FAN_IN + 1


def test_a_fold_adds_one_manifest_and_merges_the_manifests_of_its_files(world: Any):
    writer = Writer(world)
    writer.commit(FAN_IN + 1)
    io, (fold,) = world.load().io, folds(world)
    written = [m for m in fold.manifests(io) if m.added_snapshot_id == fold.snapshot_id]
    assert sorted((m.added_files_count, m.deleted_files_count) for m in written) == [(0, 3), (1, 0)]


def test_every_snapshot_that_the_writers_expiry_leaves_can_be_read(world: Any):
    writer = Writer(world)
    writer.commit_and_expire(30)
    left = world.load().metadata.snapshots
    assert len(left) < 40
    for snapshot in left:
        assert len(world.rows(snapshot_id=snapshot.snapshot_id)) == int(snapshot.summary["total-records"])
    assert writer.is_whole()


def test_the_writers_expiry_leaves_one_snapshot_of_each_fold(world: Any):
    writer = Writer(world)
    settings = writer.commit_and_expire(60)
    left = [snapshot for snapshot in world.load().metadata.snapshots if int(snapshot.summary["total-records"]) <= 50]
    before_folds = {int(snapshot.summary["total-records"]) for snapshot in left}
    assert not {snapshot.snapshot_id for snapshot in left} & {fold.snapshot_id for fold in folds(world)}
    assert len(left) == len(before_folds) <= 50 / FAN_IN + 50 / FAN_IN**2 + settings.at_most
    assert world.manifests() == world.used_manifests()


def test_maintenance_does_not_count_a_fold_as_a_compaction(world: Any):
    writer = Writer(world)
    writer.commit(3 * FAN_IN + 1)
    last_ms, files, _ = _growth_since_compaction(world.load().metadata, target_bytes=2**29)
    assert (last_ms, files) == (None, live_files(world))


def test_maintenance_expires_folds_that_the_writer_leaves_to_it(world: Any):
    writer = Writer(world)
    settings = writer.commit_and_expire(20)
    metadata = world.load().metadata
    plan = plan_expiry(metadata, settings, Pins(), table="demo.events", now_ms=world.clock_ms)
    assert len(metadata.snapshots) > 10, "the writer left folds"
    assert len(metadata.snapshots) - len(plan.expire) <= settings.at_most + 1


def test_a_row_that_another_program_deletes_meanwhile_stays_deleted(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(FAN_IN)
    world.load().delete(EqualTo("kafka_offset", 1))
    writer.work()
    world.tables.main.forget()
    writer.commit()
    assert world.rows() == [(0, 0), (0, 2), (0, 3)]
    assert not folds(world)
    assert all("folded" not in path for path in world.parquet_files())


def test_a_concurrent_commit_wins_and_leaves_no_files_of_the_manifest_fold(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(FAN_IN)
    writer.work()
    before = world.manifests()
    other = world.load().scan().to_arrow().slice(0, 1)
    world.catalog.next_meets(lambda: world.load().append(other))
    writer.folding.continue_after(())
    assert not folds(world)
    assert all("folded" not in path for path in world.parquet_files())
    assert len(world.manifests() - before) == 2, "those of the other commit"
    writer.commit(3 * FAN_IN)
    writer.work()
    writer.commit()
    assert folds(world)
    assert len(world.rows()) == writer.records + 1
    assert set(world.rows()) == {(0, number) for number in range(writer.records)}


@pytest.mark.parametrize("room", ["folding", "expiry"])
def test_a_writer_ends_while_the_storage_of_its_thread_hangs(world: Any, monkeypatch: pytest.MonkeyPatch, room: str):
    monkeypatch.setattr(writer_expiry, "END_TIMEOUT_S", 0.01)
    answers = threading.Event()
    thread = writer_expiry.start_thread(lambda: answers.wait(5) and None)
    folding = WriterFolding(world.stream, world.tables.main, FAN_IN, lambda: 0, _running=thread)
    expiry = WriterExpiry(Expiry(at_least=1, at_most=4), Pins, lambda: 0, _running=thread)  # type: ignore[arg-type]
    (folding if room == "folding" else expiry).end()
    assert thread.is_alive()
    answers.set()
    thread.join(5)


def test_a_fold_that_fails_leaves_its_manifests_to_be_merged(world: Any):
    writer = Writer(world, waits=True)
    for _ in range(20):
        writer.commit(FAN_IN)
        writer.work()
        world.catalog.next_fails_before(CommitFailedException("another commit came first"))
        writer.folding.continue_after(())
    assert not folds(world)
    table = world.load()
    assert len(table.current_snapshot().manifests(table.io)) < 40


def test_a_fold_with_an_unknown_outcome_deletes_nothing(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(FAN_IN)
    writer.work()
    commit = world.tables.main.commit

    def lose_answer(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        world.tables.main.forget()
        raise ConnectionError("no answer in time")

    world.tables.main.commit = lose_answer
    writer.folding.continue_after(())
    world.tables.main.commit = commit
    assert len(folds(world)) == 1
    writer.commit(4)
    assert writer.is_whole()


def test_a_fold_that_landed_although_the_catalog_reports_a_conflict_keeps_its_files(world: Any):
    def land_and_refuse(effect: Callable[[], Any]) -> None:
        effect()
        raise CommitFailedException("the client sent the request twice, and the second one met the first")

    writer = Writer(world, waits=True)
    writer.commit(FAN_IN)
    writer.work()
    world.catalog.faults.append((None, land_and_refuse))
    writer.folding.continue_after(())
    assert len(folds(world)) == 1
    writer.commit(FAN_IN)
    assert writer.is_whole()


def test_a_fold_that_waited_long_for_a_batch_is_dropped_as_its_files_may_be_deleted_as_orphans(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(FAN_IN)
    writer.work()
    world.clock_ms += writer_folding.MAX_FOLD_AGE_MS
    (made,) = [path for path in world.parquet_files() if "folded" in path]
    world.tables.main.store.delete([made])
    writer.commit()
    assert not folds(world)
    assert writer.is_whole()


def test_files_with_deletes_that_no_summary_counts_are_not_folded(world: Any):
    writer = Writer(world, waits=True)
    writer.commit(FAN_IN)
    delete_row_without_totals(world)
    world.tables.main.forget()
    assert len(world.rows()) == FAN_IN - 1
    writer.work()
    writer.commit()
    assert not folds(world)
    assert len(world.rows()) == FAN_IN


def delete_row_without_totals(world: Any) -> None:
    """Delete the first row of a file, in a snapshot whose summary has no optional keys."""
    table = world.load()
    data_file = next(iter(table.scan().plan_files())).file
    partition = (base64.b64encode(to_bytes(DateType(), data_file.partition[0])).decode(),)
    target = target_table(table, folder=f"{table.location()}/data/other")
    of = TableFile(data_file.file_path, data_file.record_count, data_file.file_size_in_bytes, 0, partition)
    deletes = write_deletes(table.io, of, np.zeros(1, np.int64), target=target)
    prepared = SnapshotWriter([deletes]).prepare(table, summary={}, now_ms=world.clock_ms)
    bare = prepared.snapshot.model_copy(update={"summary": Summary(Operation.OVERWRITE)})
    updates = (AddSnapshotUpdate(snapshot=bare), *prepared.updates[1:])
    world.catalog.inner.commit_table(table, prepared.requirements, updates)


def test_files_that_cannot_be_replaced_are_not_read(world: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recently_written, "get", lambda _: None)
    writer = Writer(world, waits=True)
    writer.commit(2 * FAN_IN)
    assert writer.folding._running is None
    writer.work()
    assert all("folded" not in path for path in world.parquet_files())


def test_a_catalog_that_does_not_answer_stops_no_batch(world: Any, monkeypatch: pytest.MonkeyPatch):
    writer = Writer(world, waits=True)
    writer.commit(FAN_IN)
    writer.work()
    with monkeypatch.context() as patch:
        patch.setattr(world.tables.main, "current", lambda: 1 / 0)
        writer.folding.continue_after(())
    writer.commit(2 * FAN_IN)
    writer.work()
    writer.commit()
    assert len(folds(world)) == 1
    assert writer.is_whole()


def test_files_of_manifests_that_this_process_does_not_remember_are_left(world: Any, monkeypatch: pytest.MonkeyPatch):
    writer = Writer(world)
    writer.commit(FAN_IN)
    monkeypatch.setattr(recently_written, "get", lambda _: None)
    writer.commit()
    assert not folds(world)
    assert writer.is_whole()


def test_large_files_are_not_folded(world: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_folding, "MAX_FOLDED_BYTES", 10)
    writer = Writer(world)
    writer.commit(2 * FAN_IN)
    assert not folds(world)


def test_the_end_of_a_writer_waits_for_the_files_that_are_being_folded(world: Any):
    def started(work: Callable[[], None]) -> Any:
        return SimpleNamespace(is_alive=lambda: True, join=lambda _: work(), name="fold")

    writer = Writer(world)
    writer.folding.start = started
    writer.commit(FAN_IN)
    assert writer.folding._rewritten is None
    writer.folding.end()
    assert writer.folding._rewritten is not None


def test_the_number_of_files_waiting_to_be_folded_is_bounded(world: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_folding, "MAX_WAITING_FILES", FAN_IN - 1)
    writer = Writer(world)
    writer.commit(2 * FAN_IN)
    assert sum(map(len, writer.folding._waiting.values())) < FAN_IN
    assert writer.is_whole()


@pytest.mark.parametrize(
    ("settings", "folds_files"),
    [(Compaction(), False), (Compaction(fold_files=4), True), (Compaction(enabled=False, fold_files=4), False)],
)
def test_a_writer_folds_files_only_if_that_is_declared(world: Any, settings: Compaction, folds_files: bool):
    assert (WriterFolding.open(settings, world.tables) is not None) == folds_files
