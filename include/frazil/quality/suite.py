"""Reads a suite of Great Expectations. Refuses expectations that pandas and Spark would evaluate differently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.errors import SpecError

_SUPPORTED = """
expect_column_distinct_values_to_be_in_set expect_column_distinct_values_to_contain_set
expect_column_distinct_values_to_equal_set expect_column_max_to_be_between expect_column_mean_to_be_between
expect_column_min_to_be_between expect_column_pair_values_a_to_be_greater_than_b
expect_column_pair_values_to_be_equal expect_column_proportion_of_non_null_values_to_be_between
expect_column_proportion_of_unique_values_to_be_between expect_column_stdev_to_be_between
expect_column_sum_to_be_between expect_column_unique_value_count_to_be_between
expect_column_value_lengths_to_be_between expect_column_value_lengths_to_equal
expect_column_values_to_be_between expect_column_values_to_be_in_set expect_column_values_to_be_null
expect_column_values_to_be_unique expect_column_values_to_match_regex expect_column_values_to_not_be_in_set
expect_column_values_to_not_be_null expect_column_values_to_not_match_regex expect_compound_columns_to_be_unique
expect_multicolumn_sum_to_equal expect_select_column_values_to_be_unique_within_record
expect_table_row_count_to_be_between expect_table_row_count_to_equal
"""
SUPPORTED_EXPECTATIONS = frozenset(_SUPPORTED.split())
"""Expectations that both engines evaluate alike. tests/spark/test_quality.py checks each of them."""


@dataclass(frozen=True, slots=True)
class Suite:
    path: Path
    content: dict[str, Any]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for e in self.content["expectations"] for name in _find_columns(e["kwargs"])))


def read_suite(path: Path) -> Suite:
    """Read and check a suite. Raises SpecError with the file's name and the invalid part."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SpecError(f"the suite {path} cannot be read: {error}") from error
    found = content.get("expectations") if isinstance(content, dict) else None
    if not (isinstance(found, list) and isinstance(content.get("name"), str)):
        raise SpecError(f"{path} is not a Great Expectations suite: it must have a name and a list named expectations")
    for number, expectation in enumerate(found, start=1):
        if not (isinstance(expectation, dict) and isinstance(expectation.get("kwargs"), dict)):
            raise SpecError(f"{path}: expectation {number} must have a type and kwargs")
        kind = expectation.get("type")
        if kind not in SUPPORTED_EXPECTATIONS:
            raise SpecError(
                f"{path}: expectation {number} is {kind!r}, which a gate does not support; supported expectations: "
                f"{', '.join(sorted(SUPPORTED_EXPECTATIONS))}"
            )
        _check_condition(path, number, expectation["kwargs"].get("row_condition"))
    return Suite(path, content)


def check_columns(suite: Suite, columns: frozenset[str], table: str) -> None:
    if missing := [name for name in suite.columns if name not in columns]:
        raise SpecError(
            f"{suite.path}: the table {table} has no column {', '.join(missing)} that an expectation can read; such "
            f"columns are {', '.join(sorted(columns))}"
        )


def _find_columns(kwargs: dict[str, Any]) -> Iterator[str]:
    for key in ("column", "column_A", "column_B"):
        if key in kwargs:
            yield kwargs[key]
    yield from kwargs.get("column_list", ())
    yield from _find_condition_columns(kwargs.get("row_condition"))


def _find_condition_columns(condition: Any) -> Iterator[str]:
    if condition is None:
        return
    if "column" in condition:
        yield condition["column"]["name"]
    for part in condition.get("conditions", ()):
        yield from _find_condition_columns(part)


def _check_condition(path: Path, number: int, condition: Any) -> None:
    """Raise SpecError for a row condition that only one of the engines can evaluate."""
    match condition:
        case None | {"type": "comparison" | "nullity", "column": {"name": str()}}:
            return
        case {"type": "and" | "or", "conditions": [*parts]}:
            for part in parts:
                _check_condition(path, number, part)
        case _:
            raise SpecError(
                f"{path}: the row_condition of expectation {number} must be a condition on columns (type comparison, "
                "nullity, and, or), which both engines can evaluate"
            )
