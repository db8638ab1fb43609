"""The marker's snapshot must be an ancestor of the branch, because a rollback does not roll back properties."""

from __future__ import annotations

import pytest
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from frazil.errors import RolledBack


def filled(world):
    committer = world.begin()
    for offset in range(3):
        world.run(committer, {0: (offset, offset + 1)})
    return committer


def test_a_rollback_by_two_snapshots_stops_the_writer_with_the_remedies(world):
    committer = filled(world)
    world.roll_back(2)
    before = world.load().metadata

    with pytest.raises(RolledBack, match=r"frazil reset events --to table.*frazil reset events --to marker"):
        world.run(committer, {0: (3, 4)})

    assert world.load().metadata == before
    assert world.rows() == [(0, 0)]


def test_a_rollback_is_seen_by_the_next_take_over(world):
    filled(world)
    world.roll_back(2)

    with pytest.raises(RolledBack):
        world.take_over()


def test_a_rollback_is_detected_below_snapshots_that_other_programs_appended_later(world):
    committer = filled(world)
    world.roll_back(2)
    world.foreign_append()

    with pytest.raises(RolledBack):
        world.run(committer, {0: (3, 4)})


def test_a_rollback_of_the_dead_letter_table_stops_the_writer_too(world):
    committer = world.begin()
    for offset in range(3):
        world.run(committer, {0: (offset, offset + 1)}, rejected={0: [offset]})
    world.roll_back(2, world.load_dead_letters())

    with pytest.raises(RolledBack, match="table demo.events_dead_letters was replaced, or rolled back"):  # noqa: RUF043
        world.run(committer, {0: (3, 4)}, rejected={0: [3]})


def test_a_rollback_to_the_snapshot_of_the_marker_is_accepted(world):
    committer = filled(world)
    world.foreign_append()
    world.roll_back(1)

    world.run(committer, {0: (3, 4)})

    assert world.rows() == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_writer_continues_after_earlier_snapshots_were_expired(world):
    committer = filled(world)
    world.foreign_append()
    world.foreign_append()
    world.expire_all_but_newest()

    world.run(committer, {0: (3, 4)})
    world.run(world.begin(), {0: (4, 5)})

    assert [row for row in world.rows() if row[0] == 0] == [(0, offset) for offset in range(5)]


def replaced(world, keep: int) -> None:
    """The table after `CREATE OR REPLACE TABLE … AS SELECT … LIMIT keep`, which keeps properties and old snapshots."""
    table = world.load()
    rows = table.scan().to_arrow().slice(0, keep)
    world.catalog.inner.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name="main"),))
    world.load().append(rows)


@pytest.mark.parametrize("keep", [0, 2])
def test_a_table_that_another_engine_replaced_stops_the_writer_and_the_next_start(world, keep: int):
    committer = filled(world)
    replaced(world, keep)

    for write in (lambda: world.run(committer, {0: (3, 4)}), world.take_over):
        with pytest.raises(RolledBack, match="was replaced"):
            write()

    assert len(world.rows()) == keep


def test_a_table_replaced_between_foreign_commits_stops_the_writer(world):
    committer = filled(world)
    world.foreign_append()
    replaced(world, 2)
    world.foreign_append()

    with pytest.raises(RolledBack, match="was replaced"):
        world.run(committer, {0: (3, 4)})


def test_a_table_that_was_replaced_after_a_commit_to_a_branch_stops_the_writer(world):
    committer = filled(world)
    table = world.load()
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id, "review").commit()
    for _ in range(2):
        world.load().append(world.load().scan().to_arrow().slice(0, 1), branch="review")
    replaced(world, 2)

    with pytest.raises(RolledBack, match="was replaced"):
        world.run(committer, {0: (3, 4)})


def test_the_writer_continues_after_a_table_was_emptied_and_expired(world):
    committer = filled(world)
    world.load().delete()
    world.expire_all_but_newest()
    world.foreign_append()
    world.foreign_append()
    world.expire_all_but_newest()

    world.run(committer, {0: (3, 4)})


def test_the_writer_continues_after_a_table_was_emptied_next_to_a_branch_and_expired(world):
    """The branch's snapshot comes right before the oldest one of main that is left, and is no predecessor of it."""
    committer = filled(world)
    table = world.load()
    head = table.metadata.current_snapshot_id
    table.manage_snapshots().create_branch(head, "review").commit()
    world.load().delete()
    world.load().append(world.load().scan(snapshot_id=head).to_arrow().slice(0, 1), branch="review")
    world.foreign_append()
    table = world.load()
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    table.maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in kept]
    ).commit()

    world.run(committer, {0: (3, 4)})


def test_the_writer_continues_after_another_engine_overwrote_every_row(world):
    committer = filled(world)
    table = world.load()
    table.overwrite(table.scan().to_arrow().slice(0, 1))
    world.expire_all_but_newest()

    world.run(committer, {0: (3, 4)})


def test_the_writer_continues_after_a_compaction_and_an_expiry(world):
    committer = filled(world)
    world.compact()
    world.expire_all_but_newest()

    world.run(committer, {0: (3, 4)})

    assert world.rows() == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_snapshots_of_others_between_those_of_the_writer_are_accepted(world):
    committer = world.begin()
    for offset in range(3):
        world.foreign_append(1_000_000 + offset)
        world.run(committer, {0: (offset, offset + 1)})

    assert [row for row in world.rows() if row[0] == 0] == [(0, 0), (0, 1), (0, 2)]
    assert len(world.rows()) == 6
