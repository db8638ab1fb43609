"""Staged files keep the spec and the schema they were written with, even if the table changes meanwhile."""

from __future__ import annotations

import pytest
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import StringType

from frazil.errors import StaleBatch

HALF_PAST_TEN = "ts >= '2013-12-30T10:30:00+00:00'"


def to_hours(world):
    with world.load().update_spec() as update:
        update.remove_field("ts_day")
        update.add_field("ts", HourTransform(), "ts_hour")


@pytest.mark.parametrize("when", ["before the commit", "while it is under way"])
def test_rows_staged_by_day_are_found_by_time_after_the_spec_became_hour(world, when):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 60)})
    if when == "before the commit":
        to_hours(world)
    else:
        world.catalog.next_meets(lambda: to_hours(world), "demo.events")

    committer.commit(journal)

    assert world.rows(row_filter=HALF_PAST_TEN) == [(0, offset) for offset in range(30, 60)]
    assert isinstance(world.load().specs()[journal.files[0].spec_id].fields[0].transform, DayTransform)


def test_files_of_both_specs_live_in_one_table(world):
    committer = world.begin()
    world.run(committer, {0: (0, 60)})
    to_hours(world)
    committer = world.begin()
    world.run(committer, {0: (60, 90)})

    assert world.rows(row_filter=HALF_PAST_TEN) == [(0, offset) for offset in range(30, 90)]
    assert {f.spec_id for f in map(_data_file, world.load().scan().plan_files())} == {0, 1}


def _data_file(task):
    return task.file


def test_a_column_added_while_a_batch_is_staged_does_not_fail_its_commit(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})
    with world.load().update_schema() as update:
        update.add_column("more", StringType())

    committer.commit(journal)

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]
    assert world.load().scan().to_arrow()["more"].to_pylist() == [None] * 3


@pytest.mark.parametrize("change", ["a new column", "an optional column made required"])
def test_a_column_made_required_after_staging_makes_the_batch_stale(world, change):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)}, rejected={0: [1]})
    with world.load().update_schema(allow_incompatible_changes=True) as update:
        if change == "a new column":
            update.add_column("must", StringType(), required=True)
        else:
            update.make_column_optional("name")
            update.update_column("name", required=True)
    world.tables.main.forget()

    with pytest.raises(StaleBatch, match="was staged for a schema or partition spec that the table no longer has"):
        committer.commit(journal)

    assert world.load().scan().to_arrow().num_rows == 0
    assert world.dead_letters() == []


def test_rows_staged_before_a_column_was_renamed_keep_their_values(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})
    with world.load().update_schema() as update:
        update.rename_column("name", "label")
    with world.load().update_schema() as update:
        update.add_column("name", StringType())

    committer.commit(journal)

    rows = world.load().scan().to_arrow()
    assert (rows["label"].null_count, rows["name"].null_count) == (0, 3)


def test_a_column_dropped_while_a_batch_is_staged_does_not_fail_its_commit(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 3)})
    with world.load().update_schema() as update:
        update.delete_column("name")

    committer.commit(journal)

    assert world.rows() == [(0, 0), (0, 1), (0, 2)]
