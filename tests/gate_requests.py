"""A fixture for tests of quality gates: a small table of flights with its own FRAZIL_HOME, and gate requests for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType, TimestamptzType

from frazil.quality.gate import GateRequest
from frazil.table.catalogs import load_catalog

HOUR_US = 3_600_000_000

Ask = Callable[..., GateRequest]


def expectation(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs}


@pytest.fixture
def ask(frazil_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """`ask(*expectations, **changes)` returns a gate request for the second of two hours of `demo.flights`.

    Each hour has three rows. The first hour's delays are all 9999; the second's are 5, 9999 and null. A later snapshot
    has one more row in the second hour.
    """
    for variable in [name for name in os.environ if name.upper().startswith("PYICEBERG")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    catalog = load_catalog(None)
    catalog.create_namespace("demo")
    schema = Schema(
        NestedField(1, "carrier", StringType()),
        NestedField(2, "delay", IntegerType()),
        NestedField(3, "at", TimestamptzType()),
    )
    table = catalog.create_table("demo.flights", schema)

    def append(carriers: list[str], delays: list[int | None], at_us: list[int]) -> None:
        at = pa.array(at_us).cast(pa.timestamp("us", "UTC"))
        table.append(pa.table({"carrier": carriers, "delay": pa.array(delays, pa.int32()), "at": at}))

    append(["AA", "AA", "AA"], [9999] * 3, [0, 1, HOUR_US - 1])
    append(["UA", "<b>", "DL"], [5, 9999, None], [HOUR_US, HOUR_US + 1, 2 * HOUR_US - 1])
    evaluated = table.metadata.current_snapshot_id
    append(["late"], [9999], [HOUR_US])

    def make(*expectations: dict[str, Any], **changes: Any) -> GateRequest:
        suite = tmp_path / "demo.flights.json"
        suite.write_text(json.dumps({"name": "demo.flights", "expectations": expectations}))
        request = {
            "suite": suite,
            "catalog": None,
            "table": "demo.flights",
            "snapshot_id": evaluated,
            "event_time": "at",
            "from_us": HOUR_US,
            "to_us": 2 * HOUR_US,
            "partition": "1970-01-01T01",
            "docs": frazil_home / "quality",
        }
        return GateRequest(**request | changes)

    return make
