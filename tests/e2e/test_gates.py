"""A gate evaluates one window of one snapshot with Great Expectations, in a separate process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frazil.errors import FrazilError, SpecError
from frazil.quality.gate import run_gates
from tests.gate_requests import Ask, expectation

CARRIERS = expectation("column_values_to_match_regex", column="carrier", regex="^[A-Z]{2}$")
DELAYS = expectation("column_values_to_be_between", column="delay", max_value=1800)
KNOWN = expectation("column_values_to_not_be_null", column="carrier")


def test_a_window_that_fails_its_suite_reports_each_expectation_and_links_a_page(ask: Ask):
    request = ask(CARRIERS, DELAYS, KNOWN)
    (found,) = run_gates([request], timeout_s=250)
    assert (found.passed, found.rows, found.engine) == (False, 3, "arrow")
    assert sorted(found.failures) == [
        "expect_column_values_to_be_between delay (max_value 1800.0): failed in 1 of 3 rows, such as 9999",
        "expect_column_values_to_match_regex carrier (regex ^[A-Z]{2}$): failed in 1 of 3 rows, such as <b>",
    ]
    page = Path(found.docs).read_text()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "://" not in page
    assert Path(found.docs).relative_to(request.docs).as_posix() in (request.docs / "index.html").read_text()


def test_an_empty_window_passes_every_expectation_and_the_index_keeps_earlier_runs(ask: Ask):
    request = ask(expectation("table_row_count_to_be_between", min_value=1), from_us=10**15, to_us=10**15 + 1)
    (request.docs / "demo.flights").mkdir(parents=True)
    earlier = {"at": "then", "table": "demo.flights", "partition": "p", "rows": 1, "failures": 0}
    (request.docs / "demo.flights" / "kept.html").touch()
    lines = [json.dumps(earlier | {"page": f"demo.flights/{name}.html"}) for name in ("kept", "deleted")]
    (request.docs / "runs.jsonl").write_text("\n".join(lines) + "\n")
    (found,) = run_gates([request], timeout_s=250)
    assert (found.passed, found.rows, found.failures) == (True, 0, ())
    index = (request.docs / "index.html").read_text()
    assert "kept.html" in index
    assert "deleted.html" not in index
    assert Path(found.docs).name in index


def test_a_gate_that_exceeds_its_time_limit_is_ended_and_reported(ask: Ask):
    with pytest.raises(FrazilError, match=r"demo\.flights, 1970-01-01T01 did not finish within 0 s"):
        run_gates([ask(KNOWN)], timeout_s=0.05)


def test_an_error_of_the_gate_process_is_raised_to_the_caller(ask: Ask):
    with pytest.raises(SpecError, match=r"demo\.flights\.json: the table demo\.flights has no column tea"):
        run_gates([ask(expectation("column_values_to_not_be_null", column="tea"))], timeout_s=250)


def test_a_crashing_process_leaves_its_last_output(ask: Ask, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(FrazilError, match=r"(?s)ended with exit code 1 .*NotADirectoryError"):
        run_gates([ask(docs=tmp_path / "file" / "docs", from_us=10**15, to_us=10**15 + 1)], timeout_s=250)
