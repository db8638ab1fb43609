"""What holds the next window back, in terms that an operator can look up."""

from __future__ import annotations

import pytest

from frazil.operations.calendar import (
    DelayReason,
    find_complete_end_us,
    find_delay_reasons,
)
from frazil.partitions.completeness import Feed
from frazil.partitions.windows import Grain, Window

HOUR = Window.parse("2023-11-14T15")
END_US = HOUR.end_us


@pytest.mark.parametrize(
    ("feed", "holder"),
    [
        (Feed("a", END_US - 1, delaying_partition=("ticks", 3)), DelayReason("topic-partition", "ticks-3")),
        (
            Feed("a", END_US + 9, lateness_us=10, delaying_partition=("ticks", 3)),
            DelayReason("topic-partition", "ticks-3"),
        ),
        (Feed("a", END_US - 1), DelayReason("stream", "a", "is idle")),
        (Feed("a", None), DelayReason("stream", "a", "has not started")),
        (Feed("a", None, problem="nobody declares it"), DelayReason("stream", "a", "cannot be read")),
        (
            Feed("a", END_US, delaying_partition=("ticks", 3), waiting_us=END_US - 5),
            DelayReason("stream", "a", "has rows on a branch"),
        ),
    ],
)
def test_each_stream_that_has_not_passed_the_window_shows_its_delay_reason(feed: Feed, holder: DelayReason):
    beyond = Feed("beyond", END_US, delaying_partition=("other", 0))
    assert find_delay_reasons([feed, beyond], HOUR, [], now_us=END_US) == (holder,)


def test_a_stream_with_an_unknown_watermark_delays_every_window():
    assert find_delay_reasons([Feed("a", None), Feed("b", END_US)], None, [], now_us=0) == (
        DelayReason("stream", "a", "has not started"),
    )


def test_a_gate_holds_the_windows_that_failed_it():
    assert find_delay_reasons([Feed("b", END_US)], HOUR, ["2023-11-14T12"], now_us=END_US) == (
        DelayReason("gate", "2023-11-14T12"),
    )


def test_nothing_delays_a_window_that_is_not_over():
    behind = Feed("a", END_US - 9, delaying_partition=("ticks", 3))
    assert find_delay_reasons([behind], HOUR, [], now_us=END_US - 1) == (DelayReason("time", "the hour is not over"),)


def test_no_window_after_a_held_window_counts_as_complete():
    held = {HOUR.start_us - 2 * Grain.HOUR.us, HOUR.start_us}
    assert find_complete_end_us(END_US + 5, held, Grain.HOUR) == min(held)
    assert find_complete_end_us(END_US + 5, (), Grain.HOUR) == END_US
    assert find_complete_end_us(None, held, Grain.HOUR) is None
