"""The event time that the watermark guarantees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frazil.partitions.completeness import watermark_us

A, B, C = ("t", 0), ("t", 1), ("t", 2)
ALL = [A, B, C]
times = st.dictionaries(st.sampled_from(ALL), st.integers(-1000, 1000))
idles = st.sets(st.sampled_from(ALL))
previous = st.none() | st.integers(-1000, 1000)


def test_the_watermark_is_the_minimum_of_the_partitions_newest_event_times():
    assert watermark_us({A: 30, B: 10, C: 20}, partitions=ALL, idle=(), previous_us=None) == 10


def test_a_partition_that_never_had_a_record_keeps_the_watermark_unknown():
    assert watermark_us({A: 30, B: 10}, partitions=ALL, idle=(), previous_us=None) is None


def test_an_empty_partition_does_not_hold_the_watermark_once_it_is_idle():
    assert watermark_us({A: 30, B: 10}, partitions=ALL, idle={C}, previous_us=None) == 10


def test_an_idle_partition_does_not_hold_the_watermark():
    assert watermark_us({A: 30, B: 10, C: 20}, partitions=ALL, idle={B}, previous_us=None) == 20


def test_if_all_partitions_are_idle_the_watermark_is_the_newest_event_time_seen():
    assert watermark_us({A: 30, B: 10}, partitions=ALL, idle=set(ALL), previous_us=None) == 30


def test_the_watermark_of_a_stream_without_records_is_unknown_even_if_all_partitions_are_idle():
    assert watermark_us({}, partitions=ALL, idle=set(ALL), previous_us=None) is None


def test_a_new_partition_holds_the_watermark_at_its_value():
    assert watermark_us({A: 30, B: 40}, partitions=ALL, idle=(), previous_us=25) == 25


@given(times, idles, previous)
def test_the_watermark_never_goes_back(newest, idle, before):
    after = watermark_us(newest, partitions=ALL, idle=idle, previous_us=before)
    assert before is None or (after is not None and after >= before)


@given(times, idles)
def test_the_watermark_is_always_an_event_time_that_was_seen(newest, idle):
    after = watermark_us(newest, partitions=ALL, idle=idle, previous_us=None)
    assert after is None or after in newest.values()


@given(times, idles, previous)
def test_no_active_partition_is_behind_a_watermark_that_moved(newest, idle, before):
    after = watermark_us(newest, partitions=ALL, idle=idle, previous_us=before)
    if after != before:
        assert all(newest[tp] >= after for tp in ALL if tp not in idle)


@given(times, idles, st.sampled_from(ALL))
def test_marking_one_more_partition_idle_never_moves_the_watermark_back(newest, idle, one):
    less = watermark_us(newest, partitions=ALL, idle=idle, previous_us=None)
    more = watermark_us(newest, partitions=ALL, idle=idle | {one}, previous_us=None)
    assert less is None or (more is not None and more >= less)
