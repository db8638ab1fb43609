"""Pandas and Spark give the same result for each expectation that a gate knows, met and not met."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from frazil.quality.evaluate import open_window
from frazil.quality.gate import SUPPORTED_EXPECTATIONS, GateRequest, GateResult
from frazil.table.catalogs import load_catalog

pytestmark = pytest.mark.usefixtures("shared_home")

BIG = 2**60
SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "big", LongType()),
    NestedField(3, "x", DoubleType()),
    NestedField(4, "price", DecimalType(9, 2)),
    NestedField(5, "name", StringType()),
    NestedField(6, "day", DateType()),
    NestedField(7, "at", TimestamptzType()),
    NestedField(8, "local", TimestampType()),
)
HOUR_US = 3_600_000_000
DAY = datetime(2013, 12, 30, tzinfo=UTC)
ROWS = {
    "n": [1, 2, 3, None],
    # As floats these would be one number.
    "big": [BIG, BIG + 1, BIG + 2, None],
    "x": [0.5, 1.5, float("nan"), None],
    "price": [Decimal("1.00"), Decimal("2.50"), Decimal("2.50"), None],
    "name": ["AA", "xAA", "AA\n", None],
    "day": [DAY.date()] * 3 + [None],
    "at": [HOUR_US, HOUR_US + 1, HOUR_US + 2, 2 * HOUR_US - 1],
    "local": [HOUR_US, HOUR_US + 1, HOUR_US + 2, 2 * HOUR_US - 1],
}
Case = tuple[str, dict[str, Any], dict[str, Any]]
CASES: list[Case] = [
    # expectation (after expect_), arguments with which it is met, and with which it is not
    ("column_distinct_values_to_be_in_set", {"column": "n", "value_set": [1, 2, 3, 4]}, {"value_set": [1, 2]}),
    ("column_distinct_values_to_contain_set", {"column": "n", "value_set": [1, 2]}, {"value_set": [4]}),
    ("column_distinct_values_to_equal_set", {"column": "n", "value_set": [1, 2, 3]}, {"value_set": [1, 2]}),
    ("column_max_to_be_between", {"column": "x", "max_value": 1.5}, {"max_value": 1}),
    ("column_mean_to_be_between", {"column": "x", "min_value": 1, "max_value": 1}, {"min_value": 1.1}),
    ("column_min_to_be_between", {"column": "n", "min_value": 1}, {"min_value": 2}),
    ("column_pair_values_a_to_be_greater_than_b", {"column_A": "big", "column_B": "n"}, {"column_B": "big"}),
    ("column_pair_values_to_be_equal", {"column_A": "n", "column_B": "n"}, {"column_B": "big"}),
    ("column_proportion_of_non_null_values_to_be_between", {"column": "x", "max_value": 0.5}, {"min_value": 0.6}),
    ("column_proportion_of_unique_values_to_be_between", {"column": "n", "min_value": 1}, {"max_value": 0.9}),
    ("column_stdev_to_be_between", {"column": "n", "min_value": 0.99, "max_value": 1.01}, {"max_value": 0.9}),
    ("column_sum_to_be_between", {"column": "x", "max_value": 2}, {"max_value": 1.9}),
    ("column_unique_value_count_to_be_between", {"column": "n", "max_value": 3}, {"max_value": 2}),
    ("column_value_lengths_to_be_between", {"column": "name", "max_value": 3}, {"max_value": 2}),
    ("column_value_lengths_to_equal", {"column": "name", "value": 3, "mostly": 0.6}, {"mostly": 0.7}),
    ("column_values_to_be_between", {"column": "x", "max_value": 1.5}, {"max_value": 1}),
    ("column_values_to_be_between", {"column": "price", "max_value": 2.5}, {"max_value": 2.4}),
    ("column_values_to_be_between", {"column": "big", "min_value": BIG}, {"min_value": 2 * BIG}),
    (
        "column_values_to_be_between",
        {"column": "at", "min_value": "1970-01-01T01:00:00+00:00"},
        {"min_value": "1970-01-01T01:00:00.000001+00:00"},
    ),
    (
        "column_values_to_be_between",
        {"column": "local", "max_value": "1970-01-01T01:59:59.999999"},
        {"max_value": "1970-01-01T01:59:59.999998"},
    ),
    ("column_values_to_be_between", {"column": "day", "min_value": "2013-12-30"}, {"min_value": "2013-12-31"}),
    ("column_values_to_be_in_set", {"column": "n", "value_set": [1, 2, 3]}, {"value_set": [1, 2]}),
    ("column_values_to_be_null", {"column": "x", "mostly": 0.5}, {"mostly": 0.6}),
    ("column_values_to_be_unique", {"column": "big"}, {"column": "price"}),
    ("column_values_to_match_regex", {"column": "name", "regex": "x?AA"}, {"regex": "^AA|B"}),
    ("column_values_to_not_be_in_set", {"column": "name", "value_set": ["BB"]}, {"value_set": ["AA"]}),
    ("column_values_to_not_be_null", {"column": "at"}, {"column": "x"}),
    ("column_values_to_not_match_regex", {"column": "name", "regex": "B|A$x"}, {"regex": "B|A$"}),
    ("compound_columns_to_be_unique", {"column_list": ["price", "big"]}, {"column_list": ["price", "day"]}),
    ("multicolumn_sum_to_equal", {"column_list": ["n", "n"], "sum_total": 2, "mostly": 0.3}, {"sum_total": 3}),
    ("select_column_values_to_be_unique_within_record", {"column_list": ["n", "big"]}, {"column_list": ["n", "n"]}),
    ("table_row_count_to_be_between", {"min_value": 4, "max_value": 4}, {"min_value": 5, "max_value": 9}),
    ("table_row_count_to_equal", {"value": 4}, {"value": 6}),
]
FIRST = {"type": "comparison", "column": {"name": "n"}, "operator": "==", "parameter": 1}


def _table() -> int:
    catalog = load_catalog(None)
    catalog.create_namespace_if_not_exists("quality")
    table = catalog.create_table_if_not_exists("quality.kinds", SCHEMA)
    if table.current_snapshot() is None:
        columns = {field.name: pa.array(ROWS[field.name]) for field in SCHEMA.fields}
        for name, zone in (("at", "UTC"), ("local", None)):
            columns[name] = columns[name].cast(pa.timestamp("us", zone))
        whole = pa.table(columns)
        table.append(whole)
        outside = pa.array([0, 2 * HOUR_US, None, None])
        for name, zone in (("at", "UTC"), ("local", None)):
            index = whole.schema.get_field_index(name)
            whole = whole.set_column(index, name, outside.cast(pa.timestamp("us", zone)))
        table.append(whole)
    return table.metadata.current_snapshot_id or 0


def _request(
    folder: Path, engine: Literal["arrow", "spark"], event_time: str, cases: Sequence[Case] = ()
) -> GateRequest:
    suite = folder / "suite.json"
    kwargs = [(kind, arguments) for kind, met, unmet in cases for arguments in (met, met | unmet)]
    conditional = {"column": "name", "value_set": ["AA"], "row_condition": FIRST}
    requested = [*kwargs, ("column_values_to_be_in_set", conditional)]
    expectations = [{"type": f"expect_{kind}", "kwargs": arguments} for kind, arguments in requested]
    suite.write_text(json.dumps({"name": "kinds", "expectations": expectations}))
    return GateRequest(
        suite=suite,
        catalog=None,
        table="quality.kinds",
        snapshot_id=_table(),
        event_time=event_time,
        from_us=HOUR_US,
        to_us=2 * HOUR_US,
        partition="1970-01-01T01",
        docs=folder / "docs",
        engine=engine,
    )


def _evaluate(request: GateRequest, session: Any = None) -> GateResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from frazil.quality.evaluate import evaluate  # Great Expectations warns when it is imported

        return evaluate(request, now=datetime.now(UTC), start_session=lambda _: session)


def test_every_expectation_that_a_gate_supports_is_tested_here():
    assert {f"expect_{kind}" for kind, _, _ in CASES} == SUPPORTED_EXPECTATIONS


@pytest.mark.rotates(2)
@pytest.mark.parametrize("cases", [CASES[::5], pytest.param(CASES, marks=pytest.mark.soak)], ids=["every fifth", "all"])
def test_the_same_suite_gives_the_same_result_and_counts_on_both_engines(
    spark: Any, tmp_path: Path, cases: Sequence[Case]
):
    by_pandas = _evaluate(_request(tmp_path, "arrow", "local", cases))
    by_spark = _evaluate(_request(tmp_path, "spark", "at", cases), spark)
    assert by_pandas.rows == by_spark.rows == 4
    unmet = sorted(f"expect_{kind}" for kind, _, _ in cases)
    for found in (by_pandas, by_spark):
        assert sorted(sentence.partition(" ")[0] for sentence in found.failures) == unmet, found.engine
    said = [sorted(sentence.partition(", such as")[0] for sentence in f.failures) for f in (by_pandas, by_spark)]
    assert said[0] == said[1]


def test_spark_finds_the_window_of_an_event_time_without_a_zone(spark: Any, tmp_path: Path):
    assert open_window(_request(tmp_path, "spark", "local")).to_spark(("n",), spark).count() == 4


SECRET = "not-for-ps"
SHOW_COMMAND_LINE = """
import sys
from pathlib import Path
from pyspark import SparkContext
from frazil.quality.evaluate import start_spark
from frazil.quality.gate import GateRequest
session = start_spark(GateRequest.from_json(sys.argv[1]))
print(session.conf.get("spark.sql.catalog.default.token"))
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/cmdline").read_text().split(chr(0)))
"""


def test_the_secrets_of_a_catalog_are_on_no_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = _request(tmp_path, "spark", "at")
    catalog = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/c.db", "WAREHOUSE": f"file://{tmp_path}", "TOKEN": SECRET}
    for name, value in catalog.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name}", value)
    program = [sys.executable, "-c", SHOW_COMMAND_LINE, request.to_json()]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    token, command_line = done.stdout.splitlines()[-2:]
    assert token == SECRET
    assert "frazil gate quality.kinds" in command_line
    assert SECRET not in command_line
