"""The files that agent and driver exchange, on a local disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.remote.driver_folder import DriverExit, DriverFolder, DriverReport, LogEnd, Order, WantedDriver
from frazil.table.storage import LocalStore

ORDER = Order("a" * 32, WantedDriver("f1", "1.0", restart_generation=2), {"name": "ticks"}, "yarn", stop="paused")
HEARTBEAT = Heartbeat(
    "ticks", 1, "f1", Phase.STAGING, 10, 9, stall=Stall(StallKind.OFFSETS, 1, None, "so"), notices=("a",)
)


@pytest.fixture
def folder(tmp_path: Path) -> DriverFolder:
    return DriverFolder(LocalStore(), f"{tmp_path}/driver")


def test_driver_orders_reports_and_log_ends_are_read_back_unchanged(folder: DriverFolder) -> None:
    assert (folder.order(), folder.report("a"), folder.log_end("a")) == (None, None, None)
    report, end = DriverReport(3, HEARTBEAT, "driver-1", 12, DriverExit(11, "gap")), LogEnd("words\n", 12)
    folder.put_order(ORDER)
    folder.write_report(ORDER.id, report)
    folder.put_log_end(ORDER.id, end)
    assert (folder.order(), folder.report(ORDER.id), folder.log_end(ORDER.id)) == (ORDER, report, end)


def test_fields_of_a_later_version_are_left_out_and_a_later_format_is_not_read(folder: DriverFolder) -> None:
    folder.put_order(ORDER)
    file = Path(folder.folder) / "order.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps({**written, "mood": "good", "wanted": {**written["wanted"], "mood": "good"}}))
    assert folder.order() == ORDER
    file.write_text(json.dumps({**written, "format": 2}))
    assert folder.order() is None


def test_reports_of_earlier_drivers_are_removed(folder: DriverFolder) -> None:
    folder.put_order(ORDER)
    for driver in ("b" * 32, ORDER.id):
        folder.write_report(driver, dataclasses.replace(DriverReport(1, None, None)))
    folder.delete_all_but(ORDER.id)
    assert folder.report("b" * 32) is None
    assert folder.report(ORDER.id) is not None
    assert folder.order() == ORDER
