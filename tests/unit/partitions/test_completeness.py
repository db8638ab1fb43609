"""Complete windows: laws of the decision, for partitions that idle, appear, vanish and fall back."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from frazil.partitions.completeness import (
    Cursor,
    Feed,
    complete_until_us,
    decide_windows,
    feeds_behind,
    slowest_partition,
    watermark_us,
)
from frazil.partitions.windows import Grain, Window

HOUR = Grain.HOUR.us
MINUTE = HOUR // 60
NOON = 1_388_361_600_000_000 + 12 * HOUR

minutes = st.integers(-300, 300).map(lambda m: NOON + m * MINUTE)
feeds = st.lists(
    st.builds(Feed, st.just("s"), st.none() | minutes, st.sampled_from([0, 30 * MINUTE, 2 * HOUR])), max_size=4
).map(tuple)
lates = st.dictionaries(st.integers(-8, 4).map(lambda h: NOON + h * HOUR), st.integers(0, 5), max_size=4)


def at(minute: int, **changes: object) -> tuple[Feed, ...]:
    return (replace(Feed("flights", NOON + minute * MINUTE), **changes),)


def moved(cursor: Cursor | None, made) -> Cursor | None:
    return cursor if made.through_us is None else Cursor(Grain.HOUR, made.from_us, made.through_us, 1)


@given(st.lists(st.tuples(feeds, lates), max_size=12), st.none() | minutes)
def test_every_window_completes_once_in_order_and_never_before_every_stream_has_passed_it(polls, begin):
    cursor, done = None, []
    for found, late in polls:
        made = decide_windows(found, cursor, late, grain=Grain.HOUR, complete_from_us=begin)
        for window in made.complete:
            assert not feeds_behind(found, window)
            assert found
        # Whatever the streams do, what was complete stays so, and only that is opened again.
        assert all(w.start_us < done[-1].end_us and w in done for w in made.again)
        done += made.complete
        cursor = moved(cursor, made)
    assert [w.start_us for w in done] == [done[0].start_us + n * HOUR for n in range(len(done))]
    if done and begin is not None:
        assert done[0] == Window.containing(begin, Grain.HOUR)


@given(feeds.filter(any))
def test_a_stream_that_has_not_started_keeps_every_window_open(found):
    made = decide_windows((*found, Feed("new", None)), None, {}, grain=Grain.HOUR, complete_from_us=NOON - 5 * HOUR)
    assert (made.complete, made.through_us) == ((), None)


def test_a_window_is_complete_exactly_at_its_end_plus_lateness():
    cursor = Cursor(Grain.HOUR, NOON, NOON, 1)
    for lateness in (0, 30 * MINUTE):
        exactly = at(60, lateness_us=lateness)[0]
        passed = replace(exactly, watermark_us=NOON + HOUR + lateness)
        assert decide_windows((passed,), cursor, {}, grain=Grain.HOUR).complete == (Window(NOON, Grain.HOUR),)
        short = replace(passed, watermark_us=NOON + HOUR + lateness - 1)
        assert decide_windows((short,), cursor, {}, grain=Grain.HOUR).complete == ()


def test_the_history_before_the_first_check_is_not_signalled():
    made = decide_windows(at(30), None, {NOON - HOUR: 3}, grain=Grain.HOUR)
    assert (made.complete, made.again, made.from_us) == ((), {}, NOON)


def test_complete_from_signals_windows_that_were_complete_before_the_first_check():
    made = decide_windows(at(30), None, {}, grain=Grain.HOUR, complete_from_us=NOON - 2 * HOUR)
    assert [w.key for w in made.complete] == ["2013-12-30T10", "2013-12-30T11"]


def test_late_rows_reopen_a_complete_window_and_no_other():
    cursor = Cursor(Grain.HOUR, NOON - 2 * HOUR, NOON, 1)
    late = {NOON - 3 * HOUR: 1, NOON - HOUR: 2, NOON: 4}
    assert decide_windows(at(0), cursor, late, grain=Grain.HOUR).again == {Window(NOON - HOUR, Grain.HOUR): 2}


def test_many_windows_are_completed_in_portions():
    far = decide_windows(at(0), None, {}, grain=Grain.HOUR, complete_from_us=NOON - 1200 * HOUR)
    second = decide_windows(at(0), moved(None, far), {}, grain=Grain.HOUR)
    third = decide_windows(at(0), moved(None, second), {}, grain=Grain.HOUR)
    assert [len(x.complete) for x in (far, second, third)] == [500, 500, 200]


def test_windows_that_change_from_hours_to_days_continue_after_the_last_hour():
    cursor = Cursor(Grain.HOUR, NOON - 2 * HOUR, NOON, 1)
    made = decide_windows(at(24 * 60 * 2), cursor, {}, grain=Grain.DAY)
    assert [w.key for w in made.complete] == ["2013-12-31"]


def test_the_reason_names_the_events_that_the_window_waits_for():
    made = decide_windows(at(30, delaying_partition=("flights", 7), lateness_us=MINUTE), None, {}, grain=Grain.HOUR)
    assert made.reason == (
        "2013-12-30T12 is not complete: events from 2013-12-30T13:01:00Z or later must arrive; the newest event of "
        "stream flights in partition flights-7 is from 2013-12-30T12:30:00Z; events dated in the future do not count"
    )
    assert decide_windows((), None, {}, grain=Grain.HOUR).reason == "nothing is complete: no stream feeds the table yet"


partitions = st.dictionaries(st.tuples(st.just("t"), st.integers(0, 4)), st.none() | st.integers(0, 100), min_size=1)


@given(partitions, st.sets(st.tuples(st.just("t"), st.integers(0, 4))), st.none() | st.integers(0, 100))
def test_the_slowest_partition_determines_the_watermark_or_has_no_record(seen, idle, previous):
    known = {tp: us for tp, us in seen.items() if us is not None}
    holder = slowest_partition(known, partitions=seen, idle=idle)
    watermark = watermark_us(known, partitions=seen, idle=idle, previous_us=previous)
    if holder is None:
        assert set(seen) <= idle
    elif holder not in known:
        assert watermark == previous
    else:
        assert watermark == max(known[holder], previous if previous is not None else known[holder])


def test_a_table_without_streams_has_no_bound():
    assert complete_until_us(()) is None
    assert complete_until_us(at(5)) == NOON + 5 * MINUTE
