"""Records a second over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frazil.history.points import MINUTE_MS, TEN_MS, Point
from frazil.operations.rates import Rate, rates_of


def minutes(*records: int | None, **more: Any) -> list[Point]:
    """Of each minute, what landed; None for a minute without a batch."""
    values = {"interval_ms": MINUTE_MS, **more}
    return [
        Point(n * MINUTE_MS, batches=int(count is not None), records=count or 0, rejected=(count or 0) // 10, **values)
        for n, count in enumerate(records)
    ]


def per_s(points: list[Point]) -> list[float]:
    return [rate.records_per_s for rate in rates_of(points)]


def test_a_batch_of_each_span_is_a_rate_of_that_span():
    assert rates_of(minutes(600, 1200)) == (Rate(0, 10.0, 1.0), Rate(MINUTE_MS, 20.0, 2.0))
    assert rates_of([Point(0, TEN_MS, batches=20, records=6000)]) == (Rate(0, 10.0, 0.0),)


def test_a_batch_that_took_longer_than_a_span_is_no_burst_and_the_span_before_no_pause():
    slow = {"backpressure_ms": 50_000}
    assert per_s(minutes(600, None, 1200, None, 2400, **slow)) == [10, 10, 10, 20, 20]
    unmeasured = [one for one in minutes(600, None, 1200, **slow) if one.batches]
    assert per_s(unmeasured) == [10, 10]


def test_after_a_pause_a_batch_counts_for_its_own_span():
    assert per_s(minutes(600, None, None, None, 600)) == [10, 0, 0, 0, 10]


def test_the_first_batch_of_a_writer_counts_since_it_began_and_not_for_the_time_without_one():
    began = minutes(None, 1200)
    assert per_s(began) == [10, 10]
    later = [replace(point, at_ms=point.at_ms + 60 * MINUTE_MS) for point in began]
    assert per_s([*minutes(600, None), *later]) == [10, 0, 10, 10]


def test_the_last_spans_have_no_rate_while_their_batch_may_be_under_way():
    assert per_s(minutes(600, None)) == [10]
    assert per_s(minutes(600, None, None, None, None)) == [10, 0, 0, 0, 0]
    assert (per_s(minutes(None, None)), per_s(minutes(*4 * [None])), per_s([])) == ([], [0, 0, 0, 0], [])
