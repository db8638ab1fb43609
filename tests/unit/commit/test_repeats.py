"""A stream with dedupe: each row lands once despite kills, lost answers and conflicts; old files stay unchanged."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, Transform, YearTransform

from frazil.commit import merging
from frazil.commit.compare_and_swap import RetryPolicy
from frazil.errors import SpecError
from frazil.ingest.calendar_limits import TIMESTAMP_LIMITS_US
from tests.unit.commit import repeated
from tests.unit.commit.conftest import FaultyCatalog, catalog_in
from tests.unit.commit.repeated import BY_BUCKET, BY_HOUR, WHOLE, WITHIN_US, RepeatedWorld, kept_of, repeated_world


@pytest.fixture
def world(catalog: FaultyCatalog, tmp_path: Path) -> RepeatedWorld:
    return repeated_world(catalog, tmp_path)


def test_a_batch_without_repeats_is_added_as_it_was_staged(world: RepeatedWorld) -> None:
    committer = world.begin()
    journal = world.arrive(committer, [(n, n) for n in range(10)])
    committer.commit(journal)
    assert world.needed_files() == {file.path.removeprefix("file://") for file in journal.files}
    assert (world.summary()["operation"], world.summary()["frazil.repeated"]) == ("append", "0")


def test_repeats_in_the_batch_and_of_the_table_are_dropped_and_counted(world: RepeatedWorld) -> None:
    committer = world.begin()
    world.batch(committer, [(1, 0), (2, 0), (1, 30)])
    assert world.offsets() == [0, 1]
    world.batch(committer, [(1, 60), (1, 61), (2, 500), (3, 0)])
    assert world.offsets() == [0, 1, 4, 5, 6], "61 minutes after the row that was kept is another row"
    summary = world.summary()
    assert (summary["frazil.repeated"], summary["added-records"], summary["operation"]) == ("1", "3", "append")
    assert summary["frazil.windows"] == '{"0":1,"3600000000":1,"28800000000":1}'


def test_a_batch_of_repeated_records_moves_the_position_and_adds_no_rows(world: RepeatedWorld) -> None:
    committer = world.begin()
    world.batch(committer, [(1, 0)])
    marker = world.batch(committer, [(1, 1), (1, 2)])
    assert marker.offsets["events", 0] == 3
    assert world.offsets() == [0]
    assert world.parquet_files() <= world.needed_files()


def test_only_the_files_near_in_event_time_are_read(world: RepeatedWorld) -> None:
    committer = world.begin()
    for day in range(5):
        world.batch(committer, [(n, day * 1440) for n in range(4)])
    world.ran.clear()
    world.batch(committer, [(0, 2 * 1440 + 50)])
    looked_in = {file.path for task in world.ran for file in task.files}
    assert len(looked_in) == 1, "of two files of that hour, one may have the key"
    assert world.summary()["frazil.repeated"] == "1"
    world.ran.clear()
    world.batch(committer, [(9, 2 * 1440)])
    assert not any(task.files for task in world.ran), "no file may have the key"


ENDS = [
    TIMESTAMP_LIMITS_US[0],
    TIMESTAMP_LIMITS_US[0] + WITHIN_US,
    TIMESTAMP_LIMITS_US[1] - WITHIN_US,
    TIMESTAMP_LIMITS_US[1],
]


@pytest.mark.parametrize("transform", [MonthTransform(), YearTransform(), DayTransform(), HourTransform()], ids=str)
@pytest.mark.parametrize("at", ENDS)
def test_event_times_at_the_ends_of_the_calendar_stop_nothing(
    catalog: FaultyCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transform: Transform[Any, Any], at: int
) -> None:
    monkeypatch.setattr(repeated, "MINUTE_US", 1)
    world = repeated_world(catalog, tmp_path, PartitionSpec(PartitionField(2, 1000, transform, "at_part")))
    world.tables = dataclasses.replace(world.tables, retry_policy=RetryPolicy(total_s=0))
    committer = world.begin()
    world.batch(committer, [(1, at), (1, at), (2, 0)])
    world.batch(committer, [(1, at), (2, 30), (3, at)])
    assert world.offsets() == [0, 2, 5]


def test_a_deleted_row_does_not_make_later_records_repeats(world: RepeatedWorld) -> None:
    committer = world.begin()
    world.batch(committer, [(1, 0), (2, 0)])
    world.load().delete("id = 1")
    world.batch(committer, [(1, 5), (2, 5)])
    assert world.offsets() == [1, 2]


def test_a_stream_without_dedupe_does_not_commit_a_batch_staged_for_dedupe(world: RepeatedWorld) -> None:
    committer = world.begin()
    world.arrive(committer, [(1, 0)])
    world.tables = dataclasses.replace(world.tables, merging=None)
    with pytest.raises(SpecError, match="was staged for dedupe, which the stream no longer declares"):
        world.begin()


arrivals = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=8),
        st.sampled_from(["", "lost", "late", "appended", "compacted", "killed", "killed in the merge"]),
    ),
    min_size=2,
    max_size=6,
)


class Killed(BaseException):
    """Simulates a kill within the process."""


@given(batches=arrivals, spec=st.sampled_from([BY_HOUR, BY_BUCKET, WHOLE]), parallelism=st.integers(1, 3))
@settings(max_examples=max(6, settings().max_examples // 16), phases=[Phase.explicit, Phase.generate])
def test_a_dedupe_table_has_the_rows_that_the_rule_keeps_when_applied_in_order(batches, spec, parallelism):
    with tempfile.TemporaryDirectory() as folder, catalog_in(Path(folder)) as catalog, contextlib.ExitStack() as after:
        for name in ("MIN_SPLIT_BYTES", "TARGET_SHARE_BYTES"):
            after.callback(setattr, merging, name, getattr(merging, name))
            setattr(merging, name, 1)  # every batch has several tasks of each kind
        world = repeated_world(catalog, Path(folder), spec, parallelism=parallelism)
        rows: list[tuple[int, int, int]] = []
        others: list[tuple[int, int]] = []
        committer = world.begin()
        for number, (arrived, happens) in enumerate(batches):
            if happens == "lost":
                catalog.next_answer_is_lost("demo.hits")
            elif happens == "late":
                catalog.next_lands_late("demo.hits")
            elif happens == "appended":
                new = [(100 + number, number)]
                catalog.next_meets(lambda new=new: world.append_hits(new, offset=10_000), "demo.hits")
                others += new
            elif happens == "compacted":
                catalog.next_meets(world.compact, "demo.hits")
            if happens == "killed":
                world.arrive(committer, arrived)
            elif happens == "killed in the merge":
                _killed_in_the_merge(world, committer, arrived)
            else:
                world.batch(committer, arrived)
            catalog.faults.clear()
            if happens.startswith("killed"):
                committer = world.begin()
            rows += [(len(rows) + n, key, minute) for n, (key, minute) in enumerate(arrived)]
            expected = sorted([*kept_of(rows), *([10_000] * len(others))])
            assert world.offsets() == expected
        world.begin()  # sweeps
        assert {p for p in world.parquet_files() if "/events/" in p} <= world.needed_files()


def _killed_in_the_merge(world, committer, arrived):
    journal, inner = world.arrive(committer, arrived), world.run_tasks

    def dies(context, tasks):
        inner(context, tasks)
        raise Killed

    world.run_tasks = dies
    with contextlib.suppress(Killed):
        committer.commit(journal)
    world.run_tasks = inner
