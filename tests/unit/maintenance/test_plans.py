"""What a plan reads from the table and its streams before it decides."""

from __future__ import annotations

from frazil.maintenance.plans import complete_before_us
from frazil.maintenance.tables import find_maintained
from tests.made_batches import EventTimes, MadeStream
from tests.unit.maintenance.day_by_day import BEGIN_MS, DAY_US, FIRST_DAY_US


def test_where_a_stream_has_no_watermark_partitions_are_over_a_day_after_their_end(made: MadeStream) -> None:
    found, now_us = find_maintained([made.spec], "demo.made"), BEGIN_MS * 1_000
    assert complete_before_us(made.tables.main.current(), found, now_ms=BEGIN_MS) == now_us - DAY_US
    made.now_ms = BEGIN_MS
    made.land({0: (0, 2)}, times=EventTimes(newest_us={0: FIRST_DAY_US}))
    table = made.tables.main.refresh()
    assert complete_before_us(table, found, now_ms=BEGIN_MS) <= FIRST_DAY_US
    with table.transaction() as change:
        change.set_properties({"frazil.stream.gone": table.properties["frazil.stream.made"]})
    assert complete_before_us(table.refresh(), found, now_ms=BEGIN_MS) == now_us - DAY_US
