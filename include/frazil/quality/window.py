"""Reads the needed columns of one window of a snapshot, with PyIceberg or Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.types import TimestamptzType

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.errors import FrazilError, SpecError
from frazil.quality.gate import GateRequest
from frazil.spec.type_ends import rows_between
from frazil.table.catalogs import catalog_config, catalog_errors, open_existing_catalog, spark_properties

_NULLABLE = {
    pa.bool_(): pd.BooleanDtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
}
"""pandas types for Arrow types. With pandas' default types, a null turns an integer column into floats, which changes
large integers.
"""

PARTITIONS_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class GatedWindow:
    """The window of a request, as found in the catalog; its rows are read on demand."""

    request: GateRequest
    schema: Schema
    scan: DataScan

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(field.name for field in self.schema.fields)

    def max_rows(self) -> int:
        """Return the row count of all files that may hold rows of the window, from the snapshot's metadata."""
        return sum(task.file.record_count for task in self.scan.plan_files())

    def to_pandas(self, columns: tuple[str, ...]) -> pd.DataFrame:
        rows = self.scan.select(*columns or (self.request.event_time,)).to_arrow()
        return rows.to_pandas(types_mapper=_NULLABLE.get)

    def to_spark(self, columns: tuple[str, ...], session: Any) -> Any:
        """Return a Spark DataFrame of the same rows; NaN becomes null, as in pandas."""
        name = ".".join(
            f"`{part}`" for part in (catalog_config(self.request.catalog).name, *self.request.table.split("."))
        )
        begin, end = self._bounds()
        kind = "TIMESTAMP" if begin.tzinfo else "TIMESTAMP_NTZ"
        rows = (
            session.read.option("versionAsOf", str(self.request.snapshot_id))
            .table(name)
            .where(f"`{self.request.event_time}` >= {kind} '{begin}' AND `{self.request.event_time}` < {kind} '{end}'")
            .select(*(f"`{column}`" for column in columns or (self.request.event_time,)))
        )
        present = rows.selectExpr(*(_nan_as_null(column, kind) for column, kind in rows.dtypes))
        # A partition has many small files, and every expectation reads all of them.
        return present.coalesce(PARTITIONS_PER_CORE * session.sparkContext.defaultParallelism)

    def _bounds(self) -> tuple[datetime, datetime]:
        return _bounds(self.request, self.schema)


def open_window(request: GateRequest) -> GatedWindow:
    """Find the window in the catalog.

    Raises SpecError (the table or column does not exist), FrazilError (the snapshot has expired), and catalog errors.
    """
    catalog = open_existing_catalog(request.catalog)
    with catalog_errors(catalog.name):
        try:
            table = catalog.load_table(request.table)
        except NoSuchTableError as error:
            raise SpecError(f"{request.suite}: the catalog {catalog.name!r} has no table {request.table}") from error
    snapshot = table.snapshot_by_id(request.snapshot_id)
    if snapshot is None:
        raise FrazilError(f"{request.table} no longer has snapshot {request.snapshot_id}: evaluate the window again")
    schema = table.schemas()[table.schema().schema_id if snapshot.schema_id is None else snapshot.schema_id]
    if request.event_time not in schema.column_names:
        raise SpecError(f"{request.table} has no column {request.event_time}, which the stream declares as event time")
    row_filter = rows_between(schema.find_field(request.event_time), request.from_us, request.to_us - 1)
    return GatedWindow(request, schema, table.scan(row_filter, snapshot_id=request.snapshot_id))


def start_spark(request: GateRequest) -> Any:
    """Start a small, quiet Spark session on loopback with the request's catalog; `request.spark` overrides its
    properties.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - small windows need no Spark

    properties = {
        "spark.master": "local[*]",
        "spark.app.name": f"frazil gate {request.table}",
        "spark.driver.memory": "2g",
        # Halves the start-up time, and is as fast for a million rows.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        **spark_properties(request.catalog),
        **request.spark,
    }
    builder = SparkSession.builder
    for key, value in properties.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _bounds(request: GateRequest, schema: Schema) -> tuple[datetime, datetime]:
    """Return the window's bounds; they have a time zone if the event-time column has one."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    begin, end = (epoch + timedelta(microseconds=us) for us in (request.from_us, request.to_us))
    if isinstance(schema.find_type(request.event_time), TimestamptzType):
        return begin, end
    return begin.replace(tzinfo=None), end.replace(tzinfo=None)


def _nan_as_null(name: str, kind: str) -> str:
    if kind not in {"float", "double"}:
        return f"`{name}`"
    return f"CASE WHEN NOT isnan(`{name}`) THEN `{name}` END AS `{name}`"
