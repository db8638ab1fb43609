"""Checks windows of a table against its suite in a child process, because Great Expectations is slow to load. The child
process (`python -m frazil.quality`) reads one request per line and writes one result per line. Refuses expectations
that pandas and Spark would evaluate differently.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from frazil import errors
from frazil.errors import FrazilError, SpecError
from frazil.typed_json import decode

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
    expectations = content.get("expectations") if isinstance(content, dict) else None
    if not (isinstance(expectations, list) and isinstance(content.get("name"), str)):
        raise SpecError(f"{path} is not a Great Expectations suite: it must have a name and a list named expectations")
    for number, expectation in enumerate(expectations, start=1):
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


MAX_LOG_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class GateRequest:
    suite: Path
    catalog: str | None
    table: str
    snapshot_id: int
    event_time: str
    """Name of a column of type timestamptz or timestamp."""
    from_us: int
    """Start of the window (inclusive), in microseconds since 1970, UTC."""
    to_us: int
    """End of the window (exclusive), in microseconds since 1970, UTC."""
    partition: str
    """The window's partition key, such as 2013-12-30T15."""
    docs: Path
    """Folder of the Data Docs. All gates with the same FRAZIL_HOME share it."""
    engine: Literal["auto", "arrow", "spark"] = "auto"
    """`arrow` (pandas), `spark`, or `auto`: chosen by the number of rows."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Spark properties, such as `spark.jars`. They replace the gate's own properties, but not the catalog's."""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "suite": str(self.suite.absolute()), "docs": str(self.docs.absolute())})

    @classmethod
    def from_json(cls, text: str) -> GateRequest:
        raw = json.loads(text)
        return cls(**raw | {"suite": Path(raw["suite"]), "docs": Path(raw["docs"])})


@dataclass(frozen=True, slots=True)
class GateResult:
    passed: bool
    rows: int
    failures: tuple[str, ...]
    """One sentence for each failed expectation: expectation, column, number of failing rows, examples."""
    docs: str
    """Path of the page about this run. An index in the folder above links to the newest runs."""
    engine: str
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def find_suite(folder: Path, table: str) -> Path | None:
    """Return the suite of a table, `<folder>/<table identifier>.json`; None if the file does not exist."""
    suite = folder / f"{table}.json"
    return suite if suite.is_file() else None


def run_gates(requests: Sequence[GateRequest], *, timeout_s: float) -> tuple[GateResult, ...]:
    """Evaluate windows of one table, in order, in one child process, which is killed after `timeout_s`. Raises
    SpecError if the suite cannot be used on this table, FrazilError if the process crashed or timed out, and the
    catalog's AccessDenied and CommitUnavailable.
    """
    if not requests:
        return ()
    where = f"the quality gate of {requests[0].table}, {', '.join(r.partition for r in requests)}"
    # -P: a DAG folder, which may be the current one, must not hide modules.
    command = [sys.executable, "-P", "-m", "frazil.quality", str(timeout_s)]
    lines = "\n".join(request.to_json() for request in requests)
    try:
        process = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise FrazilError(
            f"{where} did not finish within {timeout_s:.0f} s and was killed; allow more time, or reduce the suite "
            f"{requests[0].suite}"
        ) from error
    return _parse_results(process, where)


def _parse_results(process: subprocess.CompletedProcess[str], where: str) -> tuple[GateResult, ...]:
    lines = process.stdout.splitlines()
    if process.returncode == 0:
        return tuple(decode(line, GateResult) for line in lines)
    try:
        error = json.loads(lines[-1])
        kind, message = error["error"], error["message"]
    except (IndexError, KeyError, ValueError):
        raise FrazilError(
            f"{where} ended with exit code {process.returncode} and no result; its last output: "
            f"{process.stderr[-MAX_LOG_CHARACTERS:].strip() or 'none'}"
        ) from None
    raise getattr(errors, kind)(message)
