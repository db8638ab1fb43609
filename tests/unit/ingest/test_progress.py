"""What a task reports about its ranges: rows, dead letters, and event times, without implausible ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from frazil.ingest.contract import OffsetRange
from frazil.ingest.progress import MAX_WINDOWS, ProgressCounter

RANGES = (OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 0, 100))
MAX_FUTURE_US = 600_000_000
NOW_MS = 1_700_000_000_000

rows = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.none() | st.integers(-(2**40), 2**40).map(lambda us: NOW_MS * 1000 + us),
        st.just(-1) | st.integers(-(2**30), 2**30).map(lambda ms: NOW_MS + ms),
    ),
    max_size=20,
)


HOUR_US = 3_600_000_000


def counted(*chunks: list[tuple[int, int | None, int]]) -> ProgressCounter:
    counter = ProgressCounter(RANGES, max_future_us=MAX_FUTURE_US, window_us=HOUR_US)
    for chunk in chunks:
        counter.count_rows(
            np.array([r for r, _, _ in chunk], np.int32),
            pa.array([t for _, t, _ in chunk], pa.int64()),
            timestamps_ms=np.array([ms for _, _, ms in chunk], np.int64),
            now_ms=NOW_MS,
        )
    return counter


def believable(time_us: int, timestamp_ms: int) -> bool:
    """The rule, row by row: a timestamp that is missing, or ahead of the clock, is the clock's."""
    known_ms = NOW_MS if timestamp_ms < 0 else min(timestamp_ms, NOW_MS)
    return time_us <= known_ms * 1000 + MAX_FUTURE_US


@given(rows, rows)
def test_only_plausible_event_times_advance_the_maximum_and_future_ones_are_counted(first, second):
    for index, found in enumerate(counted(first, second).result()):
        mine = [(time, stamp) for r, time, stamp in (*first, *second) if r == index]
        times = [time for time, stamp in mine if time is not None and believable(time, stamp)]
        assert found.records == len(mine)
        assert found.max_event_time_us == max(times, default=None)
        future = [time for time, stamp in mine if time is not None and not believable(time, stamp)]
        assert (found.future, found.newest_future_us) == (len(future), max(future, default=None))


@given(rows, rows)
def test_rows_that_have_an_event_time_are_counted_by_window(first, second):
    times = [time for _, time, _ in (*first, *second) if time is not None]
    assert counted(first, second).windows == Counter(time // HOUR_US * HOUR_US for time in times)


def test_windows_that_lie_far_apart_are_counted_as_well():
    far = [(0, -(2**61), NOW_MS), (0, 2**61, NOW_MS), (0, 0, NOW_MS)]
    assert counted(far).windows == Counter(us // HOUR_US * HOUR_US for _, us, _ in far)


def test_rows_are_not_counted_by_window_if_no_window_ever_completes():
    counter = ProgressCounter(RANGES, max_future_us=MAX_FUTURE_US, window_us=None)
    counter.count_rows(np.array([0], np.int32), pa.array([0]), timestamps_ms=np.array([0]), now_ms=NOW_MS)
    assert not counter.windows


def test_exactly_max_future_ahead_is_believed_and_a_microsecond_more_is_not():
    edge = NOW_MS * 1000 + MAX_FUTURE_US
    found, _ = counted([(0, edge, NOW_MS), (0, edge + 1, NOW_MS)]).result()
    assert (found.max_event_time_us, found.future, found.records) == (edge, 1, 2)


def test_an_event_time_in_the_future_is_not_trusted_even_if_the_kafka_timestamp_agrees():
    ahead_ms = NOW_MS + 3_600_000
    found, _ = counted([(0, ahead_ms * 1000, ahead_ms)]).result()
    assert (found.max_event_time_us, found.future) == (None, 1)


def test_rows_of_very_many_windows_are_not_counted_by_window():
    """Event times may be dates of birth: a journal would name each of them, and no summary has room for any."""
    many = [(0, -HOUR_US * place, NOW_MS) for place in range(MAX_WINDOWS + 1)]
    assert len(counted(many[:-1]).windows or ()) == MAX_WINDOWS
    found = counted(many[:600], many[600:], many[:1])
    assert found.windows is None
    assert found.records == MAX_WINDOWS + 2
