"""A snapshot of another branch than main: main does not see it, and neither does a writer that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.marker import BatchKey
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.swap import Change, swap
from frazil.ingest.contract import StagedFile


def append_aside(world: Any, files: Sequence[StagedFile]) -> Snapshot:
    """One snapshot of the branch `aside`."""
    writer = SnapshotWriter(files, branch="aside")

    def propose(table: Table) -> Change[Snapshot]:
        prepared = writer.prepare(table, summary={}, now_ms=world.tables.clock_ms())
        return Change(prepared.requirements, prepared.updates, prepared.snapshot)

    return swap(world.tables.main, propose, patience=world.tables.patience)


def test_what_is_committed_to_a_branch_is_there_alone_and_main_goes_on(world: Any) -> None:
    committer = world.begin()
    world.run(committer, {0: (0, 5)})
    head = world.load().current_snapshot()
    for number, offset in enumerate((100, 101)):
        append_aside(world, world.write(BatchKey(9, number), [(1, offset)]))

    table = world.load()
    assert table.current_snapshot() == head
    aside = table.metadata.refs["aside"].snapshot_id
    assert world.rows(snapshot_id=aside) == [(1, 100), (1, 101)]
    assert world.rows() == [(0, offset) for offset in range(5)]
    assert world.used_manifests() == world.manifests()


def test_a_branch_that_begins_while_main_moves_takes_a_sequence_number_of_its_own(world: Any) -> None:
    committer = world.begin()
    world.run(committer, {0: (0, 5)})
    world.catalog.next_meets(world.foreign_append)
    made = append_aside(world, ())

    numbers = [s.sequence_number for s in world.load().metadata.snapshots]
    assert len(set(numbers)) == len(numbers)
    assert made.sequence_number == max(numbers)
