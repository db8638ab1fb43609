"""Evaluates one window: finds it, chooses the engine, validates its rows, and writes the Data Docs. <docs>/index.html
links to the newest runs, <docs>/runs.jsonl has one line per run and is the source of the index, and
<docs>/<table>/<partition>-<time>.html is the page of one run.
"""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from jinja2 import Environment, FileSystemLoader
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.types import TimestamptzType

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.errors import FrazilError, SpecError
from frazil.json_files import replace_text
from frazil.quality.gate import GateRequest, GateResult, Suite, check_columns, read_suite
from frazil.spec.iceberg import filter_between
from frazil.spec.types import VARIANT
from frazil.table.catalogs import catalog_config, open_existing_catalog, translate_catalog_errors

if TYPE_CHECKING:
    from frazil.quality.validation import ValidationResult

MAX_INDEXED_RUNS = 1000
"""Maximum number of runs in the index. Pages of older runs are kept."""


def page_path(request: GateRequest, evaluated_at: datetime) -> Path:
    file = f"{_to_safe_name(request.partition)}-{evaluated_at:%Y%m%dT%H%M%S%f}.html"
    return request.docs / _to_safe_name(request.table) / file


def write_pages(request: GateRequest, result: GateResult, evaluated_at: datetime, *, expectations: str) -> None:
    """Write the page of this run and update the index. `expectations` is HTML whose values are escaped."""
    docs, page = request.docs, Path(result.docs)
    page.parent.mkdir(parents=True, exist_ok=True)
    templates = Environment(loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True)
    run = templates.get_template("run.html").render(
        request=request, result=result, at=evaluated_at, expectations=expectations
    )
    page.write_text(run)
    entry = {
        "at": f"{evaluated_at:%Y-%m-%d %H:%M:%S}",
        "table": request.table,
        "partition": request.partition,
        "rows": result.rows,
        "failures": len(result.failures),
        "page": page.relative_to(docs).as_posix(),
    }
    with (docs / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = [run for run in reversed(_append_run(docs / "runs.jsonl", entry)) if (docs / run["page"]).exists()]
        replace_text(docs / "index.html", templates.get_template("index.html").render(runs=runs))


def _append_run(file: Path, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    earlier = file.read_text().splitlines() if file.exists() else []
    lines = [*earlier, json.dumps(entry)][-MAX_INDEXED_RUNS:]
    replace_text(file, "\n".join(lines) + "\n")
    return [json.loads(line) for line in lines]


def _to_safe_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")


_PANDAS_TYPES = {pa.bool_(): pd.BooleanDtype(), pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
"""Nullable pandas types. Otherwise, a null turns integers into floats, which are not exact."""

MAX_ARROW_ROWS = 5_000_000
"""Maximum number of rows for pandas. 1 million rows take 0.8 GB (bench/gate.py)."""


@dataclass(frozen=True, slots=True)
class GatedWindow:
    """A window to check, as found in the catalog. Its rows are read on demand."""

    request: GateRequest
    schema: Schema
    scan: DataScan

    @property
    def columns(self) -> frozenset[str]:
        """The columns that expectations can read."""
        return frozenset(field.name for field in self.schema.fields if str(field.field_type) != VARIANT)

    def to_pandas(self, columns: tuple[str, ...]) -> pd.DataFrame:
        rows = self.scan.select(*columns or (self.request.event_time,)).to_arrow()
        return rows.to_pandas(types_mapper=_PANDAS_TYPES.get)

    def to_spark(self, columns: tuple[str, ...], session: Any) -> Any:
        """Return the rows of `to_pandas` as a Spark DataFrame. NaN becomes null, as in pandas."""
        parts = (catalog_config(self.request.catalog).name, *self.request.table.split("."))
        name = ".".join(f"`{part}`" for part in parts)
        begin, end = self._bounds()
        kind = "TIMESTAMP" if begin.tzinfo else "TIMESTAMP_NTZ"
        rows = (
            session.read.option("versionAsOf", str(self.request.snapshot_id))
            .table(name)
            .where(f"`{self.request.event_time}` >= {kind} '{begin}' AND `{self.request.event_time}` < {kind} '{end}'")
            .select(*(f"`{column}`" for column in columns or (self.request.event_time,)))
        )
        present = rows.selectExpr(*(_select_nan_as_null(column, kind) for column, kind in rows.dtypes))
        # A partition has many small files, and every expectation reads all of them.
        return present.coalesce(2 * session.sparkContext.defaultParallelism)

    def _bounds(self) -> tuple[datetime, datetime]:
        """Return the window's start and end, with a time zone if the event-time column has one."""
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        begin, end = (epoch + timedelta(microseconds=us) for us in (self.request.from_us, self.request.to_us))
        if isinstance(self.schema.find_type(self.request.event_time), TimestamptzType):
            return begin, end
        return begin.replace(tzinfo=None), end.replace(tzinfo=None)


def open_window(request: GateRequest) -> GatedWindow:
    """Find the window. Raises SpecError for a missing table or column, FrazilError for a missing snapshot."""
    catalog = open_existing_catalog(request.catalog)
    with translate_catalog_errors(catalog.name):
        try:
            table = catalog.load_table(request.table)
        except NoSuchTableError as error:
            raise SpecError(f"{request.suite}: the catalog {catalog.name!r} has no table {request.table}") from error
    snapshot = table.snapshot_by_id(request.snapshot_id)
    if snapshot is None:
        raise FrazilError(f"{request.table} no longer has snapshot {request.snapshot_id}; evaluate the window again")
    schema = table.schemas()[table.schema().schema_id if snapshot.schema_id is None else snapshot.schema_id]
    if request.event_time not in schema.column_names:
        raise SpecError(f"{request.table} has no column {request.event_time}, which the stream declares as event time")
    row_filter = filter_between(schema.find_field(request.event_time), request.from_us, request.to_us - 1)
    return GatedWindow(request, schema, table.scan(row_filter, snapshot_id=request.snapshot_id))


def start_spark(request: GateRequest) -> Any:
    from frazil.spark.application import start_session  # small windows need no Spark

    properties = {
        "spark.master": "local[*]",
        "spark.driver.memory": "2g",
        # Halves the start-up time, and is as fast for a million rows.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        **request.spark,
    }
    session = start_session(f"frazil gate {request.table}", request.catalog, properties=properties)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _select_nan_as_null(name: str, kind: str) -> str:
    if kind not in {"float", "double"}:
        return f"`{name}`"
    return f"CASE WHEN NOT isnan(`{name}`) THEN `{name}` END AS `{name}`"


def evaluate(
    request: GateRequest, *, now: datetime, start_session: Callable[[GateRequest], Any] = start_spark
) -> GateResult:
    """Evaluate the suite on the window, and write the result page. A window without rows passes. Raises SpecError."""
    began = time.monotonic()
    suite = read_suite(request.suite)
    window = open_window(request)
    check_columns(suite, window.columns, request.table)
    engine: str = request.engine
    if engine == "auto":
        max_rows = sum(task.file.record_count for task in window.scan.plan_files())
        engine = "arrow" if max_rows <= MAX_ARROW_ROWS else "spark"
    rows, validation = _evaluate_rows(suite, window, start_session(request) if engine == "spark" else None)
    failures = validation.failures if validation else ()
    page, seconds = str(page_path(request, now)), round(time.monotonic() - began, 3)
    result = GateResult(not failures, rows, failures, page, engine, seconds)
    write_pages(request, result, now, expectations=validation.html if validation else "")
    return result


def _evaluate_rows(suite: Suite, window: GatedWindow, session: Any | None) -> tuple[int, ValidationResult | None]:
    frame = window.to_pandas(suite.columns) if session is None else window.to_spark(suite.columns, session).persist()
    try:
        rows = len(frame) if session is None else frame.count()
        if not rows:
            return 0, None
        # Loading Great Expectations takes seconds, which an empty window and a refused suite do not need.
        from frazil.quality.validation import validate

        return rows, validate(suite, frame, spark=session is not None)
    finally:
        if session is not None:
            frame.unpersist()
