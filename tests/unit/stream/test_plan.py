"""When a batch is due, how far it reads, and how it is spread over tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.stream.plan import (
    BatchPolicy,
    Rates,
    assign_tasks,
    average_rates,
    choose_task_count,
    decide_batch,
    limit_ends,
)

RATES = Rates(bytes_per_record=40.0, task_seconds_per_record=2e-6, overhead_s=1.0)
POLICY = BatchPolicy(
    interval_s=60.0, size_bytes=128 * 2**20, max_records=20_000_000, target_file_bytes=512 * 2**20, parallelism=2
)
PARTITIONS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40)),
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)),
    min_size=1,
    max_size=40,
)


def test_no_batch_is_due_without_unread_records():
    assert not decide_batch(unread=0, oldest_age_s=10**9, rates=RATES, policy=POLICY).now


def test_records_that_waited_at_the_start_are_due_at_once():
    due = decide_batch(unread=1, oldest_age_s=None, rates=RATES, policy=POLICY)
    assert due.now
    assert "waiting when the writer started" in due.reason


def test_a_batch_is_due_when_its_estimated_parquet_size_reaches_the_limit():
    enough = int(POLICY.size_bytes / RATES.bytes_per_record) + 1
    assert decide_batch(unread=enough, oldest_age_s=0.0, rates=RATES, policy=POLICY).now
    assert not decide_batch(unread=enough // 2, oldest_age_s=0.0, rates=RATES, policy=POLICY).now


def test_a_batch_starts_early_enough_to_commit_within_the_interval():
    stage_s = 1.0 + 100_000 * 2e-6
    assert not decide_batch(unread=100_000, oldest_age_s=59.9 - stage_s, rates=RATES, policy=POLICY).now
    assert decide_batch(unread=100_000, oldest_age_s=60.0 - stage_s, rates=RATES, policy=POLICY).now


@pytest.mark.parametrize(
    ("records", "tasks"),
    [(1, 1), (10_000_000, 1), (13_421_773, 2), (27_000_000, 3), (59_000_000, 5)],
    ids=["tiny", "one file", "just over one file", "three files", "five files"],
)
def test_the_number_of_tasks_is_the_number_of_files_that_the_bytes_need(records: int, tasks: int):
    assert choose_task_count(records, rates=RATES, policy=POLICY) == tasks


def test_more_tasks_than_files_are_planned_only_if_one_core_would_miss_the_interval():
    slow = Rates(bytes_per_record=4.0, task_seconds_per_record=1e-5, overhead_s=1.0)
    assert choose_task_count(5_000_000, rates=slow, policy=POLICY) == 1
    assert choose_task_count(6_500_000, rates=slow, policy=POLICY) == 2
    assert choose_task_count(100_000_000, rates=slow, policy=POLICY) == 2, "never more than the cores for speed alone"


@given(PARTITIONS, st.integers(1, 10**7))
def test_a_bounded_batch_takes_a_share_of_the_lag_of_each_partition_and_never_goes_back(lags, max_records):
    position = {tp: start for tp, (start, _) in lags.items()}
    ends = {tp: start + lag for tp, (start, lag) in lags.items()}
    got = limit_ends(position, ends, max_records=max_records)
    assert all(position[tp] <= got[tp] <= ends[tp] for tp in position)
    taken = sum(got.values()) - sum(position.values())
    total = sum(lag for _, lag in lags.values())
    assert taken == total if total <= max_records else max_records <= taken <= max_records + len(lags)


def test_a_log_end_below_the_position_reads_nothing():
    assert limit_ends({("t", 0): 10}, {("t", 0): 7}, max_records=100) == {("t", 0): 10}


@given(PARTITIONS, st.integers(1, 8))
def test_tasks_cover_every_unread_offset_once(lags, tasks):
    start = {tp: begin for tp, (begin, _) in lags.items()}
    end = {tp: begin + lag for tp, (begin, lag) in lags.items()}
    planned = assign_tasks(start, end, tasks=tasks)
    assert len(planned) <= tasks
    assert all(task.ranges for task in planned)
    covered: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for task in planned:
        assert len({(r.topic, r.partition) for r in task.ranges}) == len(task.ranges), "one position a partition"
        for r in task.ranges:
            assert r.start < r.end
            covered.setdefault((r.topic, r.partition), []).append((r.start, r.end))
    assert covered.keys() == {tp for tp in start if end[tp] > start[tp]}
    for tp, pieces in covered.items():
        pieces.sort()
        assert pieces[0][0] == start[tp]
        assert pieces[-1][1] == end[tp]
        assert all(a[1] == b[0] for a, b in pairwise(pieces))


@given(PARTITIONS, st.integers(1, 8))
def test_tasks_are_equally_long_however_the_lag_is_spread(lags, tasks):
    start = {tp: begin for tp, (begin, _) in lags.items()}
    end = {tp: begin + lag for tp, (begin, lag) in lags.items()}
    loads = [sum(r.end - r.start for r in task.ranges) for task in assign_tasks(start, end, tasks=tasks)]
    assert not loads or max(loads) - min(loads) <= 1


def test_rates_converge_to_those_of_recent_batches():
    rates = Rates()
    for _ in range(20):
        rates = average_rates(rates, records=1_000_000, written_bytes=25_000_000, task_s=2.0, overhead_s=0.4)
    assert rates.bytes_per_record == pytest.approx(25.0, rel=0.01)
    assert rates.task_seconds_per_record == pytest.approx(2e-6, rel=0.01)
    assert rates.overhead_s == pytest.approx(0.4, rel=0.01)
    assert average_rates(rates, records=0, written_bytes=0, task_s=1.0, overhead_s=9.0) == rates
