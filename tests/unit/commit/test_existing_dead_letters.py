"""A record read again with another schema is in exactly one of the two tables, once."""

from __future__ import annotations

import dataclasses

import pytest
from pyroaring import BitMap64

from frazil.commit import committer
from frazil.commit.journal import NO_DEAD_LETTERS
from frazil.commit.marker import BatchKey
from frazil.commit.marker_changes import forget, reset
from frazil.commit.reset_plan import read_state_before_reset
from frazil.errors import CommitUnavailable, RolledBack, StaleBatch
from tests.unit.commit.conftest import World

P0, P1 = ("events", 0), ("events", 1)


def check_each_once(world: World, end: int) -> None:
    assert sorted(world.rows() + world.dead_letters()) == [(0, o) for o in range(end)]


def test_after_a_rollback_a_record_rejected_by_a_stricter_schema_becomes_a_dead_letter(world: World) -> None:
    """The table is emptied, a column becomes required, and all is read again: 5 and 7 lack its value."""
    writer = world.begin()
    begun = world.load().current_snapshot().snapshot_id
    world.run(writer, {0: (0, 10)}, rejected={0: [3]})
    world.load().manage_snapshots().rollback_to_snapshot(begun).commit()
    reset(world.tables, target={P0: 0, P1: 0}, source=world.source, seen=read_state_before_reset(world.tables))

    world.run(world.begin(), {0: (0, 10)}, rejected={0: [3, 5, 7]})

    assert world.dead_letters() == [(0, 3), (0, 5), (0, 7)]
    check_each_once(world, 10)


def test_a_column_that_is_required_between_the_two_commits_makes_a_dead_letter(world: World) -> None:
    writer = world.begin()
    journal = world.stage(writer, {0: (0, 10)}, rejected={0: [3]})
    assert world.tables.journals.put(journal)

    def require() -> None:
        with world.load().update_schema(allow_incompatible_changes=True) as update:
            update.update_column("name", required=True)

    world.catalog.next_meets(require, "demo.events")
    with pytest.raises(StaleBatch):
        writer.commit(journal)

    world.run(world.begin(), {0: (0, 10)}, rejected={0: [3, 5]})

    assert world.dead_letters() == [(0, 3), (0, 5)]
    check_each_once(world, 10)


def test_a_dead_letter_remains_one_although_a_wider_schema_would_accept_it(world: World) -> None:
    """Its journal was lost between the two commits, and an int has become a long."""
    writer = world.begin()
    journal = world.stage(writer, {0: (0, 10)}, rejected={0: [3]})
    assert world.tables.journals.put(journal)
    world.catalog.next_fails_before(ConnectionError("x"), "demo.events", times=100_000)
    with pytest.raises(CommitUnavailable):
        writer.commit(journal)
    world.catalog.faults.clear()
    world.lose_journal(journal.key)

    marker = world.run(world.begin(), {0: (0, 10)})

    assert world.dead_letters() == [(0, 3)]
    check_each_once(world, 10)
    assert marker.offsets[P0] == 10
    assert world.load().current_snapshot().summary["frazil.rejected"] == "1", "as the audit counts them"


def test_the_dead_letter_table_is_read_only_if_it_is_ahead_of_the_marker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []
    real = committer.tally_rows
    monkeypatch.setattr(committer, "tally_rows", lambda *args: requested.append(1) or real(*args))
    writer = world.begin()
    world.run(writer, {0: (0, 10)}, rejected={0: [3]})
    world.run(writer, {0: (10, 20)}, rejected={0: [12]})
    world.run(world.begin(), {0: (20, 30)})
    assert not requested
    reset(world.tables, target={P0: 0, P1: 0}, source=world.source, seen=read_state_before_reset(world.tables))
    writer = world.begin()
    for start in range(0, 40, 10):
        world.run(writer, {0: (start, start + 10)}, rejected={0: [o for o in (3, 12, 31) if start <= o < start + 10]})
    assert len(requested) == 1, "once in the epoch"
    assert world.dead_letters() == [(0, 3), (0, 12), (0, 31)]


def test_a_batch_is_staged_again_when_dead_letters_were_committed_while_it_was_read(world: World) -> None:
    """A paused writer journaled the same records late."""
    writer = world.begin()
    early = world.stage(writer, {0: (0, 10)}, rejected={0: [3]})
    world.commit_dead_letters(writer, early)
    for rejected in ([3], []):
        staged = world.stage(writer, {0: (0, 10)}, rejected={0: rejected})
        late = dataclasses.replace(staged, key=BatchKey(writer.epoch, 2), newest_dead_letters=NO_DEAD_LETTERS)
        with pytest.raises(StaleBatch, match="dead letters were committed after"):
            writer.commit(late)
    assert world.dead_letters() == [(0, 3)]


def test_dead_letters_removed_by_a_rollback_land_again_with_the_journaled_batch(world: World) -> None:
    """The writer died between the two commits, and a user rolled the first back."""
    writer = world.begin()
    world.run(writer, {0: (0, 5)}, rejected={0: [1]})
    journal = world.stage(writer, {0: (5, 10)}, rejected={0: [7]})
    assert world.tables.journals.put(journal)
    world.commit_dead_letters(writer, journal)
    world.roll_back(1, world.load_dead_letters())
    with pytest.raises(RolledBack):
        world.take_over()
    seen = read_state_before_reset(world.tables)
    reset(world.tables, target=seen.held, source=world.source, seen=seen)

    committer = world.begin()
    if world.marker().offsets[P0] < 10:
        world.run(committer, {0: (5, 10)}, rejected={0: [7]})

    assert world.dead_letters() == [(0, 1), (0, 7)]
    check_each_once(world, 10)


def test_dead_letters_of_a_stream_that_shares_the_table_are_not_its_own(world: World) -> None:
    """Another stream reads the same topic, and rejects records that this stream accepts."""
    world.catalog.inner.create_table("demo.others", world.load().schema(), partition_spec=world.load().spec())
    other = dataclasses.replace(world, stream="other", table="demo.others")
    world.run(world.begin(), {0: (0, 10)}, rejected={0: [3]})
    other.run(other.begin(), {0: (0, 10)}, rejected={0: [5]})
    for each in (world, other):
        reset(each.tables, target={P0: 0, P1: 0}, source=each.source, seen=read_state_before_reset(each.tables))
        committer = each.begin()
        held = committer.existing_dead_letters(each.marker())
        assert {tp: list(BitMap64.deserialize(o)) for tp, o in held.items()} == {P0: [3 if each is world else 5]}


def test_a_stream_that_was_forgotten_finds_its_dead_letters_again(world: World) -> None:
    world.run(world.begin(), {0: (0, 10)}, rejected={0: [3]})
    forget(world.tables, state=str(world.root / "nothing"))
    world.load().overwrite(world.load().scan(limit=0).to_arrow())
    world.run(world.begin(), {0: (0, 10)}, rejected={0: [3, 5]})
    assert world.dead_letters() == [(0, 3), (0, 5)]
    check_each_once(world, 10)
