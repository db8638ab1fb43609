"""Records per second over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.history.points import MINUTE_MS, TEN_MINUTES_MS, Point, StreamHistory, drop_unfinished
from frazil.history.recorder import WRITE_INTERVAL_MS
from frazil.operations.rates import Rate, Trend, add_arrivals, compute_rates, compute_trend, daily_costs, mean_rates
from frazil.operations.stream_view import HOURS, Period, downsample
from frazil.status.cost import Prices, StreamCost

BEGAN_MS = 1_800_000_000_000
HOUR_MS = 60 * MINUTE_MS


def minutes(*records: int | None, **more: Any) -> list[Point]:
    """Points of minutes: what landed, or None for a minute without a batch."""
    values = {"interval_ms": MINUTE_MS, **more}
    return [
        Point(n * MINUTE_MS, batches=int(count is not None), records=count or 0, rejected=(count or 0) // 10, **values)
        for n, count in enumerate(records)
    ]


def per_s(points: list[Point]) -> list[float]:
    return [rate.records_per_s for rate in compute_rates(points)]


def test_a_batch_of_each_interval_gives_the_rate_of_that_interval():
    assert compute_rates(minutes(600, 1200)) == (Rate(0, 10.0, 1.0), Rate(MINUTE_MS, 20.0, 2.0))
    assert compute_rates([Point(0, TEN_MINUTES_MS, batches=20, records=6000)]) == (Rate(0, 10.0, 0.0),)


def test_a_batch_longer_than_one_span_is_spread_over_the_spans_that_it_took():
    slow = {"backpressure_ms": 50_000}
    assert per_s(minutes(600, None, 1200, None, 2400, **slow)) == [10, 10, 10, 20, 20]
    unmeasured = [one for one in minutes(600, None, 1200, **slow) if one.batches]
    assert per_s(unmeasured) == [10, 10]


def test_after_a_pause_the_rate_of_a_batch_covers_only_its_own_span():
    assert per_s(minutes(600, None, None, None, 600)) == [10, 0, 0, 0, 10]


def test_the_rate_of_a_writers_first_batch_counts_from_the_writers_start():
    began = minutes(None, 1200)
    assert per_s(began) == [10, 10]
    later = [replace(point, at_ms=point.at_ms + 60 * MINUTE_MS) for point in began]
    assert per_s([*minutes(600, None), *later]) == [10, 0, 10, 10]


def test_the_last_spans_have_no_rate_while_their_batch_may_be_under_way():
    assert per_s(minutes(600, None)) == [10]
    assert per_s(minutes(600, None, None, None, None)) == [10, 0, 0, 0, 0]
    assert (per_s(minutes(None, None)), per_s(minutes(*4 * [None])), per_s([])) == ([], [0, 0, 0, 0], [])


def written(until_ms: int, every_ms: int) -> tuple[Point, ...]:
    """Return what a writer with 50 records/s has committed by then: a batch every `every_ms`, with records 2 s old."""
    past = StreamHistory()
    for measured_ms in range(BEGAN_MS, until_ms, MINUTE_MS):
        past.add(Point(measured_ms, lag=0, interval_ms=every_ms))
    for landed_ms in range(BEGAN_MS + every_ms - 1, until_ms, every_ms):
        records = 50 * every_ms // 1000
        past.add(Point(landed_ms, batches=1, records=records, watermark_ms=landed_ms - 2000, interval_ms=every_ms))
    past.age(until_ms)
    return past.points()


@given(
    st.sampled_from([15_000, 20_000, 30_000, MINUTE_MS, 2 * MINUTE_MS, 5 * MINUTE_MS]),
    st.integers(10 * MINUTE_MS, 9 * HOUR_MS),
    st.integers(0, WRITE_INTERVAL_MS),
    st.sampled_from(HOURS),
)
def test_a_steady_rate_equals_the_rate_of_every_span_whatever_the_current_time(
    every_ms: int, lasts_ms: int, written_ago_ms: int, hours: int
) -> None:
    now_ms = BEGAN_MS + lasts_ms
    recorded = drop_unfinished(written(now_ms - written_ago_ms, every_ms), now_ms)
    spans = downsample(recorded, Period(now_ms - hours * HOUR_MS, now_ms, hours))
    rates = mean_rates(spans, recorded)
    assert [rate.records_per_s for rate in rates] == pytest.approx([50] * len(rates))
    assert [rate.at_ms for rate in rates] == [span.at_ms for span in spans][: len(rates)]
    assert now_ms - 2 * MINUTE_MS - every_ms - WRITE_INTERVAL_MS <= spans[-1].end_ms <= now_ms
    watermarks = [(span.end_ms, span.watermark_ms) for span in spans if span.watermark_ms]
    assert all(2000 < end_ms - watermark_ms <= every_ms + 2001 for end_ms, watermark_ms in watermarks)


def test_arrivals_are_written_rows_plus_lag_growth_and_predict_when_the_lag_reaches_0():
    points = [
        replace(point, lag=lag) for point, lag in zip(minutes(*4 * [6_000]), (9_000, 6_000, 3_000, 0), strict=True)
    ]
    arrived = [one.arrived_per_s for one in add_arrivals(compute_rates(points), points)]
    assert arrived == [None, 50, 50, 50]
    falls = compute_trend(points, 3_000, now_ms=4 * MINUTE_MS)
    assert falls == Trend(50, 100, MINUTE_MS)
    assert (compute_trend(points, 0, now_ms=4 * MINUTE_MS) or falls).caught_up_in_ms is None
    assert compute_trend(points[:3], 3_000, now_ms=3 * MINUTE_MS) is None


def test_the_last_point_of_an_ended_writer_is_shown_only_once_it_is_complete() -> None:
    points = minutes(600, 1200)
    assert [len(drop_unfinished(points, now_ms)) for now_ms in (3 * MINUTE_MS - 1, 3 * MINUTE_MS)] == [1, 2]
    assert drop_unfinished([], 0) == []


def test_the_batches_of_a_day_are_summed_and_priced():
    measured = {"batches": 1, "files": 3, "bytes": 7, "cpu_ms": 1_800_000, "writes": 1_000, "reads": 0}
    before = Point(BEGAN_MS - 24 * HOUR_MS, TEN_MINUTES_MS, batches=4, files=4, bytes=2)
    points = [before, Point(BEGAN_MS, **measured), Point(BEGAN_MS + HOUR_MS, **measured)]
    newest, oldest = daily_costs(points, Prices(cpu_hour=1, currency="EUR"))
    assert (newest.day, newest.cost, newest.files, newest.price) == (
        "2027-01-15",
        StreamCost(2, 3_600.0, 2_000, 0, 14),
        6,
        "EUR1.0100",
    )
    assert (oldest.day, oldest.cost.commits) == ("2027-01-14", 4)
    assert daily_costs([], Prices()) == ()
