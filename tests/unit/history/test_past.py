"""Laws of a stream's history: a bounded size, no lost number, and no overlapping points."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from frazil.history.points import (
    MAX_EVENTS_PER_KIND,
    MAX_TEXT_CHARACTERS,
    MINUTE_MS,
    MINUTES_RETENTION_MS,
    TEN_MINUTES_MS,
    TENS_RETENTION_MS,
    EventKind,
    HistoryEvent,
    HistoryPart,
    Point,
    StreamHistory,
    span_start,
)

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000

SMALL = st.integers(0, 1_000)
MAYBE = st.none() | SMALL


@st.composite
def points(draw: st.DrawFn, within_ms: int = 2 * MINUTES_RETENTION_MS) -> Point:
    return Point(
        NOW + draw(st.integers(-within_ms, within_ms)),
        batches=draw(SMALL),
        records=draw(SMALL),
        stage_ms=draw(SMALL),
        lag=draw(MAYBE),
        watermark_ms=draw(MAYBE),
    )


@given(st.lists(points()), st.lists(st.integers(-MINUTES_RETENTION_MS, MINUTES_RETENTION_MS)))
def test_no_number_is_lost_or_doubled_by_a_clock_that_goes_to_and_fro(added: list[Point], clocks: list[int]) -> None:
    past, times = StreamHistory(), iter(clocks)
    for point in added:
        past.add(point)
        past.age(NOW + next(times, 0))
    for name in ("batches", "records", "stage_ms"):
        assert sum(getattr(p, name) for p in past.points()) == sum(getattr(p, name) for p in added)
    assert max((p.lag for p in past.points() if p.lag is not None), default=None) == max(
        (p.lag for p in added if p.lag is not None), default=None
    )


@given(st.lists(points()), st.lists(points()), st.integers(-MINUTES_RETENTION_MS, MINUTES_RETENTION_MS))
def test_a_writer_adds_its_history_to_that_of_an_earlier_writer(
    one: list[Point], other: list[Point], clock: int
) -> None:
    earlier, own = StreamHistory(), StreamHistory()
    for past, added in ((earlier, one), (own, other)):
        for point in added:
            past.add(point)
    earlier.age(NOW + clock)
    own.merge_earlier(earlier)
    assert sum(p.records for p in own.points()) == sum(p.records for p in (*one, *other))


@given(st.lists(points(within_ms=3 * TENS_RETENTION_MS)), st.integers(-TENS_RETENTION_MS, TENS_RETENTION_MS))
def test_history_points_never_overlap_in_time(added: list[Point], clock: int) -> None:
    past = StreamHistory()
    for point in added:
        past.add(point)
    past.age(NOW + clock)
    spans = [(p.at_ms, p.end_ms) for p in past.points()]
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@given(points(), points(), points())
def test_history_points_can_be_combined_in_any_grouping(a: Point, b: Point, c: Point) -> None:
    assert a.add(b).add(c) == a.add(b.add(c))


def test_a_month_of_history_is_bounded_and_its_last_hours_are_in_minutes() -> None:
    past = StreamHistory()
    for at in range(NOW, NOW + 30 * 24 * HOUR_MS, MINUTE_MS):
        past.add(Point(at, records=1))
        if at % TEN_MINUTES_MS == 0:
            past.age(at)
    assert len(past.minutes) <= (MINUTES_RETENTION_MS + 2 * TEN_MINUTES_MS) // MINUTE_MS
    assert len(past.tens) <= TENS_RETENTION_MS // TEN_MINUTES_MS + 1
    last = NOW + 30 * 24 * HOUR_MS - MINUTE_MS
    assert {p.span_ms for p in past.points() if p.at_ms > last - MINUTES_RETENTION_MS} == {MINUTE_MS}
    assert sum(p.records for p in past.points()) >= TENS_RETENTION_MS // MINUTE_MS


def test_after_a_clock_was_a_year_ahead_nothing_remains_and_new_events_are_recorded() -> None:
    past, year_ms = StreamHistory(), 365 * 24 * HOUR_MS
    past.add(Point(NOW + year_ms, records=7))
    past.record(HistoryEvent(NOW + year_ms, EventKind.NOTICE, "from another time"))
    past.add(Point(NOW, records=1))
    past.age(NOW)
    assert past.age(NOW) == set()
    assert [(p.at_ms, p.records) for p in past.points()] == [(span_start(NOW, MINUTE_MS), 1)]
    assert past.events == []


def test_many_events_of_one_kind_displace_no_other_kinds_and_the_newest_stay() -> None:
    past = StreamHistory()
    past.record(HistoryEvent(NOW, EventKind.EVOLUTION, "the table evolves"))
    for n in range(3_000):  # as when no one ages it, because the storage hangs
        past.record(HistoryEvent(NOW + n, EventKind.OUTAGE, f"outage {n}"))
    assert len(past.events) < 5_000
    past.age(NOW)
    assert len(past.events) == MAX_EVENTS_PER_KIND + 1
    assert past.events[0].kind is EventKind.EVOLUTION
    assert past.events[-1].sentence == "outage 2999"


def test_a_long_event_text_is_shortened_and_equal_events_of_the_same_time_are_recorded_once() -> None:
    past = StreamHistory()
    for _ in range(2):
        past.record(HistoryEvent(NOW, EventKind.END, "x" * 10_000))
    assert [len(what.sentence) for what in past.events] == [MAX_TEXT_CHARACTERS]


def test_aging_the_history_reports_which_parts_changed() -> None:
    past = StreamHistory()
    past.add(Point(NOW, records=1))
    assert past.age(NOW) == set()
    assert past.age(NOW + MINUTES_RETENTION_MS + 2 * TEN_MINUTES_MS) == {HistoryPart.TENS, HistoryPart.MINUTES}
    assert past.age(NOW + 2 * TENS_RETENTION_MS) == {HistoryPart.TENS}
    assert past.points() == ()


def test_a_ten_minute_point_replaces_the_minutes_that_it_contains() -> None:
    """A writer was killed after it wrote the ten-minute points, but before the minutes."""
    past = StreamHistory()
    past.add(Point(NOW, records=3))
    killed = past.copy()
    past.age(NOW + MINUTES_RETENTION_MS + 2 * TEN_MINUTES_MS)
    half = StreamHistory(killed.minutes, past.tens)
    assert sum(p.records for p in half.points()) == 3


def test_a_history_point_ends_with_its_span() -> None:
    assert Point(NOW).end_ms == NOW + MINUTE_MS
    assert dataclasses.replace(Point(NOW), span_ms=TEN_MINUTES_MS).end_ms == NOW + TEN_MINUTES_MS
