"""What holds the next window back, as a person can look for it."""

from __future__ import annotations

import pytest

from frazil.operations.calendar import Holder, complete_without_holes_us, find_holders
from frazil.partitions.completeness import Feed
from frazil.partitions.windows import Grain, Window

HOUR = Window.parse("2023-11-14T15")
END_US = HOUR.end_us


@pytest.mark.parametrize(
    ("feed", "holder"),
    [
        (Feed("a", END_US - 1, holding_back=("ticks", 3)), Holder("topic-partition", "ticks-3")),
        (Feed("a", END_US + 9, lateness_us=10, holding_back=("ticks", 3)), Holder("topic-partition", "ticks-3")),
        (Feed("a", END_US - 1), Holder("stream", "a", "is idle")),
        (Feed("a", None), Holder("stream", "a", "has not started")),
        (Feed("a", None, problem="nobody declares it"), Holder("stream", "a", "cannot be read")),
        (
            Feed("a", END_US, holding_back=("ticks", 3), waiting_us=END_US - 5),
            Holder("stream", "a", "has rows on a branch"),
        ),
    ],
)
def test_each_stream_that_has_not_come_so_far_says_what_holds_it(feed: Feed, holder: Holder):
    beyond = Feed("beyond", END_US, holding_back=("other", 0))
    assert find_holders([feed, beyond], HOUR, [], now_us=END_US) == (holder,)


def test_while_a_watermark_is_unknown_its_stream_holds_everything():
    assert find_holders([Feed("a", None), Feed("b", END_US)], None, [], now_us=0) == (
        Holder("stream", "a", "has not started"),
    )


def test_a_gate_holds_the_windows_that_it_did_not_let_pass():
    assert find_holders([Feed("b", END_US)], HOUR, ["2023-11-14T12"], now_us=END_US) == (
        Holder("gate", "2023-11-14T12"),
    )


def test_nothing_delays_a_window_that_is_not_over():
    behind = Feed("a", END_US - 9, holding_back=("ticks", 3))
    assert find_holders([behind], HOUR, [], now_us=END_US - 1) == (Holder("time", "the hour is not over"),)


def test_a_held_window_is_a_hole_behind_which_nothing_counts_as_complete():
    held = {HOUR.start_us - 2 * Grain.HOUR.us, HOUR.start_us}
    assert complete_without_holes_us(END_US + 5, held, Grain.HOUR) == min(held)
    assert complete_without_holes_us(END_US + 5, (), Grain.HOUR) == END_US
    assert complete_without_holes_us(None, held, Grain.HOUR) is None
