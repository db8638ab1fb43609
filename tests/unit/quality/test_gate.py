"""A gate judges one window of one snapshot in a process of its own, and its caller loads none of what that needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, LongType, MapType, NestedField, StringType, StructType

from frazil.errors import FrazilError, SpecError
from frazil.quality.gate import GateRequest, GateResult, find_suite, run_gates
from frazil.quality.window import open_window

Ask = Callable[..., GateRequest]


def _expect(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs}


CARRIERS = _expect("column_values_to_match_regex", column="carrier", regex="^[A-Z]{2}$")
DELAYS = _expect("column_values_to_be_between", column="delay", max_value=1800)
KNOWN = _expect("column_values_to_not_be_null", column="carrier")


def test_a_window_that_does_not_meet_its_suite_fails_with_a_sentence_for_each_expectation_and_a_page(ask: Ask):
    request = ask(CARRIERS, DELAYS, KNOWN)
    (found,) = run_gates([request], timeout_s=60)
    assert (found.passed, found.rows, found.engine) == (False, 3, "arrow")
    assert sorted(found.failures) == [
        "expect_column_values_to_be_between delay (max_value 1800.0): not so in 1 of 3 rows, such as 9999",
        "expect_column_values_to_match_regex carrier (regex ^[A-Z]{2}$): not so in 1 of 3 rows, such as <b>",
    ]
    page = Path(found.docs).read_text()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "://" not in page
    assert Path(found.docs).relative_to(request.docs).as_posix() in (request.docs / "index.html").read_text()


def test_an_empty_window_passes_whatever_is_expected_and_the_index_keeps_the_runs_before(ask: Ask):
    request = ask(_expect("table_row_count_to_be_between", min_value=1), from_us=10**15, to_us=10**15 + 1)
    (request.docs / "demo.flights").mkdir(parents=True)
    earlier = {"at": "then", "table": "demo.flights", "partition": "p", "rows": 1, "failures": 0}
    (request.docs / "demo.flights" / "kept.html").touch()
    lines = [json.dumps(earlier | {"page": f"demo.flights/{name}.html"}) for name in ("kept", "deleted")]
    (request.docs / "runs.jsonl").write_text("\n".join(lines) + "\n")
    (found,) = run_gates([request], timeout_s=60)
    assert (found.passed, found.rows, found.failures) == (True, 0, ())
    index = (request.docs / "index.html").read_text()
    assert "kept.html" in index
    assert "deleted.html" not in index
    assert Path(found.docs).name in index


def test_a_gate_that_takes_too_long_is_ended_and_says_so(ask: Ask):
    with pytest.raises(FrazilError, match=r"demo\.flights, 1970-01-01T01 was not judged within 0 s"):
        run_gates([ask(KNOWN)], timeout_s=0.05)


def test_an_error_of_the_process_is_the_callers(ask: Ask):
    with pytest.raises(SpecError, match=r"demo\.flights\.json: the table demo\.flights has no column tea"):
        run_gates([ask(_expect("column_values_to_not_be_null", column="tea"))], timeout_s=60)


def test_a_process_that_crashes_leaves_its_last_words(ask: Ask, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(FrazilError, match=r"(?s)ended with code 1 .*NotADirectoryError"):
        run_gates([ask(docs=tmp_path / "file" / "docs", from_us=10**15, to_us=10**15 + 1)], timeout_s=60)


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
    window = open_window(ask(_expect("column_values_to_not_be_null", column="carrier")))
    window = replace(window, schema=Schema(*window.schema.fields, NestedField(10, "x", kind)))
    assert window.misread(("carrier", "x")) == misread
    assert not window.misread(("carrier", "delay"))
