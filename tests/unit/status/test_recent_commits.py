"""Rates and rejected records, from a stream's commits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.status.recent_commits import DAY_MS, HOUR_MS, LAST_HOUR_BUCKETS, CommitCounts, compute_rates, counted_since

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def commit(minutes_ago: float, records: int = 0) -> CommitCounts:
    return CommitCounts(NOW_MS - int(minutes_ago * MINUTE_MS), records)


def of(*commits: CommitCounts, over_minutes: int = 10):  # type: ignore[no-untyped-def]
    return compute_rates(commits, over_ms=over_minutes * MINUTE_MS, now_ms=NOW_MS)


def test_without_a_commit_no_rate_is_known():
    assert of().records_per_s is None
    assert of().last_hour == (0,) * LAST_HOUR_BUCKETS


def test_the_rate_is_the_average_over_its_time_span():
    assert of(commit(1, 300), commit(5, 300), commit(11, 9999)).records_per_s == 1


def test_the_rate_is_zero_if_all_commits_are_before_the_time_span():
    assert of(commit(11, 9999)).records_per_s == 0


def test_the_rate_of_a_young_stream_excludes_the_records_of_its_first_commit():
    assert of(commit(0, 120), commit(2, 9999)).records_per_s == 1


def test_a_single_commit_gives_a_rate():
    assert of(commit(1, 60)).records_per_s == 1


@given(st.lists(st.tuples(st.integers(0, 2 * DAY_MS), st.integers(0, 10**6)), max_size=40))
def test_the_hour_holds_exactly_what_was_committed_within_it(made: list[tuple[int, int]]):
    newest_first = [CommitCounts(NOW_MS - age, records) for age, records in sorted(made)]
    found = compute_rates(newest_first, over_ms=10 * MINUTE_MS, now_ms=NOW_MS)
    assert sum(found.last_hour) == sum(c.records for c in newest_first if c.at_ms > NOW_MS - HOUR_MS)
    assert (found.records_per_s is None) == (not made)
    assert (found.records_per_s or 0) >= 0


@pytest.mark.parametrize(
    ("ages_minutes", "parent", "number", "since_minutes"),
    [
        ((1, 59), None, 1, None),  # a stream that began an hour ago
        ((1, 59), 7, 8, 59),
        ((1, 59), None, 8, 59),
        ((1, 59), None, 2, 59),
        ((1, 24 * 60), 7, 8, None),
        ((), None, 0, None),
    ],
    ids=["young", "expired", "expired by PyIceberg", "the first expired by PyIceberg", "a whole day", "empty"],
)
def test_if_snapshots_of_the_day_expired_the_start_of_the_counted_period_is_known(
    ages_minutes: tuple[int, ...], parent: int | None, number: int, since_minutes: int | None
) -> None:
    made: Any = [
        SimpleNamespace(timestamp_ms=commit(age).at_ms, parent_snapshot_id=parent, sequence_number=number, summary=None)
        for age in ages_minutes
    ]
    found, _ = counted_since(made, "s", since_ms=NOW_MS - DAY_MS)
    assert found == (since_minutes and commit(since_minutes).at_ms)
