"""Several ranges of one topic-partition: which are read in parallel, and by how many tasks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frazil.backfill.source import KafkaSource
from frazil.ingest.contract import OffsetRange
from frazil.ingest.readers import group_into_passes

NO_KAFKA: Any = None
several = st.lists(st.builds(OffsetRange, st.just("t"), st.integers(0, 3), st.integers(0, 9), st.integers(10, 20)))


@given(several)
def test_a_read_pass_has_at_most_one_range_of_a_partition_and_every_range_is_in_one_pass(ranges: list[OffsetRange]):
    found = group_into_passes(ranges)
    for turn in found:
        partitions = [ranges[i].partition for i in turn]
        assert len(partitions) == len(set(partitions))
    assert sorted(i for turn in found for i in turn) == list(range(len(ranges)))
    counts = [sum(r.partition == p for r in ranges) for p in range(4)]
    assert len(found) == max(counts)


def test_many_separate_ranges_are_read_by_as_many_tasks_as_cores():
    spans = {("t", p): tuple((at, at + 49) for at in range(0, 5500, 50)) for p in range(2)}
    tasks = KafkaSource(NO_KAFKA, {}).tasks(spans, 2)
    assert [task.index for task in tasks] == [0, 1]
    assert [sum(r.end - r.start for r in task.ranges) for task in tasks] == [5390, 5390]
    assert {(r.topic, r.partition, r.start, r.end) for task in tasks for r in task.ranges} == {
        ("t", p, *span) for p in range(2) for span in spans["t", p]
    }
