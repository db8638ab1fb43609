"""A routed table's window is complete once the default table has passed it and the routed table has its rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.maintenance.plans import read_pins
from frazil.maintenance.tables import find_maintained
from frazil.signals import completion
from frazil.signals.completion import Assessment, assess_table, signal_windows
from frazil.spec.load import find_streams_of
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import RoutedStream, list_windowed_views, view_from_table
from frazil.table.catalogs import load_catalog
from tests.made_routes import MadeRoute, shop
from tests.strict_streams import load_streams

pytestmark = pytest.mark.usefixtures("frazil_home")

HOUR_US = 3_600_000_000
BEGIN_US = 1_700_000_000_000_000 // HOUR_US * HOUR_US
"""A whole hour."""
TABLES = {"order": "shop.orders", "payment": "shop.payments"}


def declared(**more: Any) -> StreamSpec:
    route = {"by": "field", "name": "kind", "tables": TABLES, "complete": ["shop.orders"], **more.pop("route", {})}
    return shop(**{"complete": "hour", "complete-from": "2023-11-14T22:00:00Z", "route": route, **more})


@pytest.fixture
def made() -> MadeRoute:
    stream = MadeRoute(declared(), time.time_ns() // 1_000_000)
    stream.begin_route()
    return stream


def seen(made: MadeRoute, table: str = "shop.orders") -> Assessment:
    view = view_from_table(made.spec, table)
    assert view is not None
    found = assess_table(load_catalog(None), [view])
    assert found is not None
    return found


def complete(made: MadeRoute, table: str = "shop.orders") -> list[int]:
    """The hours that are complete with rows, counted from the first."""
    rows = signal_windows(load_catalog(None), seen(made, table), clock_ms=1)
    return [(one.start_us - BEGIN_US) // HOUR_US for one in rows if one.rows]


def decided_to(made: MadeRoute) -> int:
    """The hour before which all are complete, with rows or without, counted from the first."""
    cursor = seen(made).cursor
    assert cursor is not None
    return (cursor.through_us - BEGIN_US) // HOUR_US


def hour(number: float) -> int:
    return BEGIN_US + int(number * HOUR_US)


def test_an_hour_of_a_routed_table_is_complete_once_all_its_rows_are_committed(made: MadeRoute) -> None:
    made.run({"shop.orders": 3, "main": 1}, at_us=hour(0.5))
    assert complete(made) == []
    made.batch({"shop.orders": 2}, at_us=hour(1.5))
    assert complete(made) == [], "the default table is past the first hour, and a batch waits for the table"
    made.follow()
    assert complete(made) == [0]
    made.run({"main": 1}, at_us=hour(2.5))
    assert complete(made) == [1], "a batch without rows for the table counts too"


def test_rows_that_land_while_a_table_is_assessed_are_not_missing_from_its_window(
    made: MadeRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run({"shop.orders": 3}, at_us=hour(0.5))
    made.batch({"shop.orders": 2}, at_us=hour(0.6))
    catalog = load_catalog(None)
    load, begun = catalog.load_table, list[str]()

    def loaded(identifier: str) -> Any:
        table = load(identifier)
        if identifier == "shop.orders" and not begun:
            begun.append(identifier)
            made.follow()
            made.run({"main": 1}, at_us=hour(1.5))
            made.run({"main": 1}, at_us=hour(1.6))
        return table

    monkeypatch.setattr(catalog, "load_table", loaded)
    view = view_from_table(made.spec, "shop.orders")
    assert view is not None
    found = assess_table(catalog, [view])
    assert found is not None
    assert begun
    assert [one.rows for one in signal_windows(catalog, found, clock_ms=1) if one.rows] in ([], [5])


def test_waiting_rows_hold_back_only_windows_of_rows_of_the_same_or_later_batches(made: MadeRoute) -> None:
    made.run({"shop.orders": 1}, at_us=hour(0.5))
    made.run({"main": 1}, at_us=hour(1.5))
    made.batch({"shop.orders": 1}, at_us=hour(5))
    assert complete(made) == [0]
    assert decided_to(made) == 1, "no later hour, with rows or without"
    assert "the newest event of stream shop is from" in seen(made).decision.reason
    made.batch({"main": 1}, at_us=hour(6))
    assert complete(made) == []
    assert decided_to(made) == 1
    made.follow()
    assert complete(made) == [5]
    assert decided_to(made) == 6


def test_rows_waiting_in_the_first_batch_leave_every_window_undecided_with_the_reason(made: MadeRoute) -> None:
    made.batch({"shop.orders": 1}, at_us=hour(0.5))
    assert seen(made).decision.reason.startswith(
        "nothing is complete: the watermark of shop cannot be used: shop.orders is missing rows from batch 1-1 on"
    )


def test_rows_that_come_late_reopen_the_windows_of_their_table_alone(made: MadeRoute) -> None:
    made.run({"shop.orders": 1, "main": 1}, at_us=hour(0.5))
    made.run({"main": 1}, at_us=hour(3))
    assert complete(made) == [0]
    assert complete(made, "shop.other") == [0]
    made.run({"shop.orders": 2}, at_us=hour(0.7))
    again = seen(made).decision.again
    assert {(w.start_us - BEGIN_US) // HOUR_US: rows for w, rows in again.items()} == {0: 2}
    assert seen(made, "shop.other").decision.again == {}


def test_a_rolled_back_table_or_a_dropped_default_table_completes_no_window(made: MadeRoute) -> None:
    made.run({"shop.orders": 1}, at_us=hour(0.5))
    made.run({"shop.orders": 1}, at_us=hour(1.5))
    catalog = load_catalog(None)
    orders = catalog.load_table("shop.orders")
    with orders.manage_snapshots() as refs:
        refs.rollback_to_snapshot(orders.metadata.snapshots[0].snapshot_id)
    assert "the watermark of shop cannot be used" in seen(made).decision.reason
    catalog.drop_table("shop.other")
    assert "the watermark of shop cannot be used" in seen(made).decision.reason


def test_no_journal_is_read_for_a_table_that_has_all_batches(made: MadeRoute, monkeypatch: pytest.MonkeyPatch) -> None:
    made.run({"shop.orders": 1}, at_us=hour(0.5))
    monkeypatch.setattr(completion, "decided_journals", lambda *_: pytest.fail("a journal is read"))
    assert seen(made).feeds[0].watermark_us == hour(0.5)


def test_a_routed_table_has_windows_only_if_the_route_declares_them(tmp_path: Path) -> None:
    text = declared().model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    assert list(load_streams(tmp_path).values())
    (orders,), (payments,) = find_streams_of(tmp_path, "shop.orders"), find_streams_of(tmp_path, "shop.payments")
    assert isinstance(orders, RoutedStream)
    assert (orders.default_table, orders.table.identifier, orders.window) == ("shop.other", "shop.orders", "hour")
    assert payments.window is None
    assert [view.table.identifier for view in list_windowed_views(declared())] == ["shop.other", "shop.orders"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"route": {"complete": ["shop.order"]}}, r"is not in route\.tables"),
        ({"complete": "none"}, "because no window of the stream ever completes"),
    ],
)
def test_a_table_without_windows_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        declared(**wrong)


def test_declaring_windows_of_routed_tables_restarts_no_writer() -> None:
    assert declared().fingerprint() == declared(route={"complete": []}).fingerprint()


def test_expiry_keeps_snapshots_that_signals_of_a_routed_table_need(made: MadeRoute) -> None:
    made.run({"shop.orders": 1}, at_us=hour(0.5))
    made.run({"shop.orders": 1}, at_us=hour(1.5))
    assert complete(made) == [0]
    pins = read_pins(load_catalog(None), find_maintained([made.spec], "shop.orders"), now_ms=2)
    assert pins.cursor is not None
    assert len(pins.signalled_snapshots) >= 1
    assert read_pins(load_catalog(None), find_maintained([made.spec], "shop.payments"), now_ms=2).cursor is None
