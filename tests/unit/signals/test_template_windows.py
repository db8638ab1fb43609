"""Windows of tables that a route's template creates: each table has its own signals, with a shared sequence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyiceberg.exceptions import ForbiddenError

from frazil.cli.main import frazil
from frazil.errors import AccessDenied, MarkerUnreadable
from frazil.maintenance.plans import read_pins
from frazil.maintenance.tables import find_maintained
from frazil.partitions.windows import Window
from frazil.signals import signal_table
from frazil.signals.completion import (
    GateOutcome,
    assess_group,
    assess_table,
    load_window_status,
    release_window,
    resend_signals,
    signal_windows,
)
from frazil.signals.signal_table import TableSignals
from frazil.spec.conflicts import find_conflicts
from frazil.spec.load import find_streams_of
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import RoutedStream, find_feeding_streams, view_from_table
from frazil.table.catalogs import load_catalog
from tests.made_routes import MadeRoute, shop
from tests.unit.signals.test_routed_feed import hour

pytestmark = pytest.mark.usefixtures("frazil_home")

TEMPLATE = "shop.raw_{value}"


def declared(**more: Any) -> StreamSpec:
    route = {"by": "field", "name": "kind", "template": TEMPLATE, "complete": [TEMPLATE], **more.pop("route", {})}
    return shop(**{"complete": "hour", "complete-from": "2023-11-14T22:00:00Z", "route": route, **more})


def begun(*values: str, **more: Any) -> MadeRoute:
    made = MadeRoute(declared(**more), time.time_ns() // 1_000_000)
    made.begin_route(*values)
    return made


def group(spec: StreamSpec) -> RoutedStream:
    view = view_from_table(spec, TEMPLATE)
    assert isinstance(view, RoutedStream)
    return view


def signalled(made: MadeRoute, **options: Any) -> set[tuple[str, str, int, int]]:
    """Table, window, revision and rows of the signals of one pass that have rows."""
    gates = options.pop("gates", None)
    found = assess_group(load_catalog(None), group(made.spec), **options)
    rows = signal_windows(load_catalog(None), *found, clock_ms=1, gates=gates) if found else ()
    return {(s.table, s.partition, s.revision, s.rows) for s in rows if s.rows}


def test_each_table_that_the_template_makes_has_the_windows_of_a_named_table() -> None:
    made = begun("web", "app")
    made.run({"shop.raw_web": 3, "shop.raw_app": 1}, at_us=hour(0.5))
    assert signalled(made) == set()
    made.batch({"shop.raw_web": 2}, at_us=hour(1.5))
    assert signalled(made) == {("shop.raw_app", "2023-11-14T22", 1, 1)}, "a batch waits for the other table"
    made.follow()
    assert signalled(made) == {("shop.raw_web", "2023-11-14T22", 1, 3)}
    made.run({"shop.raw_app": 5}, at_us=hour(0.7))
    made.run({"main": 1}, at_us=hour(2.5))
    assert signalled(made, reopened=False) == {
        ("shop.raw_web", "2023-11-14T23", 1, 2),
        ("shop.raw_app", "2023-11-14T22", 2, 6),
    }
    assert signalled(made) == set()


def test_a_check_without_late_rows_loads_only_tables_that_may_have_complete_windows() -> None:
    made = begun("web", "app")
    made.run({"shop.raw_web": 1, "shop.raw_app": 1}, at_us=hour(1.5))
    signalled(made)
    made.run({"shop.raw_web": 1}, at_us=hour(0.5))
    assert assess_group(load_catalog(None), group(made.spec), reopened=False) == []
    assert signalled(made) == {("shop.raw_web", "2023-11-14T22", 2, 1)}


def test_a_table_that_is_made_later_is_signalled_from_the_window_of_its_first_rows() -> None:
    made = begun("web", **{"complete-from": None})
    made.run({"shop.raw_web": 1}, at_us=hour(0.5))
    signalled(made)
    made.begin_route("new")
    made.run({"shop.raw_new": 2}, at_us=hour(1.2))
    made.run({"shop.raw_web": 1}, at_us=hour(2.5))
    assert signalled(made) == {("shop.raw_web", "2023-11-14T22", 1, 1), ("shop.raw_new", "2023-11-14T23", 1, 2)}


def test_before_the_template_has_made_a_table_nothing_is_signalled(tmp_path: Path) -> None:
    made = begun()
    made.run({"main": 1}, at_us=hour(2.5))
    assert assess_group(load_catalog(None), group(made.spec)) == []
    assert TableSignals.load(load_catalog(None), TEMPLATE).signals_table is None
    text = made.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    said = CliRunner().invoke(frazil, ["partitions", TEMPLATE, "--streams", str(tmp_path)])
    assert said.output == "the template has created no table yet\n"


def test_signals_of_all_tables_are_one_commit_and_have_the_groups_numbers() -> None:
    values = [f"v{n:03}" for n in range(40)]
    made = begun(*values)
    made.run({f"shop.raw_{value}": 1 for value in values}, at_us=hour(1.5))
    catalog = load_catalog(None)
    before = TableSignals.load(catalog, TEMPLATE)
    assert (before.number, before.held(), before.after(0)) == (0, [], ())
    assert signalled(made) == set()
    made.run({"main": 1}, at_us=hour(2.5))
    assert len(signalled(made)) == 40
    signals = catalog.load_table(signal_table.SIGNALS_TABLE)
    assert len(signals.metadata.snapshots) <= 2
    whole = TableSignals.load(catalog, TEMPLATE)
    rows = whole.after(0)
    assert [s.number for s in rows] == list(range(1, 81))
    assert {whole.event_key(s) for s in rows if s.rows} == {f"2023-11-14T23|shop.raw_{value}" for value in values}
    one = TableSignals.load(catalog, "shop.raw_v007")
    assert [s.partition for s in one.after(0)] == ["2023-11-14T22", "2023-11-14T23"]
    assert one.recent(1)[-1].number == one.number
    assert len(whole.after(one.number)) == 80 - one.number


def test_a_held_window_is_released_and_signalled_with_the_next_number_of_its_group() -> None:
    made = begun("web", "app")
    made.run({"shop.raw_web": 1, "shop.raw_app": 1}, at_us=hour(1.5))
    made.run({"main": 1}, at_us=hour(2.5))
    catalog = load_catalog(None)

    def fail_web(seen: Any, windows: Any) -> dict[Window, GateOutcome]:
        return {w: GateOutcome(seen.signals.table != "shop.raw_web", "bad") for w in windows}

    signalled(made, gates=fail_web)
    (held,) = TableSignals.load(catalog, TEMPLATE).held()
    assert (held.table, held.partition, held.note) == ("shop.raw_web", "2023-11-14T23", "bad")
    (view,) = find_feeding_streams([made.spec], "shop.raw_web")
    window = Window.parse(held.partition)
    before = TableSignals.load(catalog, TEMPLATE).number
    released = release_window(catalog, view, window, note="by ana", clock_ms=2)
    assert released.sent
    resend_signals(catalog, "shop.raw_app", [window], note="again", clock_ms=3)
    added = TableSignals.load(catalog, TEMPLATE).after(before)
    assert [(s.table, s.state, s.number - before) for s in added] == [
        ("shop.raw_web", "released", 1),
        ("shop.raw_app", "again", 2),
    ]
    assert TableSignals.load(catalog, TEMPLATE).held() == []


def test_concurrent_signal_passes_signal_each_window_once() -> None:
    made = begun("web", "app")
    made.run({"shop.raw_web": 1, "shop.raw_app": 1}, at_us=hour(1.5))
    made.run({"main": 1}, at_us=hour(2.5))
    catalog = load_catalog(None)
    first, second = (assess_group(catalog, group(made.spec)) for _ in range(2))
    assert len(signal_windows(catalog, *first[:1], clock_ms=1)) == 2
    assert signal_windows(catalog, *second, clock_ms=1) == ()
    assert len(signal_windows(catalog, *assess_group(catalog, group(made.spec)), clock_ms=1)) == 2


def test_a_table_that_cannot_be_read_does_not_keep_the_others_from_being_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = begun("web", "app")
    made.run({"shop.raw_web": 1, "shop.raw_app": 1}, at_us=hour(1.5))
    made.run({"main": 1}, at_us=hour(2.5))
    catalog = type(load_catalog(None))
    load = catalog.load_table

    def refusing(self: Any, identifier: Any) -> Any:
        if identifier == "shop.raw_app":
            raise ForbiddenError("not yours")
        return load(self, identifier)

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "load_table", refusing)
        assert signalled(made) == {("shop.raw_web", "2023-11-14T23", 1, 1)}
        with pytest.raises(AccessDenied, match=r"shop\.raw_app"):
            assess_group(load_catalog(None), group(made.spec), reopened=False)
    assert signalled(made) == {("shop.raw_app", "2023-11-14T23", 1, 1)}


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 9, "group": "shop.raw_{value}"}'])
def test_an_unreadable_cursor_keeps_only_the_tables_of_its_own_group_from_being_signalled(text: str) -> None:
    made = begun("web")
    made.run({"shop.raw_web": 1}, at_us=hour(1.5))
    signalled(made)
    catalog = load_catalog(None)
    with catalog.load_table(signal_table.SIGNALS_TABLE).transaction() as change:
        change.set_properties({"frazil.signals.shop.raw_app": text, "frazil.signals.shop.other": text})
    with pytest.raises(MarkerUnreadable, match=r"shop\.raw_app"):
        TableSignals.load(catalog, TEMPLATE).members()
    for template in ("shop.others_{value}", "shop.raw_{value}_v1", "shop_b.raw_{value}"):
        assert TableSignals.load(catalog, template).members() == []
    assert [one.table for one in TableSignals.load(catalog, "shop.raw_web").members()] == ["shop.raw_web"]


def test_a_foreign_table_with_a_templated_name_has_no_windows() -> None:
    made = begun("web")
    made.run({"shop.raw_web": 1}, at_us=hour(1.5))
    catalog = load_catalog(None)
    foreign = catalog.create_table("shop.raw_foreign", catalog.load_table("shop.raw_web").schema())
    assert {one.signals.table for one in assess_group(catalog, group(made.spec))} == {"shop.raw_web"}
    with pytest.raises(Exception, match=r"shop did not create shop\.raw_foreign"):
        load_window_status(find_feeding_streams([made.spec], str(".".join(foreign.name()))), "2023-11-14T22")


def test_a_templated_table_that_the_route_also_names_has_its_own_signals_and_keeps_its_cursor() -> None:
    made = begun("web", "app")
    made.run({"shop.raw_web": 1, "shop.raw_app": 1}, at_us=hour(1.5))
    assert signalled(made) == set()
    made.spec = declared(route={"complete": [TEMPLATE, "shop.raw_web"]})
    made.run({"main": 1}, at_us=hour(2.5))
    assert signalled(made) == {("shop.raw_app", "2023-11-14T23", 1, 1)}
    catalog = load_catalog(None)
    (view,) = find_feeding_streams([made.spec], "shop.raw_web")
    assert view.signal_name == "shop.raw_web"
    seen = assess_table(catalog, [view])
    assert seen is not None
    assert [s.partition for s in signal_windows(catalog, seen, clock_ms=1)] == ["2023-11-14T23"]
    assert TableSignals.load(catalog, "shop.raw_web").group is None
    assert {s.table for s in TableSignals.load(catalog, TEMPLATE).after(0)} == {"shop.raw_app"}


def test_a_table_that_joins_the_group_does_not_send_its_earlier_windows_again() -> None:
    made = begun("web", "app", route={"complete": ["shop.raw_web"]})
    made.run({"shop.raw_web": 1, "shop.raw_app": 1}, at_us=hour(1.5))
    made.run({"main": 1}, at_us=hour(2.5))
    catalog = load_catalog(None)
    (view,) = find_feeding_streams([made.spec], "shop.raw_web")
    seen = assess_table(catalog, [view])
    assert seen is not None
    assert len(signal_windows(catalog, seen, clock_ms=1)) == 2
    later = {"complete-from": "2023-11-15T00:00:00Z"}
    made.spec = declared(**later, route={"complete": [TEMPLATE, "shop.raw_web"]})
    made.run({"shop.raw_web": 1, "shop.raw_app": 1}, at_us=hour(2.6))
    made.run({"main": 1}, at_us=hour(3.5))
    assert signalled(made) == {("shop.raw_app", "2023-11-15T00", 1, 1)}
    made.spec = declared(**later)
    assert signalled(made) == {("shop.raw_web", "2023-11-15T00", 1, 1)}
    whole, web = (TableSignals.load(catalog, table) for table in (TEMPLATE, "shop.raw_web"))
    assert {(s.table, s.partition) for s in whole.after(0)} == {
        ("shop.raw_app", "2023-11-15T00"),
        ("shop.raw_web", "2023-11-15T00"),
    }
    assert [s.partition for s in web.after(0)] == ["2023-11-14T22", "2023-11-14T23", "2023-11-15T00"]


def test_expiry_keeps_snapshots_that_signals_of_a_template_table_need() -> None:
    made = begun("web")
    made.run({"shop.raw_web": 1}, at_us=hour(0.5))
    made.run({"shop.raw_web": 1}, at_us=hour(1.5))
    signalled(made)
    pins = read_pins(load_catalog(None), find_maintained([made.spec], "shop.raw_web"), now_ms=2)
    assert pins.cursor is not None
    assert pins.signalled_snapshots


def test_a_templated_table_is_found_by_its_name_and_a_stream_that_names_it_comes_first(tmp_path: Path) -> None:
    for spec in (declared(), shop(name="own", table="shop.raw_own", route=None)):
        text = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        (tmp_path / f"{spec.name}.yaml").write_text(yaml.safe_dump(text))
    assert [(s.name, s.window) for s in find_streams_of(tmp_path, "shop.raw_web")] == [("shop", "hour")]
    assert [(s.name, s.window) for s in find_streams_of(tmp_path, "shop.raw_own")] == [("own", None)]


def test_two_streams_do_not_signal_the_same_template() -> None:
    specs = {Path(name): declared(name=name, table=f"shop.{name}") for name in ("one", "two")}
    (said,) = [text for text in find_conflicts(specs) if "route.complete" in text]
    assert said.endswith("is also the template of the stream in one; rename one")


def test_a_template_that_is_too_long_for_partition_keys_is_refused() -> None:
    long = f"shop.{'x' * 160}{{value}}"
    with pytest.raises(ValueError, match="too long for Airflow's partition keys"):
        declared(route={"template": long, "complete": [long]})
