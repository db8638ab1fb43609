"""Commits to a branch: main continues, sequence numbers are unique, and a lost race is not an outage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.compare_and_swap import Change, swap
from frazil.commit.failed_attempts import TableNames, classify_error
from frazil.commit.marker import BatchKey
from frazil.commit.snapshot import SnapshotWriter
from frazil.ingest.contract import StagedFile

MAIN = "demo.events"


def append_aside(world: Any, files: Sequence[StagedFile]) -> Snapshot:
    """Append one snapshot to the branch `aside`."""
    writer = SnapshotWriter(files, branch="aside")

    def propose(table: Table) -> Change[Snapshot]:
        prepared = writer.prepare(table, summary={}, now_ms=world.tables.clock_ms())
        return Change(prepared.requirements, prepared.updates, prepared.snapshot)

    return swap(world.tables.main, propose, retry_policy=world.tables.retry_policy)


def test_rows_committed_to_a_branch_are_only_on_it_and_main_continues(world: Any) -> None:
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


def test_a_branch_created_while_main_moves_gets_a_unique_sequence_number(world: Any) -> None:
    committer = world.begin()
    world.run(committer, {0: (0, 5)})
    world.catalog.next_meets(world.foreign_append)
    made = append_aside(world, ())

    numbers = [s.sequence_number for s in world.load().metadata.snapshots]
    assert len(set(numbers)) == len(numbers)
    assert made.sequence_number == max(numbers)


def test_a_batch_whose_sequence_number_a_branch_took_lost_a_race_and_reports_no_outage(
    world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    committer = world.begin()
    world.run(committer, {0: (0, 1)})
    aside = world.write(BatchKey(9, 0), [(1, 100)])
    world.catalog.next_meets(lambda: append_aside(world, aside), MAIN)
    with caplog.at_level(logging.INFO, "frazil.commit.compare_and_swap"):
        world.run(committer, {0: (1, 3)})
    (reported,) = [record for record in caplog.records if record.name == "frazil.commit.compare_and_swap"]
    assert reported.levelname == "INFO"
    assert reported.getMessage().startswith("commit to demo.events lost a race (ValueError: Cannot add snapshot with")
    assert world.rows() == [(0, offset) for offset in range(3)]


def test_a_landed_batch_is_found_although_its_sequence_number_is_reported_as_taken(world: Any) -> None:
    """A gateway that repeats a request may answer with what became of the repeated one."""
    committer = world.begin()

    def repeated(effect: Callable[[], Any]) -> Any:
        effect()
        raise ValueError("Cannot add snapshot with sequence number 2 older than last sequence number 2")

    world.catalog.faults.append((MAIN, repeated))
    world.run(committer, {0: (0, 3)})
    assert world.catalog.attempts.count(MAIN) == 2, "the take-over and the batch"
    assert world.rows() == [(0, offset) for offset in range(3)]


def test_an_unexpected_exception_of_a_commit_leaves_its_outcome_unknown() -> None:
    of = TableNames(("demo.events",))
    taken = ValueError("Cannot add snapshot with sequence number 2 older than last sequence number 2")
    for error, step in ((ValueError("no number"), "commit"), (taken, "prepare"), (OSError(str(taken)), "commit")):
        assert classify_error(error, step, of, 1.0).level == logging.WARNING
