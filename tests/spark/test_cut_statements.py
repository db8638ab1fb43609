"""Runs what `frazil cut --sql` prints: each statement reads the rows of the cut, and no later rows."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyiceberg.table import StaticTable

from frazil.cli.main import frazil
from frazil.spec.load import load_stream
from tests.made_routes import MadeRoute, shop

pytestmark = pytest.mark.usefixtures("shared_home")

WANTED = {"shop.other": [0], "shop.raw_a": [1, 2], "shop.other_dead_letters": [3]}


def statements(folder: Path, engine: str) -> list[str]:
    done = CliRunner().invoke(
        frazil, ["cut", "shop", "--sql", engine, "--streams", str(folder)], catch_exceptions=False
    )
    return [str(line) for line in done.stdout.splitlines()]


@pytest.fixture
def printed(tmp_path: Path) -> dict[str, list[str]]:
    """The statements of a cut after the first of two batches, by engine."""
    text = shop().model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    made = MadeRoute(load_stream(tmp_path / "shop.yaml"), time.time_ns() // 1_000_000)
    made.begin_route("a")
    made.run({"main": 1, "shop.raw_a": 2}, rejected=1)
    printed = {engine: statements(tmp_path, engine) for engine in ("spark", "duckdb")}
    made.run({"main": 2, "shop.raw_a": 3, "shop.orders": 1}, rejected=1)
    return printed


def test_each_printed_statement_reads_the_consistent_snapshot_set_and_nothing_later(
    printed: dict[str, list[str]], spark: Any
) -> None:
    found = {}
    for line in printed["spark"]:
        name = ".".join(re.findall(r"`(\w+)`", line)[1:])
        found[name] = sorted(row["kafka_offset"] for row in spark.sql(line.rstrip(";")).collect())
    assert found == {**WANTED, "shop.orders": []}

    # DuckDB's extension is not installed where the tests run: another reader opens what its statement names.
    opened = {}
    for line in printed["duckdb"]:
        named = re.fullmatch(r"SELECT \* FROM iceberg_scan\('(.+/shop/(\w+)/.+)', snapshot_from_id = (\d+)\);", line)
        assert named is not None, line
        scan = StaticTable.from_metadata(named[1]).scan(snapshot_id=int(named[3]))
        opened[f"shop.{named[2]}"] = sorted(scan.to_arrow()["kafka_offset"].to_pylist())
    assert opened == found
