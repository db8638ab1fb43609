"""An invalid suite is refused before any read, with its file and its mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import SpecError
from frazil.quality.gate import check_columns, read_suite
from frazil.spec import iceberg
from frazil.spec.load import load_stream

INCLUDE = Path(__file__).parents[3] / "include"

NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "carrier"}}


def _with_condition(condition: Any) -> dict[str, Any]:
    return {"name": "s", "expectations": [{**NOT_NULL, "kwargs": {"column": "carrier", "row_condition": condition}}]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ([], "not a Great Expectations suite"),
        ({"name": "s"}, "not a Great Expectations suite"),
        ({"name": "s", "expectations": ["x"]}, "expectation 1 must have a type and kwargs"),
        (
            {"name": "s", "expectations": [NOT_NULL, {"type": "expect_tea", "kwargs": {}}]},
            "expectation 2 is 'expect_tea'",
        ),
        (_with_condition("delay > 5"), "row_condition of expectation 1"),
        (_with_condition({"type": "and", "conditions": [{"type": "pass_through"}]}), "row_condition of expectation 1"),
    ],
)
def test_an_unusable_gate_suite_is_refused_with_its_file_named(tmp_path: Path, content: Any, said: str):
    path = tmp_path / "suite.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(SpecError, match=said) as raised:
        read_suite(path)
    assert str(path) in str(raised.value)


def test_a_check_names_a_column_missing_from_the_table_also_inside_a_condition(tmp_path: Path):
    path = tmp_path / "suite.json"
    named = {"type": "nullity", "column": {"name": "delay"}, "is_null": False}
    path.write_text(json.dumps(_with_condition({"type": "or", "conditions": [named]})))
    suite = read_suite(path)
    assert suite.columns == ("carrier", "delay")
    with pytest.raises(SpecError, match=r"demo\.flights has no column delay that .* such columns are at, carrier"):
        check_columns(suite, frozenset({"carrier", "at"}), "demo.flights")


def test_the_suites_that_come_with_the_streams_fit_their_tables():
    specs = [load_stream(path) for path in (INCLUDE / "streams").glob("[!_]*.yaml")]
    columns = {spec.table.identifier: frozenset(iceberg.table_schema(spec).column_names) for spec in specs}
    suites = list((INCLUDE / "expectations").glob("*.json"))
    assert suites
    for path in suites:
        check_columns(read_suite(path), columns[path.stem], path.stem)
