"""Gate requests import none of the gate's packages, and nulls are read as nulls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from frazil.errors import SpecError
from frazil.pyiceberg_fixes import VariantType
from frazil.quality.evaluate import GatedWindow, open_window
from frazil.quality.gate import GateRequest, GateResult, check_columns, find_suite, read_suite
from frazil.table.catalogs import load_catalog
from tests.gate_requests import HOUR_US, Ask, expectation

KNOWN = expectation("column_values_to_not_be_null", column="carrier")


def test_requesting_a_gate_imports_neither_great_expectations_nor_table_libraries():
    program = (
        "import sys, frazil.quality.gate;"
        "print([m for m in ('great_expectations', 'pandas', 'pyarrow', 'pyiceberg', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gate_requests_and_results_survive_a_round_trip_through_json(ask: Ask):
    request = ask(KNOWN, spark={"spark.master": "local[1]"})
    assert GateRequest.from_json(request.to_json()) == request
    result = GateResult(passed=False, rows=3, failures=("one",), docs="/d", engine="arrow", seconds=1.5)
    assert msgspec.json.decode(result.to_json(), type=GateResult) == result


def test_an_expectation_cannot_read_a_variant(ask: Ask) -> None:
    table = load_catalog(None).create_table("demo.varying", pa.schema([pa.field("at", pa.timestamp("us", "UTC"))]))
    schema = Schema(*table.schema().fields, NestedField(2, "carrier", VariantType(), required=False))
    window = GatedWindow(ask(KNOWN), schema, table.scan())
    with pytest.raises(SpecError, match=r"no column carrier that an expectation can read; such columns are at$"):
        check_columns(read_suite(window.request.suite), window.columns, "demo.varying")


def test_a_suite_is_found_by_its_tables_name(tmp_path: Path):
    (tmp_path / "demo.flights.json").touch()
    assert find_suite(tmp_path, "demo.flights") == tmp_path / "demo.flights.json"
    assert find_suite(tmp_path, "demo.other") is None


def test_a_missing_list_or_map_of_structs_is_evaluated_as_missing(ask: Ask) -> None:
    item = pa.struct([pa.field("a", pa.int64())])
    values: dict[str, list[Any]] = {"list": [None, [], [{"a": 1}]], "map": [None, [], [("k", {"a": 1})]]}
    rows = pa.table(
        {
            "at": pa.array([HOUR_US] * 3).cast(pa.timestamp("us", "UTC")),
            "list": pa.array(values["list"], pa.list_(item)),
            "map": pa.array(values["map"], pa.map_(pa.string(), item)),
        }
    )
    table = load_catalog(None).create_table("demo.nested", rows.schema)
    table.append(rows)
    request = ask(KNOWN, table="demo.nested", snapshot_id=table.metadata.current_snapshot_id)

    frame = open_window(request).to_pandas(("list", "map"))

    assert frame.isna().to_dict("list") == {name: [True, False, False] for name in values}
