"""A table's windows as the page shows them."""

from __future__ import annotations

import pytest

from frazil.maintenance.health import PartitionFiles
from frazil.operations.calendar import (
    SHOWN_PERIODS,
    Calendar,
    Cell,
    build_calendar,
    build_partition_calendar,
    merge_calendars,
)
from frazil.partitions.windows import Grain, Window
from frazil.signals.signal_table import Signal, SignalState

HOUR_US = Grain.HOUR.us
START = Window.parse("2023-11-14T00").start_us


def signal(window: Window, state: SignalState = SignalState.COMPLETE, *, revision: int = 1) -> Signal:
    return Signal(
        "t", window.key, window.start_us, window.end_us, revision, state, 5, 0, revision - 1, 0, 1, 1, 0, "why"
    )


def test_the_calendar_shows_each_window_in_its_state_and_those_after_them_as_open():
    hours = [Window(START + n * HOUR_US, Grain.HOUR) for n in range(6)]
    signals = {
        hours[0]: signal(hours[0]),
        hours[1]: signal(hours[1], revision=2),
        hours[2]: signal(hours[2], SignalState.HELD),
        hours[3]: signal(hours[3], SignalState.RELEASED),
    }
    made = build_calendar(
        Grain.HOUR, signals, through_us=hours[5].start_us, now_us=hours[5].end_us + 1, waits_for="the watermark"
    )
    states = ["complete", "reopened", "held", "released", "history", "open", "open"]
    assert [cell.state for cell in made.cells] == states
    assert (made.cells[1].key, made.cells[1].rows, made.cells[1].late_rows) == ("2023-11-14T01", 5, 1)
    assert made.waits_for == "the watermark"


@pytest.mark.parametrize(("grain", "limit"), [(Grain.HOUR, 14 * 24), (Grain.DAY, 26 * 7)])
def test_a_calendar_is_bounded_for_a_table_with_event_times_years_ago(grain: Grain, limit: int):
    windows = [Window(grain.floor(START) + n * grain.us, grain) for n in range(limit * 2)]
    through = windows[-1].end_us
    made = build_calendar(
        grain, {w: signal(w) for w in windows}, through_us=through, now_us=through + 10**15, waits_for=""
    )
    assert len(made.cells) == limit
    assert sum(cell.state == "open" for cell in made.cells) == 48


def partition(
    begin_us: int | None, *, files: int = 1, small: int = 0, deletes: int = 0, us: int = HOUR_US
) -> PartitionFiles:
    end_us = None if begin_us is None else begin_us + us
    return PartitionFiles(0, (begin_us,), "", files, 10 * files, small, 10, deletes, end_us, begin_us)


def test_a_table_without_signals_shows_the_windows_of_its_partitions_and_which_are_compacted():
    found = [
        partition(START, files=3),
        partition(START + HOUR_US, files=9, small=8),
        partition(START + 3 * HOUR_US, small=1),
        partition(START + 3 * HOUR_US, files=2, deletes=1),
        partition(START + 4 * HOUR_US),
        partition(START + 9**6 * HOUR_US),
        partition(None),
    ]
    made = build_partition_calendar(found, [partition(START + HOUR_US)], now_us=START + 5 * HOUR_US - 1)
    assert made is not None
    assert (made.grain, made.waits_for) == ("hour", None)
    assert [(c.state, c.files, c.compacted, c.backfilled) for c in made.cells] == [
        ("written", 3, True, False),
        ("written", 9, False, True),
        ("empty", 0, False, False),
        ("written", 3, False, False),
        ("written", 1, False, False),
    ]


def test_no_calendar_is_made_of_partitions_that_are_neither_hours_nor_days():
    assert build_partition_calendar([], [], now_us=START) is None
    assert build_partition_calendar([partition(START, us=30 * Grain.DAY.us), partition(None)], [], now_us=START) is None


def test_a_calendar_of_partitions_is_bounded():
    found = [partition(START), partition(START + 1_000 * HOUR_US)]
    made = build_partition_calendar(found, [], now_us=START + 2_000 * HOUR_US)
    assert made is not None
    assert len(made.cells) == SHOWN_PERIODS[Grain.HOUR].total_seconds() / 3600


def test_each_hour_shows_the_partition_of_its_day():
    day = Window.parse("2023-11-14")
    signalled = Calendar("hour", (Cell("2023-11-14T05", "complete", 7), Cell("2023-11-15T00", "open")), "the watermark")
    of_days = build_partition_calendar(
        [partition(day.start_us, us=Grain.DAY.us), partition(day.end_us, us=Grain.DAY.us)],
        [partition(day.start_us, us=Grain.DAY.us)],
        now_us=day.end_us + 10 * Grain.DAY.us,
    )
    made = merge_calendars(signalled, of_days)
    assert made is not None
    assert [(c.state, c.rows, c.files, c.compacted, c.backfilled) for c in made.cells] == [
        ("complete", 7, 1, True, True),
        ("open", None, 1, False, False),
    ]
    assert (made.grain, made.waits_for) == ("hour", "the watermark")
    assert merge_calendars(signalled, None) is signalled
    assert merge_calendars(None, of_days) is of_days
