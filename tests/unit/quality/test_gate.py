"""What asks for a gate loads none of what the gate needs, and finds the columns that PyIceberg misreads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, LongType, MapType, NestedField, StringType, StructType

from frazil.quality.gate import GateRequest, GateResult, find_suite
from frazil.quality.window import open_window
from tests.gate_requests import Ask, expectation

KNOWN = expectation("column_values_to_not_be_null", column="carrier")


def test_who_asks_for_a_gate_loads_neither_great_expectations_nor_what_reads_tables():
    program = (
        "import sys, frazil.quality.gate;"
        "print([m for m in ('great_expectations', 'pandas', 'pyarrow', 'pyiceberg', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_requests_and_results_are_the_same_after_a_way_through_json(ask: Ask):
    request = ask(KNOWN, spark={"spark.master": "local[1]"})
    assert GateRequest.from_json(request.to_json()) == request
    result = GateResult(passed=False, rows=3, failures=("one",), docs="/d", engine="arrow", seconds=1.5)
    assert GateResult.from_json(result.to_json()) == result


def test_a_suite_is_found_by_its_tables_name(tmp_path: Path):
    (tmp_path / "demo.flights.json").touch()
    assert find_suite(tmp_path, "demo.flights") == tmp_path / "demo.flights.json"
    assert find_suite(tmp_path, "demo.other") is None


@pytest.mark.parametrize(
    ("kind", "misread"),
    [
        (ListType(11, StructType(NestedField(12, "a", LongType())), element_required=False), True),
        (MapType(11, StringType(), 12, StructType(NestedField(13, "a", LongType())), value_required=False), True),
        (StructType(NestedField(11, "l", ListType(12, StructType(NestedField(13, "a", LongType()))))), True),
        (ListType(11, ListType(12, LongType())), False),
        (StructType(NestedField(11, "a", LongType())), False),
    ],
    ids=str,
)
def test_a_column_that_pyiceberg_misreads_is_judged_by_spark(kind: IcebergType, misread: bool, ask: Ask) -> None:
    window = open_window(ask(expectation("column_values_to_not_be_null", column="carrier")))
    window = replace(window, schema=Schema(*window.schema.fields, NestedField(10, "x", kind)))
    assert window.misread(("carrier", "x")) == misread
    assert not window.misread(("carrier", "delay"))
