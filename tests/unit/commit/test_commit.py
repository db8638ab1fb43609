"""A batch lands with its marker in one snapshot, once, whatever the catalog answers."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError
from pyiceberg.types import StringType
from sqlalchemy.exc import OperationalError

from frazil.commit.history import deleted_by_others
from frazil.commit.marker import BatchKey
from frazil.errors import AccessDenied, CommitUnavailable, Fenced, StaleBatch
from frazil.offsets.spans import SourceIdentity
from tests.java_rules import check_times

MAIN = "demo.events"
DEAD = "demo.events_dead_letters"


def test_a_commit_lands_rows_and_marker_in_one_snapshot(world):
    committer = world.begin()
    before = world.snapshots()

    marker = world.run(committer, {0: (0, 3), 1: (0, 2)})

    assert world.snapshots() == before + 1
    assert world.rows() == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert world.marker() == marker
    assert (marker.key, marker.settled) == (BatchKey(1, 1), BatchKey(1, 1))
    assert marker.offsets == {("events", 0): 3, ("events", 1): 2}
    assert marker.snapshot_id == world.load().current_snapshot().snapshot_id


def test_a_snapshot_summary_contains_the_batch_and_its_counts(world):
    committer = world.begin()
    world.run(committer, {0: (0, 3), 1: (0, 2)}, rejected={0: [1]})

    summary = world.load().current_snapshot().summary
    assert (
        summary.additional_properties
        | {
            "frazil.stream": "events",
            "frazil.epoch": "1",
            "frazil.batch-id": "1",
            "frazil.records": "4",
            "frazil.rejected": "1",
            "frazil.watermark-ms": "1388397660000",
            "max-event-time": "2013-12-30T10:02:00+00:00",
            "frazil.commit-record": world.tables.journals.path(BatchKey(1, 1)),
            "added-records": "4",
            "total-records": "4",
        }
        == summary.additional_properties
    )


def test_a_summary_stays_below_4_kb_with_2000_partitions(world):
    world.starts = {("events", p): 0 for p in range(2000)}
    committer = world.begin()

    world.run(committer, dict.fromkeys(range(2000), (0, 1)))

    summary = world.load().current_snapshot().summary
    assert len(json.dumps(summary.model_dump())) < 4096
    assert len(world.marker().offsets) == 2000


@pytest.mark.parametrize("rejected", [{}, {0: [0, 1]}], ids=["a tick", "a batch of dead letters alone"])
def test_no_marker_changes_without_a_snapshot(world, rejected):
    committer = world.begin()
    for handle in (world.load, world.load_dead_letters):
        assert handle().current_snapshot() is not None
    before = world.load().current_snapshot()
    ranges = {0: (0, 2)} if rejected else {}

    marker = world.run(committer, ranges, rejected=rejected)

    head = world.load().current_snapshot()
    assert head.parent_snapshot_id == before.snapshot_id
    assert marker.snapshot_id == head.snapshot_id
    assert marker.key == (1, 1)
    assert world.rows() == []


def test_a_commit_with_a_lost_response_takes_effect_once(world):
    committer = world.begin()
    world.catalog.next_answer_is_lost(MAIN)

    marker = world.run(committer, {0: (0, 3)})

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]
    assert world.marker() == marker
    assert world.used_manifests() == world.manifests()


def test_a_commit_that_fails_before_its_effect_is_retried(world):
    committer = world.begin()
    world.catalog.next_fails_before(ConnectionError("refused"), MAIN)
    world.catalog.next_fails_before(CommitStateUnknownException("502"), MAIN)

    world.run(committer, {0: (0, 3)})

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]
    assert world.used_manifests() == world.manifests()


def test_a_commit_that_lands_after_it_was_reported_failed_lands_once(world):
    committer = world.begin()
    world.catalog.next_lands_late(MAIN)

    world.run(committer, {0: (0, 3)})

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]
    assert world.used_manifests() == world.manifests()
    world.run(committer, {0: (3, 4)})
    assert len(world.rows()) == 4


@pytest.mark.parametrize("event", ["foreign_append", "compact"])
def test_a_conflict_is_tried_again_with_the_same_files(world, event):
    committer = world.begin()
    world.run(committer, {0: (0, 2)})
    journal = world.stage(committer, {0: (2, 4)})
    staged = world.parquet_files()
    world.catalog.next_meets(getattr(world, event), MAIN)

    committer.commit(journal)

    ours = [row for row in world.rows() if row[0] == 0]
    assert ours == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert {f.path.removeprefix("file://") for f in journal.files} <= staged
    assert world.catalog.attempts[-2:] == [MAIN, MAIN]
    assert world.used_manifests() == world.manifests()


def test_a_conflict_that_pyiceberg_reports_is_tried_again(world):
    committer = world.begin()
    world.catalog.next_fails_before(CommitFailedException("another was faster"), MAIN, times=3)

    world.run(committer, {0: (0, 1)})

    assert world.rows() == [(0, 0)]
    assert len(world.time.waits) == 3


def test_a_locked_sqlite_catalog_is_tried_again(world):
    committer = world.begin()
    world.catalog.next_fails_before(OperationalError("UPDATE", {}, Exception("database is locked")), MAIN)

    world.run(committer, {0: (0, 1)})

    assert world.rows() == [(0, 0)]


def test_a_catalog_that_stays_unavailable_raises_commit_unavailable(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 1)})
    world.catalog.next_fails_before(ConnectionError("refused"), times=10_000)

    with pytest.raises(CommitUnavailable, match=r"failed for 60 s.*refused.*journal are kept"):
        committer.commit(journal)

    assert world.time.now_s >= 60
    assert max(world.time.waits) <= 5
    assert {f.path.removeprefix("file://") for f in journal.files} <= world.parquet_files()


def test_a_commit_that_always_loses_races_raises_commit_unavailable(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 1)})
    world.catalog.next_fails_before(CommitFailedException("another was faster"), times=10_000)

    with pytest.raises(CommitUnavailable, match="lost every race for 60 s"):
        committer.commit(journal)


def test_a_commit_that_the_catalog_confirms_and_forgets_is_named_and_committed_again_by_the_next_writer(world):
    committer = world.begin()
    world.run(committer, {0: (0, 2)})
    before = world.load()
    world.run(committer, {0: (2, 4)}, rejected={0: [3]})
    forgotten = world.load().current_snapshot().snapshot_id
    key = BatchKey(committer.epoch, world.marker().key.batch + 1)
    waiting = world.journal(key, {0: (4, 6)}, world.write(key, [(0, 4), (0, 5)]), seen=committer.newest_dead_letters())
    assert world.tables.journals.put(waiting)
    world.catalog.go_back(before)
    reported = []
    policy = dataclasses.replace(world.time.retry_policy(), report=lambda *failed: reported.append(failed))
    committer._tables = dataclasses.replace(committer._tables, retry_policy=policy)

    with pytest.raises(CommitUnavailable) as error:
        committer.commit(waiting)

    returned = before.current_snapshot().snapshot_id
    cause = f"older state of table demo.events: snapshot {returned}, although it had confirmed snapshot {forgotten}"
    assert f"the catalog 'lake' returns an {cause}, for 60 s. The staged files" in str(error.value)
    assert reported
    assert all(cause in sentence for sentence, _ in reported), "it did not lose races"
    view = world.view()
    second = world.take_over(view)
    assert [journal.key for journal in world.settle(second, view).committed] == [(1, 2), (1, 3)]
    assert (world.rows(), world.dead_letters()) == ([(0, n) for n in (0, 1, 2, 4, 5)], [(0, 3)])


def test_a_commit_that_the_catalog_confirms_and_replaces_with_another_writers_is_committed_again(world):
    committer = world.begin()
    world.run(committer, {0: (0, 2)})
    before = world.load()
    world.run(committer, {0: (2, 4)})
    key = BatchKey(committer.epoch, world.marker().key.batch + 1)
    waiting = world.journal(key, {0: (4, 6)}, world.write(key, [(0, 4), (0, 5)]))
    assert world.tables.journals.put(waiting)
    world.catalog.go_back(before)
    world.foreign_append(7)

    with pytest.raises(StaleBatch):
        committer.commit(waiting)

    view = world.view()
    second = world.take_over(view)
    assert [journal.key for journal in world.settle(second, view).committed] == [(1, 2), (1, 3)]
    assert world.rows() == [*((0, n) for n in range(6)), (99, 7)]


@pytest.mark.parametrize("error", [ForbiddenError("403"), PermissionError("denied")])
def test_a_commit_without_permission_is_not_retried(world, error):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 1)})
    tried = len(world.catalog.attempts)
    world.catalog.next_fails_before(error, MAIN)

    with pytest.raises(AccessDenied, match=r"frazil is not permitted to commit to table demo\.events"):
        committer.commit(journal)

    assert len(world.catalog.attempts) == tried + 1


def test_a_table_that_was_dropped_ends_the_writer(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 1)})
    world.catalog.inner.drop_table(MAIN)

    with pytest.raises(CommitUnavailable, match="no longer exists"):
        committer.commit(journal)


def test_a_writer_does_not_write_to_a_recreated_table(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 1)})
    schema, spec = world.load().schema(), world.load().spec()
    world.catalog.inner.drop_table(MAIN)
    world.catalog.inner.create_table(MAIN, schema, partition_spec=spec)

    with pytest.raises(Fenced, match="was forgotten"):
        committer.commit(journal)

    assert world.rows() == []


def test_a_batch_committed_twice_is_in_the_table_once(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})

    first = committer.commit(journal)
    second = committer.commit(journal)

    assert first == second
    assert world.rows() == [(0, 0), (0, 1), (0, 2)]


def test_a_batch_that_leaves_a_gap_is_refused(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (5, 8)})

    with pytest.raises(StaleBatch, match=r"\{'events-0': \(5, 0\)\}"):
        committer.commit(journal)

    assert world.rows() == []


def test_a_batch_that_overlaps_is_refused(world):
    committer = world.begin()
    world.run(committer, {0: (0, 3)})
    journal = world.stage(committer, {0: (2, 5), 1: (0, 2)})

    with pytest.raises(StaleBatch):
        committer.commit(journal)

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("crashes", [False, True])
def test_a_column_that_was_dropped_and_added_again_after_staging_loses_no_value(world, crashes: bool):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})
    with world.load().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("name")
    with world.load().update_schema() as update:
        update.add_column("name", StringType())
    assert world.tables.journals.put(journal)
    if crashes:
        committer = world.begin()
    else:
        with pytest.raises(StaleBatch):
            committer.commit(journal)
    assert world.rows() == [], "it is staged again, by the table's new schema"


def test_a_new_partition_begins_at_its_read_position_and_holds_the_watermark(world):
    committer = world.begin()
    first = world.run(committer, {0: (0, 3), 1: (0, 3)})
    journal = dataclasses.replace(
        world.stage(committer, {0: (3, 5), 1: (3, 5)}),
        offsets_after={("events", 0): 5, ("events", 1): 5, ("events", 2): 40},
    )

    second = committer.commit(journal)
    third = world.run(committer, {2: (40, 42)})

    assert second.offsets["events", 2] == 40
    assert second.watermark_us == first.watermark_us
    assert third.offsets["events", 2] == 42
    assert third.watermark_us > first.watermark_us


def test_the_watermark_waits_for_a_topic_that_appeared_while_a_batch_was_staged(world):
    committer = world.begin()
    first = world.run(committer, {0: (0, 3), 1: (0, 3)})
    seen = SourceIdentity(world.source.cluster_id, {**world.source.topic_ids, "new": "id-new"})
    journal = dataclasses.replace(world.stage(committer, {0: (3, 5), 1: (3, 5)}), source=seen)

    second = committer.commit(journal)
    idle = dataclasses.replace(
        world.stage(committer, {0: (5, 6), 1: (5, 6)}),
        source=seen,
        offsets_after={("events", 0): 6, ("events", 1): 6, ("new", 0): 0},
        idle=frozenset({("new", 0)}),
    )

    assert second.watermark_us == first.watermark_us
    assert committer.commit(idle).watermark_us > first.watermark_us


def test_a_clock_that_goes_back_keeps_all_times_of_the_metadata_in_order(world):
    committer = world.begin()
    world.run(committer, {0: (0, 1)})
    world.clock_ms -= 3_600_000

    world.run(committer, {0: (1, 2)})
    committer = world.begin()
    world.run(committer, {0: (2, 3)})

    metadata = world.load().metadata
    times = [s.timestamp_ms for s in sorted(metadata.snapshots, key=lambda s: s.sequence_number)]
    assert times == sorted(set(times))
    assert metadata.last_updated_ms == times[-1]
    check_times(metadata)
    assert world.rows() == [(0, 0), (0, 1), (0, 2)]


def test_the_retention_that_an_owner_set_on_the_branch_survives_a_commit(world):
    world.begin()
    head = world.load().current_snapshot().snapshot_id
    world.move_branch(head, max_ref_age_ms=11, max_snapshot_age_ms=22, min_snapshots_to_keep=33)
    committer = world.begin()

    world.run(committer, {0: (0, 1)})

    kept = world.load().metadata.refs["main"]
    assert (kept.max_ref_age_ms, kept.max_snapshot_age_ms, kept.min_snapshots_to_keep) == (11, 22, 33)
    assert world.rows() == [(0, 0)]


def test_manifests_without_live_files_are_not_carried_into_the_next_snapshot(world):
    committer = world.begin()
    world.run(committer, {0: (0, 3)})
    world.load().delete()  # as after a compaction: the manifest stays for one snapshot, and says what is gone
    assert [m.has_added_files() or m.has_existing_files() for m in _manifests(world.load())] == [False]

    world.run(committer, {0: (3, 5)})

    assert world.rows() == [(0, 3), (0, 4)]
    assert len(_manifests(world.load())) == 1


def test_dead_letters_are_committed_before_their_batch(world):
    committer = world.begin()
    tried = len(world.catalog.attempts)

    world.run(committer, {0: (0, 4)}, rejected={0: [1, 2]})

    assert world.catalog.attempts[tried:] == [DEAD, MAIN]
    assert (world.rows(), world.dead_letters()) == ([(0, 0), (0, 3)], [(0, 1), (0, 2)])
    assert world.marker().offsets["events", 0] == 4


def test_a_batch_without_dead_letters_does_not_touch_their_table(world):
    committer = world.begin()
    before = world.load_dead_letters().metadata

    world.run(committer, {0: (0, 4)})

    assert world.load_dead_letters().metadata == before


def test_a_lost_response_of_the_dead_letter_table_leaves_one_copy_of_each_row(world):
    committer = world.begin()
    world.catalog.next_answer_is_lost(DEAD)

    world.run(committer, {0: (0, 4)}, rejected={0: [1, 2]})

    assert (world.rows(), world.dead_letters()) == ([(0, 0), (0, 3)], [(0, 1), (0, 2)])


def test_dead_letters_of_a_stale_batch_never_land(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (7, 9)}, rejected={0: [8]})

    with pytest.raises(StaleBatch):
        committer.commit(journal)

    assert world.dead_letters() == []


def test_dead_letters_that_landed_are_counted_and_not_written_again(world):
    """The main table refused a commit after the dead letters landed, so the records are staged again."""
    first = world.begin()
    journal = world.stage(first, {0: (0, 4)}, rejected={0: [1]})
    world.commit_dead_letters(first, journal)
    second = world.begin()

    assert list(second.existing_dead_letters(world.marker())) == [("events", 0)]
    marker = world.run(second, {0: (0, 6)}, rejected={0: [1, 5]})

    assert world.dead_letters() == [(0, 1), (0, 5)]
    assert world.rows() == [(0, 0), (0, 2), (0, 3), (0, 4)]
    assert marker.offsets["events", 0] == 6
    assert world.load().current_snapshot().summary["frazil.rejected"] == "2"


def test_manifests_are_kept_while_their_commit_may_still_land(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})
    world.catalog.next_lands_late(MAIN)
    world.catalog.next_fails_before(ConnectionError("refused"), MAIN, times=10_000)
    with pytest.raises(CommitUnavailable):
        committer.commit(journal)

    world.catalog.faults.clear()
    world.catalog.land_now()

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]
    assert world.marker().settled == journal.key


def test_manifests_that_can_land_no_more_are_removed(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})
    world.catalog.next_meets(lambda: world.take_over(world.view()), MAIN)

    with pytest.raises(Fenced):
        committer.commit(journal)

    assert world.used_manifests() == world.manifests()


def test_manifests_of_a_commit_that_landed_and_was_expired_are_kept(world):
    """A writer is paused before its answer arrives; others append, expire and take over; then the writer continues."""
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})

    def lost(effect):
        effect()
        world.take_over(world.view())
        world.expire_all_but_newest()
        raise ConnectionError("the answer was lost")

    world.catalog.faults.append((MAIN, lost))
    with pytest.raises(Fenced):
        committer.commit(journal)

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]


def test_a_running_commit_cannot_land_after_a_rollback_to_its_base(world):
    """The branch and the requirement are the same again; only the sequence number refuses the commit."""
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})
    world.catalog.next_lands_late(MAIN)

    def others(effect):
        world.foreign_append()
        return effect()

    world.catalog.faults.append((MAIN, others))
    committer.commit(journal)
    world.roll_back(2)
    before = world.load().metadata
    world.catalog.land_now()

    assert world.load().metadata == before


def test_manifests_survive_a_rollback_after_which_a_late_commit_may_land(world):
    """Moving the branch adds no snapshot: a commit based on its old head may still land if the branch moves back."""
    committer = world.begin()
    world.run(committer, {0: (0, 1)})
    journal = world.stage(committer, {0: (1, 3)})
    head = world.load().current_snapshot().snapshot_id
    world.catalog.next_lands_late(MAIN)
    world.catalog.next_meets(lambda: world.roll_back(1), MAIN)
    with pytest.raises(Exception, match="rolled back"):
        committer.commit(journal)

    world.move_branch(head)
    world.catalog.land_now()

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]


def test_rows_that_merges_of_other_streams_deleted_are_counted_while_the_history_is_whole(world):
    world.run(world.begin(), {0: (0, 1)})

    def merge(deleted: int, **names: str) -> None:
        table = world.load()
        summary = {f"frazil.{name.replace('_', '-')}": stream for name, stream in names.items()}
        table.append(table.scan().to_arrow(), snapshot_properties={**summary, "frazil.deleted": f"{deleted}"})

    merge(3, stream="another")
    merge(5, stream=world.stream)
    merge(7, backfill_stream=world.stream)
    assert deleted_by_others(world.load().metadata, world.stream) == 3
    world.expire_all_but_newest()
    assert deleted_by_others(world.load().metadata, world.stream) is None


def _manifests(table):
    return table.current_snapshot().manifests(table.io)
