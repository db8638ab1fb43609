"""Due days: complete by the newest signals, and not yet aggregated from these."""

from __future__ import annotations

import dataclasses
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.aggregate.day_input import (
    AggregatedDays,
    WaitingDay,
    is_aggregated,
    select_overdue_days,
    select_waiting_days,
)
from frazil.aggregate.spec import AggregationSpec
from frazil.partitions.windows import Grain, Window
from frazil.signals.signal_table import Signal, SignalState
from frazil.table.catalogs import load_catalog

DAY = date(2013, 12, 30)


def signals(grain: Grain = Grain.HOUR) -> list[Signal]:
    begin_us = Window.parse(str(DAY)).start_us
    windows = [Window(us, grain) for us in range(begin_us, begin_us + Grain.DAY.us, grain.us)]
    return [
        Signal(
            table="t", partition=w.key, start_us=w.start_us, end_us=w.end_us, revision=1,
            state=SignalState.COMPLETE, rows=1, dead_letters=0, late_rows=0, watermark_us=0, snapshot_id=1,
            sequence_number=10 + n, signalled_at_ms=100 + n,
        )
        for n, w in enumerate(windows)
    ]  # fmt: skip


@pytest.mark.parametrize("grain", list(Grain))
def test_a_day_waits_from_its_last_signal_until_the_target_has_the_signalled_revisions(grain: Grain) -> None:
    hours = signals(grain)
    last = hours[-1]
    (found,) = select_waiting_days(hours, AggregatedDays({}))
    assert found == WaitingDay(DAY, "1", last.signalled_at_ms)
    assert select_waiting_days(hours, AggregatedDays({DAY: ("1", 10)})) == ()
    assert select_waiting_days(hours, AggregatedDays({DAY: ("none", last.sequence_number)})) == (), (
        "a run by hand read as much"
    )
    assert select_waiting_days(hours, AggregatedDays({DAY: ("none", last.sequence_number - 1)})) == (found,), (
        "a run came early"
    )
    reopened = dataclasses.replace(hours[0], revision=2, sequence_number=99, signalled_at_ms=999)
    (again,) = select_waiting_days([reopened, *hours[1:]], AggregatedDays({DAY: ("1", 33)}))
    assert (again.since_ms, again.revisions) == (999, f'{{"{reopened.partition}":2}}')


def test_an_open_or_held_day_is_not_reported_as_waiting() -> None:
    hours = signals()
    held = [*hours[:-1], dataclasses.replace(hours[-1], state=SignalState.HELD)]
    assert select_waiting_days(hours[:-1], AggregatedDays({})) == select_waiting_days(held, AggregatedDays({})) == ()
    assert select_waiting_days([], AggregatedDays({})) == ()


def test_a_target_with_expired_history_reports_no_older_days_as_waiting() -> None:
    hours = signals()
    assert select_waiting_days(hours, AggregatedDays({}, oldest_ms=hours[-1].signalled_at_ms + 1)) == ()
    assert len(select_waiting_days(hours, AggregatedDays({}, oldest_ms=hours[-1].signalled_at_ms))) == 1


def test_a_day_is_late_after_the_time_that_is_declared() -> None:
    day = WaitingDay(DAY, "1", 1_000)
    assert select_overdue_days([day], within=timedelta(seconds=1), now_ms=2_000) == ()
    assert select_overdue_days([day], within=timedelta(seconds=1), now_ms=2_001) == (day,)


def test_a_day_whose_source_was_rolled_back_no_longer_counts_as_aggregated(frazil_home: Path) -> None:  # noqa: ARG001
    catalog, rows = load_catalog(None), pa.table({"at": [1]})
    catalog.create_namespace("shop")
    spec = AggregationSpec.model_validate(
        {"name": "a", "source": "shop.s", "event-time": "at", "target": "shop.t", "sql": "SELECT 1"}
    )

    def appended(name: str, **summary: str) -> int:
        table = catalog.create_table_if_not_exists(name, rows.schema)
        table.append(rows, snapshot_properties=summary)
        return table.current_snapshot().snapshot_id  # type: ignore[union-attr]

    first, second = appended("shop.s"), appended("shop.s")
    said = {"frazil.aggregation": "a", "frazil.day": str(DAY), "frazil.input-revisions": "1"}
    appended("shop.t", **said, **{"frazil.input-snapshot-id": str(second), "frazil.input-sequence-number": "2"})
    hours = [dataclasses.replace(s, sequence_number=2) for s in signals()]
    assert is_aggregated(catalog, spec, DAY, hours)
    source = catalog.load_table("shop.s")
    source.manage_snapshots().set_current_snapshot(first).commit()
    assert not is_aggregated(catalog, spec, DAY, hours), "it was rolled back"
    catalog.drop_table("shop.s")
    appended("shop.s")
    assert not is_aggregated(catalog, spec, DAY, hours), "it was made again"
