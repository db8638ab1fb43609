"""Reads a daily aggregation's YAML file. Loads no PyIceberg or Spark, for Airflow's DAG processor."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from frazil import clock
from frazil.errors import SpecError
from frazil.spec.last_valid import FileKind, find_declared
from frazil.spec.model import STREAM_NAME, Identifier
from frazil.spec.problems import describe_error
from frazil.spec.values import Model, PositiveDuration
from frazil.spec.yaml_file import read_mapping

log = logging.getLogger(__name__)

SOURCE_VIEW = "source_day"
"""The view from which the SQL selects: the source's rows of one day."""
DAY_COLUMN = "day"
"""The target's first column, by which it is partitioned. frazil adds it; the SQL must not."""

Text = Annotated[str, Field(min_length=1)]


class AggregationSpec(Model):
    """A daily aggregation: SQL that computes one UTC day of a source table for a target table."""

    name: Text
    description: str = ""
    source: Identifier
    event_time: Text
    """A column of type timestamptz or timestamp."""
    target: Identifier
    """Identifier of the target table, created if missing. Only this aggregation may write to its partitions."""
    catalog: str | None = None
    """The catalog of both tables; None means the default."""
    within: PositiveDuration = timedelta(hours=2)
    """Time after which an alert fires for a day that is complete but not in the target."""
    sql: Text
    """A SELECT from the view `source_day`. frazil adds the column with the day."""

    def find_conflicts(self) -> Iterator[str]:
        if self.source == self.target:
            yield "source and target are the same table: declare another target"


def parse_day(text: str | None) -> date:
    """Parse a partition key as a day. Raises SpecError unless it is written YYYY-MM-DD."""
    try:
        day = date.fromisoformat(text or "")
    except ValueError:
        day = None
    if day is None or str(day) != text:  # 20131230 is not a valid key
        raise SpecError(f"{text!r} is not a day; write YYYY-MM-DD, such as 2013-12-30 (days are in UTC)")
    return day


def find_aggregation(folder: Path, name: str) -> AggregationSpec:
    """Return an aggregation of a folder: its last valid declaration if its file is broken. Raises SpecError."""
    files = {file.path.stem: file for file in find_declared(folder, AGGREGATIONS, now_ms=clock.now_ms())}
    if name not in files:
        close = get_close_matches(name, files, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise SpecError(f"no aggregation {name!r} in {folder}; {hint}known: {', '.join(files) or 'none'}")
    aggregation = files[name]
    if aggregation.spec is None:
        raise SpecError(aggregation.problem)
    if aggregation.problem:
        log.warning("using the last valid declaration of the aggregation %s: %s", name, aggregation.problem)
    return aggregation.spec


def load_aggregation(path: Path) -> AggregationSpec:
    """Load one file. Raises SpecError with one line per problem: file, key, value, and what is allowed."""
    return _validate(read_mapping(path), path)


def _validate(declared: Mapping[str, Any], path: Path) -> AggregationSpec:
    if not re.match(STREAM_NAME, path.stem):
        raise SpecError(
            f"{path}: the file's name is the aggregation's name, so it must begin with a lower-case letter and have "
            "only lower-case letters, digits, '-' and '_'"
        )
    if "name" in declared:
        raise SpecError(f"{path}: name: is not allowed, because an aggregation is named after its file; remove it")
    try:
        return AggregationSpec.model_validate({**declared, "name": path.stem}, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError("\n".join(f"{path}: {_describe_error(d)}" for d in error.errors())) from None


AGGREGATIONS: FileKind[AggregationSpec] = FileKind(load_aggregation, read_mapping, _validate)


def _describe_error(details: ErrorDetails) -> str:
    key, kind = ".".join(map(str, details["loc"])), details["type"]
    value = "" if kind == "missing" or details["input"] is None else f"{details['input']!r} "
    if not key:
        return describe_error(details)
    if kind == "extra_forbidden":
        allowed = [str(field.alias) for name, field in AggregationSpec.model_fields.items() if name != "name"]
        close = get_close_matches(key.replace("_", "-"), allowed, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{key}: is an unknown key{hint} (allowed: {', '.join(allowed)})"
    return f"{key}: {value}{describe_error(details)}"
