"""The runbook's entries for table health: their alerts fire, and their commands resolve them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from frazil import clock
from frazil.cli.main import frazil
from frazil.maintenance.alerts import AlertStates, evaluate_readings, evaluate_table_rules
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import find_maintained
from frazil.spark import application
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from tests.made_batches import EventTimes, MadeStream
from tests.runbook import commands, entries

pytestmark = pytest.mark.usefixtures("shared_home")

SHAPE = [
    "small-files",
    "since-compaction",
    "delete-files",
    "deleted-rows",
    "manifests",
    "manifest-list",
    "snapshots",
    "metadata",
]
STREAM = """
name: rides
source: {topics: [rides], bootstrap-servers: "127.0.0.1:1"}
table:
  identifier: city.rides
  properties:
    write.delete.mode: merge-on-read
    write.metadata.previous-versions-max: "1"
    commit.manifest-merge.enabled: "false"
schema: {at: timestamptz not null}
event-time: at
partition-by: [day(at)]
maintenance:
  compaction: {min-files: 2}
  manifests: {max-count: 2}
  expiry: {keep: 1ms, at-least: 1}
  alerts:
    hold: 1ms
    small-files: 5
    since-compaction: 5KiB
    delete-files: 1
    deleted-rows: 20
    manifests: 5
    manifest-list-bytes-per-file: 24
    snapshots: 8
    metadata-bytes: 8KiB
"""
DAY_US = 86_400_000_000
BEGIN_US = 1_388_361_600_000_000


@pytest.mark.rotates(2)
def test_an_unhealthy_table_is_repaired_by_the_runbook(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rides.yaml"
    file.write_text(STREAM)
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))

    monkeypatch.setattr(application, "start_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)  # the next test needs it
    made = MadeStream(load_stream(file), clock.now_ms(), partitions=1, columns=columns)
    for batch in range(70):
        made.now_ms = clock.now_ms()
        span = (batch * 30, batch * 30 + 30)
        made.land({0: span}, times=EventTimes({0: BEGIN_US + 3 * DAY_US}))
    for rest in range(3):
        spark.sql(f"DELETE FROM default.city.rides WHERE kafka_offset % 10 = {rest}")
    states = AlertStates()

    def red() -> set[str]:
        nonlocal states
        spec, now_ms = load_stream(file), clock.now_ms() + 10
        found = measure(load_catalog(None), find_maintained([spec], "city.rides"), now_ms=now_ms)
        assert found is not None
        seen = evaluate_table_rules(found, spec.maintenance, now_ms=now_ms)
        states = evaluate_readings(states, found.table, seen, spec.maintenance.alerts, now_ms=now_ms).states
        return {rule for rule, state in states.rules.items() if state.active}

    red()
    assert red() >= set(SHAPE)
    before = shown()
    for rule in SHAPE:
        for name in dict.fromkeys(("Check", "Fix") if "**Check**" in entries()[rule] else ("Fix",)):
            for words in commands(rule, name):
                give(words)
    assert red().isdisjoint(SHAPE)
    assert {tuple(words) for rule in SHAPE for words in commands(rule, "Verify")} == {("health", "city.rides")}
    after = shown()
    for number in ("data files", "delete files", "manifests", "snapshots"):
        assert after[number] < before[number], number
    assert made.tables.main.refresh().scan().count() == 1470


def give(words: list[str]) -> str:
    done = CliRunner().invoke(frazil, words, catch_exceptions=False)
    assert done.exit_code == 0, (words, done.output)
    return done.output


def shown() -> dict[str, int]:
    """Return the numbers of `frazil health city.rides`, which confirm the fix."""
    rows = re.findall(r"^(data files|delete files|manifests|snapshots) +([\d,]+)", give(["health", "city.rides"]), re.M)
    return {name: int(number.replace(",", "")) for name, number in rows}


def columns(rows: int) -> Mapping[str, pa.Array]:
    return {"at": pa.array(np.full(rows, BEGIN_US)).cast(pa.timestamp("us", "UTC"))}
