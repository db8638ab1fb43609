"""Windows of event time: where they begin and end, and their keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.partitions.windows import Grain, Window, windows_between

moments = st.datetimes().map(lambda d: int((d - d.__class__(1970, 1, 1)).total_seconds()) * 1_000_000)
grains = st.sampled_from(Grain)


@given(moments, grains)
def test_a_time_lies_within_its_window(us, grain):
    window = Window.containing(us, grain)
    assert window.start_us <= us < window.end_us == window.start_us + grain.us


@given(moments, grains)
def test_a_window_key_identifies_exactly_one_window(us, grain):
    window = Window.containing(us, grain)
    assert Window.parse(window.key) == window


@given(moments, st.integers(0, 50), st.integers(0, 3_600_000_000), grains)
def test_the_windows_between_two_moments_follow_each_other_and_have_ended(us, count, rest, grain):
    until = grain.floor(us) + count * grain.us + rest % grain.us
    found = list(windows_between(grain, us, until))
    assert [w.start_us for w in found] == [grain.floor(us) + n * grain.us for n in range(count)]


def test_keys_are_those_of_airflows_partition_mappers():
    us = 1_388_361_600_000_000  # 2013-12-30T00:00:00Z
    assert (Window.containing(us, Grain.HOUR).key, Window.containing(us, Grain.DAY).key) == (
        "2013-12-30T00",
        "2013-12-30",
    )


def test_a_text_that_is_neither_an_hour_nor_a_day_is_refused_as_a_window():
    with pytest.raises(ValueError, match="neither an hour, such as 2013-01-01T05, nor a day"):
        Window.parse("2013-01")
