"""DAGs publish measurements of tables as Airflow metrics."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.observability import stats

from frazil.airflow.gauges import export_health, export_windows
from frazil.maintenance.health import StreamHealth, TableHealth
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain

NUMBERS = {field.name: 1 for field in dataclasses.fields(TableHealth)}
STREAMS = (StreamHealth("flights", 7, 5_000, None), StreamHealth("unknown", None, None, None))
KNOWN = {"table": "demo.flights", "data_files": 4, "manifest_list_bytes": 1_000, "streams": STREAMS}
HEALTH = TableHealth(**{**NUMBERS, **KNOWN})  # type: ignore[arg-type]
TABLE = {"table": "demo.flights"}


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, dict[str, Any]]]:
    found: list[tuple[str, float, dict[str, Any]]] = []
    monkeypatch.setattr(stats, "gauge", lambda name, value, tags: found.append((name, value, tags)))
    return found


def test_the_health_of_each_measured_table_its_streams_and_its_alerts_are_reported(reported: Any) -> None:
    active = [{"table": "demo.flights"}, {"table": "demo.flights"}, {"table": "application x"}]
    export_health({"demo.flights": HEALTH, "demo.gone": None, "demo.away": "no route"}, active)
    assert ("frazil.table.data_files", 4, TABLE) in reported
    assert ("frazil.table.manifest_list_bytes_per_file", 250, TABLE) in reported
    flights = {**TABLE, "stream": "flights"}
    of_streams = [one for one in reported if one[0].startswith("frazil.stream.")]
    assert of_streams == [
        ("frazil.stream.lag", 7, flights),
        ("frazil.stream.last_commit_timestamp_seconds", 5.0, flights),
    ]
    alerts = {tags["table"]: value for name, value, tags in reported if name == "frazil.table.alerts"}
    assert alerts == {"demo.flights": 2, "application x": 1, "demo.gone": 0, "demo.away": 0}


def test_gauges_report_the_last_decided_window_and_the_number_of_held_windows(reported: Any) -> None:
    export_windows("demo.flights", Cursor(Grain.HOUR, 0, 7_200_000_000, 1, frozenset({0})))
    export_windows("demo.new", None)
    assert reported == [
        ("frazil.windows.complete_through_timestamp_seconds", 7_200.0, TABLE),
        ("frazil.windows.held", 1, TABLE),
    ]


def test_a_failing_metrics_backend_fails_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(stats, "gauge", fails)
    export_health({"demo.flights": HEALTH}, [])


def test_each_gauge_is_documented_and_reported(reported: Any) -> None:
    export_health({"demo.flights": HEALTH}, [])
    export_windows("demo.flights", Cursor(Grain.HOUR, 0, 1, 1))
    page = Path("docs/how-to/watch-with-prometheus.md").read_text()
    documented = re.findall(r"^\| `(frazil\.(?:table|stream|windows)\.\w+)` \| .+ \|$", page, re.MULTILINE)
    assert {name for name, _, _ in reported} == set(documented)
