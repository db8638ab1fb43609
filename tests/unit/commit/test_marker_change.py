"""Reset, adopt and forget on a real catalog: each is one swap, survives lost answers, and fences a running writer."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.exceptions import ForbiddenError

from frazil.commit.marker import BatchKey, Marker, property_name, read_marker
from frazil.commit.marker_changes import adopt, forget, reset
from frazil.commit.reset_plan import StateBeforeReset, read_state_before_reset
from frazil.errors import AccessDenied, AdoptionRequired, Fenced, MarkerUnreadable, RolledBack, WriterBusy
from frazil.offsets.spans import SourceIdentity

P0, P1 = ("events", 0), ("events", 1)


def reset_to(world: Any, target: dict[tuple[str, int], int], seen: StateBeforeReset | None = None) -> Marker:
    seen = seen or read_state_before_reset(world.tables)
    return reset(world.tables, target=target, source=world.source, seen=seen)


def roll_back(world: Any, snapshot_id: int) -> None:
    world.load().manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


def edit_marker(table: Any, stream: str) -> None:
    with table.transaction() as change:
        change.set_properties({property_name(stream): "edited by hand"})


def test_a_reset_is_one_snapshot_with_the_marker_and_fences_a_running_writer(world: Any):
    running = world.begin()
    world.run(running, {0: (0, 10), 1: (0, 10)})
    before = world.snapshots()
    marker = reset_to(world, {P0: 4, P1: 20})
    assert marker.key == (2, 0)
    assert world.snapshots() == before + 1
    found = world.marker()
    assert (found.offsets, found.key.epoch) == ({P0: 4, P1: 20}, 2)
    assert found.snapshot_id == world.load().current_snapshot().snapshot_id
    assert world.dead_letter_marker().key.epoch == 2
    with pytest.raises(Fenced):
        running.commit(world.journal(BatchKey(1, 2), {0: (10, 12)}))
    world.run(world.begin(), {0: (4, 6), 1: (20, 21)})
    assert world.marker().offsets == {P0: 6, P1: 21}


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("first", [{P0: 0, P1: 0}, {P0: 90, P1: 90}])
def test_a_second_reset_knows_which_records_the_table_has(
    world: Any, first: dict[tuple[str, int], int], *, taken_over: bool
):
    world.run(world.begin(), {0: (0, 10), 1: (0, 20)})
    reset_to(world, first)
    if taken_over:
        world.begin()
    assert read_state_before_reset(world.tables).held == {P0: 10, P1: 20}


@pytest.mark.parametrize("table", ["demo.events", "demo.events_dead_letters"])
def test_a_reset_whose_answer_is_lost_or_late_is_done_once(world: Any, table: str):
    world.run(world.begin(), {0: (0, 10)})
    for fault in (world.catalog.next_answer_is_lost, world.catalog.next_lands_late):
        fault(table)
        epoch = world.marker().key.epoch
        reset_to(world, {P0: 4, P1: 0})
        world.catalog.land_now()
        assert (world.marker().key.epoch, world.dead_letter_marker().key.epoch) == (epoch + 1, epoch + 1)
    assert world.marker().offsets == {P0: 4, P1: 0}


def test_a_reset_succeeds_next_to_other_writers_of_the_table_and_leaves_no_unused_files(world: Any):
    world.run(world.begin(), {0: (0, 10)})
    world.catalog.next_meets(world.foreign_append, "demo.events")
    reset_to(world, {P0: 4, P1: 0})
    assert world.marker().offsets[P0] == 4
    assert (99, 1_000_000) in world.rows()
    assert world.manifests() == world.used_manifests()


def test_the_second_of_two_concurrent_forgets_leaves_no_manifests_of_its_lost_attempt(world: Any):
    world.run(world.begin(), {0: (0, 10)})
    other = world.view()
    state = world.tables.state
    world.catalog.next_meets(lambda: forget(other, state=state), "demo.events")
    forget(world.tables, state=state)
    assert world.manifests() == world.used_manifests()
    assert read_marker(world.load().properties, "events") is None


def test_a_reset_is_refused_if_the_stream_has_committed_since_the_check(world: Any):
    writer = world.begin()
    seen = read_state_before_reset(world.tables)
    world.run(writer, {0: (0, 10)})
    with pytest.raises(WriterBusy, match="frazil pause events"):
        reset_to(world, {P0: 4, P1: 0}, seen)
    assert world.marker().offsets[P0] == 10


def test_after_a_rollback_the_table_is_at_the_position_of_its_newest_remaining_batch(world: Any):
    writer = world.begin()
    world.run(writer, {0: (0, 10)})
    kept = world.load().current_snapshot().snapshot_id
    world.run(writer, {0: (10, 30), 1: (0, 5)})
    world.begin()  # a take-over carries no position: it is walked past
    roll_back(world, kept)
    seen = read_state_before_reset(world.tables)
    assert (seen.rolled_back, seen.held, seen.unknown) == (True, {P0: 10, P1: 0}, None)
    reset_to(world, dict(seen.held), seen)
    world.run(world.begin(), {0: (10, 30), 1: (0, 5)})
    assert world.rows() == [*((0, o) for o in range(30)), *((1, o) for o in range(5))]


def test_a_table_rolled_back_before_its_first_batch_has_the_start_position_of_the_stream(world: Any):
    world.starts = {P0: 7, P1: 3}
    writer = world.begin()
    begun = world.load().current_snapshot().snapshot_id
    world.run(writer, {0: (7, 10), 1: (3, 5)})
    roll_back(world, begun)
    assert read_state_before_reset(world.tables).held == {P0: 7, P1: 3}


def test_a_missing_commit_record_makes_the_table_s_position_unknown(world: Any):
    writer = world.begin()
    world.run(writer, {0: (0, 10)})
    kept = world.load().current_snapshot().snapshot_id
    journal = world.tables.journals.keys()[0]
    world.run(writer, {0: (10, 30)})
    roll_back(world, kept)
    world.tables.journals.delete([journal])
    seen = read_state_before_reset(world.tables)
    assert seen.held == {}
    assert "missing or unreadable" in str(seen.unknown)


def test_an_edited_marker_is_replaced_with_a_higher_epoch_and_commits_nothing_again(world: Any):
    world.run(world.begin(), {0: (0, 10)}, rejected={0: [3]})
    world.run(world.begin(), {0: (10, 20)}, rejected={0: [12]})
    edit_marker(world.load(), world.stream)
    edit_marker(world.load_dead_letters(), world.stream)
    with pytest.raises(MarkerUnreadable):
        world.marker()
    seen = read_state_before_reset(world.tables)
    assert (seen.marker, seen.held) == (None, {P0: 20, P1: 0})
    assert reset_to(world, dict(seen.held), seen).key.epoch == 3
    world.run(world.begin(), {0: (20, 22)})
    assert world.rows() == [(0, o) for o in range(22) if o not in {3, 12}]
    assert world.dead_letters() == [(0, 3), (0, 12)]


def test_a_waiting_journal_is_committed_after_a_reset_to_its_start_and_else_discarded(world: Any):
    for target, landed in ((10, 15), (12, 12)):
        writer = world.begin()
        if world.marker().offsets[P0] == 0:
            world.run(writer, {0: (0, 10)})
        world.tables.journals.put(world.stage(writer, {0: (world.marker().offsets[P0], 15)}))
        reset_to(world, {P0: target, P1: 0})
        world.begin()
        assert world.marker().offsets[P0] == landed
        reset_to(world, {P0: 10, P1: 0})


def test_dead_letters_that_are_read_again_are_not_written_twice(world: Any):
    writer = world.begin()
    world.run(writer, {0: (0, 10)}, rejected={0: [3, 8]})
    reset_to(world, {P0: 0, P1: 0})
    again = world.begin()
    world.run(again, {0: (0, 5), 1: (0, 2)}, rejected={0: [3], 1: [1]})
    world.run(again, {0: (5, 12)}, rejected={0: [8, 11]})
    assert world.dead_letters() == [(0, 3), (0, 8), (0, 11), (1, 1)]


def test_dead_letters_that_an_earlier_reset_skipped_are_written_when_they_are_read(world: Any):
    world.run(world.begin(), {0: (0, 10)})
    reset_to(world, {P0: 50, P1: 0})
    world.run(world.begin(), {0: (50, 60)}, rejected={0: [55]})
    reset_to(world, {P0: 10, P1: 0})
    world.run(world.begin(), {0: (10, 50)}, rejected={0: [20]})
    assert (0, 20) in world.dead_letters()


def test_a_rolled_back_dead_letter_table_is_accepted_and_its_dead_letters_are_written_again(world: Any):
    writer = world.begin()
    empty = world.load_dead_letters().current_snapshot().snapshot_id
    begun = world.load().current_snapshot().snapshot_id
    world.run(writer, {0: (0, 10)}, rejected={0: [3]})
    roll_back(world, begun)
    world.load_dead_letters().manage_snapshots().rollback_to_snapshot(empty).commit()
    with pytest.raises(RolledBack):
        world.take_over()
    reset_to(world, {P0: 0, P1: 0})
    world.run(world.begin(), {0: (0, 10)}, rejected={0: [3]})
    assert world.dead_letters() == [(0, 3)]
    assert len(world.rows()) == 9


def test_a_reset_to_a_recreated_topic_forgets_the_offsets_of_the_former_topic(world: Any):
    world.run(world.begin(), {0: (0, 10)}, rejected={0: [3]})
    world.source = SourceIdentity("cluster-1", {"events": "topic-2"})
    reset_to(world, {P0: 0, P1: 0})
    assert world.dead_letter_marker().offsets == {}
    world.run(world.begin(), {0: (0, 4)}, rejected={0: [3]})
    assert world.dead_letters() == [(0, 3), (0, 3)]


def test_a_reset_keeps_the_topic_id_for_positions_of_a_topic_that_is_not_read_now(world: Any):
    """The first writer declared both topics, and died before the dead-letter table had its epoch."""
    old, now = ("old", 0), world.source
    world.starts, both = {**world.starts, old: 7}, SourceIdentity("cluster-1", {"events": "topic-1", "old": "topic-2"})
    world.source = both
    world.catalog.next_fails_before(ForbiddenError("no"), "demo.events_dead_letters")
    with pytest.raises(AccessDenied):
        world.take_over()
    world.source = now
    world.begin()

    reset_to(world, {P0: 0, P1: 0})
    assert (world.dead_letter_marker().offsets[old], world.dead_letter_marker().source) == (7, both)
    world.source = both
    world.begin()
    assert world.dead_letter_marker().offsets[old] == 7


def test_an_adopted_table_takes_the_stream_and_a_second_adoption_changes_nothing(world: Any):
    world.foreign_append()
    with pytest.raises(AdoptionRequired):
        world.take_over()
    first = adopt(world.tables, offsets={P0: 5, P1: 0}, source=world.source)
    again = adopt(world.tables, offsets={P0: 9, P1: 9}, source=world.source)
    assert again == first == world.marker()
    assert first.adopted_rows == 1
    world.run(world.begin(), {0: (5, 7)})
    assert world.rows() == [(0, 5), (0, 6), (99, 1_000_000)]


def test_a_forgotten_stream_leaves_only_its_rows_and_its_writer_is_fenced(world: Any):
    running = world.begin()
    world.run(running, {0: (0, 10)}, rejected={0: [3]})
    rows = world.rows()
    late = world.journal(BatchKey(1, 2), {0: (10, 12)})
    state = f"{world.load().location()}/_frazil/{world.stream}"
    for table in ("demo.events", "demo.events_dead_letters"):
        world.catalog.next_answer_is_lost(table)
    assert forget(world.tables, state=state) == 1
    assert read_marker(world.load().properties, world.stream) is None
    assert read_marker(world.load_dead_letters().properties, world.stream) is None
    assert world.store.list_files(state) == []
    assert world.rows() == rows
    with pytest.raises(Fenced):
        running.commit(late)
    snapshots = world.snapshots()
    forget(world.tables, state=state)
    assert world.snapshots() == snapshots
    with pytest.raises(AdoptionRequired):
        world.take_over()


def test_snapshots_expired_by_pyiceberg_make_the_position_of_the_table_unknown(world: Any):
    """PyIceberg's expiry clears the parent of the oldest remaining snapshot: only its sequence number shows this."""
    writer = world.begin()
    world.run(writer, {0: (0, 10)})
    for _ in range(2):
        world.take_over()
    kept = world.load().current_snapshot().snapshot_id
    world.run(world.begin(), {0: (10, 30)})
    roll_back(world, kept)
    table = world.load()
    with table.maintenance.expire_snapshots() as expire:
        expire.by_ids([s.snapshot_id for s in table.snapshots() if s.snapshot_id != kept])
    assert world.load().metadata.snapshots[0].parent_snapshot_id is None
    seen = read_state_before_reset(world.tables)
    assert seen.held == {}
    assert "its earlier history has expired" in str(seen.unknown)


def test_a_reset_that_is_refused_at_its_first_attempt_leaves_no_file_behind(world: Any):
    """A user commits meanwhile, so the reset's first attempt cannot land, and then removes the permission."""
    world.run(world.begin(), {0: (0, 10)})
    seen = read_state_before_reset(world.tables)

    def overtake() -> None:
        world.foreign_append()
        raise ForbiddenError("read-only by now")

    world.catalog.next_meets(overtake, "demo.events")
    with pytest.raises(AccessDenied):
        reset_to(world, {P0: 0}, seen)
    assert world.manifests() == world.used_manifests()
