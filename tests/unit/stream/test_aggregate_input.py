"""Which snapshot a day is aggregated from, by signals that are made here and a table that is real."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.commit.signals import Signal
from frazil.errors import SpecError
from frazil.stream import aggregate_input
from frazil.stream.aggregate_input import choose_input, given_input, is_complete, revisions
from frazil.stream.aggregate_spec import AggregationSpec
from frazil.table.catalogs import load_catalog

DAY = date(2013, 12, 30)
DAY_US = int(datetime(2013, 12, 30, tzinfo=UTC).timestamp()) * 1_000_000
HOUR_US = 3_600_000_000
SPEC = AggregationSpec.model_validate(
    {"name": "sales", "source": "shop.sales", "event-time": "at", "target": "shop.days", "sql": "SELECT 1"}
)
Signalled = Callable[[tuple[Signal, ...]], None]


def signal(hour: int, *, revision: int = 1, snapshot_id: int = 1, sequence_number: int = 1) -> Signal:
    numbers = {field.name: 0 for field in dataclasses.fields(Signal)}
    return Signal(
        **{  # type: ignore[arg-type]
            **numbers,
            "table": SPEC.source,
            "partition": f"{DAY}T{hour:02}",
            "start_us": DAY_US + hour * HOUR_US,
            "end_us": DAY_US + (hour + 1) * HOUR_US,
            "revision": revision,
            "snapshot_id": snapshot_id,
            "sequence_number": sequence_number,
        }
    )


WHOLE_DAY = tuple(signal(hour) for hour in range(24))


@pytest.fixture
def catalog(frazil_home: Path) -> Catalog:  # noqa: ARG001
    catalog = load_catalog(None)
    catalog.create_namespace("shop")
    return catalog


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """Three appends: sequence numbers 1 to 3."""
    rows = pa.table({"amount": [1]})
    table = catalog.create_table(SPEC.source, rows.schema)
    for _ in range(3):
        table.append(rows)
    return table


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Signalled:
    """`signalled(signals)`: what the catalog's signals are."""

    def tell(signals: tuple[Signal, ...]) -> None:
        def newest_signals(catalog: Catalog, table: str, *, from_us: int, to_us: int) -> tuple[Signal, ...]:  # noqa: ARG001
            assert (table, from_us, to_us) == (SPEC.source, DAY_US, DAY_US + 24 * HOUR_US)
            return signals

        monkeypatch.setattr(aggregate_input, "newest_signals", newest_signals)

    return tell


def naming(newest: int, *, at_hour: int) -> tuple[Signal, ...]:
    """A whole day, one hour of which names a higher sequence number than the others; no snapshot is a real one."""
    hours = (signal(hour, sequence_number=newest if hour == at_hour else 1) for hour in range(24))
    return tuple(dataclasses.replace(s, snapshot_id=100 + s.sequence_number) for s in hours)


def test_a_complete_day_is_read_at_the_newest_snapshot_that_a_signal_names(
    catalog: Catalog, table: Table, signalled: Signalled
) -> None:
    ids = {snapshot.sequence_number: snapshot.snapshot_id for snapshot in table.snapshots()}
    signals = tuple(dataclasses.replace(s, snapshot_id=ids[s.sequence_number]) for s in naming(2, at_hour=15))
    signalled(signals)
    chosen = choose_input(catalog, SPEC, DAY)
    assert (chosen.snapshot_id, chosen.sequence_number, chosen.revisions) == (ids[2], 2, "1")


@pytest.mark.parametrize(
    ("signals", "written"),
    [((), "none"), (WHOLE_DAY[:22], '{"2013-12-30T22":0,"2013-12-30T23":0}'), (naming(2, at_hour=15), "1")],
    ids=["history", "still open", "its snapshot is gone"],
)
def test_what_signals_do_not_tell_is_read_at_the_current_snapshot(
    catalog: Catalog, table: Table, signalled: Signalled, signals: tuple[Signal, ...], written: str
) -> None:
    signalled(signals)
    chosen = choose_input(catalog, SPEC, DAY)
    assert (chosen.snapshot_id, chosen.sequence_number) == (table.current_snapshot().snapshot_id, 3)  # type: ignore[union-attr]
    assert chosen.revisions == written


def test_a_snapshot_that_was_rolled_back_is_not_read(catalog: Catalog, table: Table, signalled: Signalled) -> None:
    first, _, last = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    signalled(tuple(signal(hour, snapshot_id=last, sequence_number=3) for hour in range(24)))
    assert choose_input(catalog, SPEC, DAY).snapshot_id == first
    with pytest.raises(SpecError, match="expired or rolled back since it was chosen"):
        given_input(catalog, SPEC, snapshot_id=last, revisions="1")
    assert given_input(catalog, SPEC, snapshot_id=first, revisions="1").sequence_number == 1


def test_a_source_without_a_table_or_a_snapshot_is_named(catalog: Catalog, signalled: Signalled) -> None:
    signalled(())
    with pytest.raises(SpecError, match=r"there is no table shop\.sales yet"):
        choose_input(catalog, SPEC, DAY)
    catalog.create_table(SPEC.source, pa.schema([pa.field("amount", pa.int64())]))
    with pytest.raises(SpecError, match=r"shop\.sales has no snapshot yet"):
        choose_input(catalog, SPEC, DAY)


def test_only_windows_that_were_not_signalled_once_are_written_out() -> None:
    assert revisions(SPEC, DAY, WHOLE_DAY) == "1"
    assert revisions(SPEC, DAY, (*WHOLE_DAY[:15], signal(15, revision=2), *WHOLE_DAY[16:])) == '{"2013-12-30T15":2}'


def test_a_day_is_complete_when_each_of_its_windows_was_signalled() -> None:
    assert is_complete(SPEC, DAY, WHOLE_DAY)
    assert not is_complete(SPEC, DAY, WHOLE_DAY[1:])
    whole = signal(0)
    assert is_complete(SPEC.model_copy(update={"windows": "day"}), DAY, (whole,))
