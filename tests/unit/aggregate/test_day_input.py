"""The snapshot from which a day is aggregated, chosen by the signals of a real table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.aggregate.day_input import DayInput, choose_input, held_windows, is_complete, load_day_signals, reuse_input
from frazil.aggregate.spec import AggregationSpec
from frazil.errors import SpecError
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window
from frazil.signals.signal_table import Append, Signal, SignalState, TableSignals, append_signals
from frazil.table.catalogs import load_catalog

DAY = date(2013, 12, 30)
SPEC = AggregationSpec.model_validate(
    {"name": "sales", "source": "shop.sales", "event-time": "at", "target": "shop.days", "sql": "SELECT 1"}
)
HOURS = [f"2013-12-30T{hour:02}" for hour in range(24)]


def signal(
    key: str, *, at: Table | None = None, revision: int = 1, state: SignalState = SignalState.COMPLETE
) -> Signal:
    """A signal of the window with that key, counted in the table's current snapshot."""
    window, snapshot = Window.parse(key), at.current_snapshot() if at else None
    return Signal(
        table=SPEC.source,
        partition=key,
        start_us=window.start_us,
        end_us=window.end_us,
        revision=revision,
        state=state,
        rows=1,
        dead_letters=0,
        late_rows=0,
        watermark_us=window.end_us,
        snapshot_id=snapshot.snapshot_id if snapshot else 1,
        sequence_number=(snapshot.sequence_number or 0) if snapshot else 1,
        signalled_at_ms=0,
    )


def day_of(keys: Iterable[str] = HOURS, *, at: Table | None = None) -> tuple[Signal, ...]:
    return tuple(signal(key, at=at) for key in keys)


@pytest.fixture
def catalog(frazil_home: Path) -> Catalog:  # noqa: ARG001
    catalog = load_catalog(None)
    catalog.create_namespace("shop")
    return catalog


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """A table with one snapshot."""
    table = catalog.create_table(SPEC.source, pa.schema([pa.field("amount", pa.int64())]))
    append(table)
    return table


def append(table: Table) -> None:
    table.append(pa.table({"amount": [1]}))


def choose(catalog: Catalog, signals: Iterable[Signal]) -> DayInput:
    """Return the chosen snapshot if the catalog has these signals, and some of the next day."""
    seen = TableSignals.load(catalog, SPEC.source)
    cursor = Cursor(Grain.HOUR, 0, 0, 0)
    assert append_signals(catalog, Append(seen, (*signals, signal("2013-12-31T00", revision=9)), cursor), clock_ms=0)
    return choose_input(catalog, SPEC, DAY, load_day_signals(catalog, SPEC, DAY))


def test_a_complete_day_is_read_at_the_newest_snapshot_that_a_signal_names(catalog: Catalog, table: Table) -> None:
    early = day_of(HOURS[:15], at=table)
    append(table)
    named = table.current_snapshot()
    late = day_of(HOURS[15:], at=table)
    append(table)
    assert named is not None
    assert choose(catalog, early + late) == DayInput(named.snapshot_id, 2, "1")


def test_an_aggregation_uses_and_stores_the_last_revision_of_a_window(catalog: Catalog, table: Table) -> None:
    first = day_of(at=table)
    append(table)
    chosen = choose(catalog, (*first, signal(HOURS[15], at=table, revision=2)))
    assert (chosen.sequence_number, chosen.revisions) == (2, '{"2013-12-30T15":2}')


@pytest.mark.parametrize(
    ("keys", "revisions"),
    [([], "none"), (HOURS[:22], "none"), (HOURS, "1")],
    ids=["history", "still open", "its snapshot is gone"],
)
def test_windows_without_usable_signals_are_read_at_the_current_snapshot(
    catalog: Catalog, table: Table, keys: list[str], revisions: str
) -> None:
    signals = day_of(keys)
    append(table)
    current = table.current_snapshot()
    assert current is not None
    assert choose(catalog, signals) == DayInput(current.snapshot_id, 2, revisions)


def test_a_snapshot_that_was_rolled_back_is_not_read(catalog: Catalog, table: Table) -> None:
    append(table)
    first, last = (snapshot.snapshot_id for snapshot in table.snapshots())
    signals = day_of(at=table)
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    assert choose(catalog, signals).snapshot_id == first
    for given in (first, last):
        assert reuse_input(catalog, SPEC, DAY, snapshot_id=given, revisions="1") == DayInput(first, 1, "1")


def test_an_expired_chosen_snapshot_is_replaced_if_the_signals_have_not_changed(catalog: Catalog, table: Table) -> None:
    chosen = choose(catalog, day_of(HOURS[:22]))
    append(table)
    append(table)
    assert reuse_input(catalog, SPEC, DAY, snapshot_id=chosen.snapshot_id, revisions="none") == chosen
    table.maintenance.expire_snapshots().by_id(chosen.snapshot_id).commit()
    again = reuse_input(catalog, SPEC, DAY, snapshot_id=chosen.snapshot_id, revisions="none")
    current = table.refresh().current_snapshot()
    assert current is not None
    assert again == DayInput(current.snapshot_id, 3, "none")
    with pytest.raises(SpecError, match="the signals of 2013-12-30 have changed"):
        reuse_input(catalog, SPEC, DAY, snapshot_id=chosen.snapshot_id, revisions="1")


def test_a_chosen_snapshot_is_not_replaced_while_a_gate_holds_the_day(catalog: Catalog, table: Table) -> None:
    choose(catalog, (signal(HOURS[0], at=table, state=SignalState.HELD),))
    with pytest.raises(SpecError, match="the signals of 2013-12-30 have changed"):
        reuse_input(catalog, SPEC, DAY, snapshot_id=4711, revisions="none")


def test_an_aggregation_source_without_a_table_or_snapshot_is_reported(catalog: Catalog) -> None:
    with pytest.raises(SpecError, match=r"table shop\.sales does not exist yet"):
        choose_input(catalog, SPEC, DAY, ())
    catalog.create_table(SPEC.source, pa.schema([pa.field("amount", pa.int64())]))
    with pytest.raises(SpecError, match=r"shop\.sales has no snapshot yet"):
        choose_input(catalog, SPEC, DAY, ())


def test_a_day_is_complete_when_windows_that_no_gate_holds_cover_it() -> None:
    assert is_complete(DAY, day_of())
    assert is_complete(DAY, day_of(["2013-12-30"]))
    assert not is_complete(DAY, day_of(HOURS[1:]))
    assert not is_complete(DAY, day_of(HOURS[:-1]))
    assert not is_complete(DAY, day_of([*HOURS[:5], *HOURS[6:]]))
    one_is_held = (*day_of(HOURS[1:]), signal(HOURS[0], state=SignalState.HELD))
    assert not is_complete(DAY, one_is_held)
    assert held_windows(one_is_held) == [HOURS[0]]
    assert is_complete(DAY, (*day_of(HOURS[1:]), signal(HOURS[0], state=SignalState.RELEASED)))
