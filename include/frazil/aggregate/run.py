"""Aggregates one day in Spark: reads one snapshot of the source, and overwrites that day's partition of the target.

Two runs for the same day may overlap. Each write asserts that the day's partition is unchanged since the run read the
target's records. If it has changed, the run reads these records again. So the partition always shows the newest input
of all runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own abbreviation

from frazil.aggregate.day_input import DayInput, input_summary, newer_input
from frazil.aggregate.spec import DAY_COLUMN, SOURCE_VIEW, AggregationSpec
from frazil.errors import CommitUnavailable, SchemaIncompatible, SpecError
from frazil.table.catalogs import catalog_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
_CONFLICTS = ("ValidationException", "CommitFailedException")
"""Names of Iceberg's exceptions for conflicts: another run wrote the day, or the catalog kept refusing the commit."""


@dataclass(frozen=True, slots=True)
class DayOutcome:
    """The result of an aggregation run."""

    written: bool
    sentence: str


def aggregate_day(
    spark: SparkSession, catalog: Catalog, spec: AggregationSpec, *, day: date, given: DayInput
) -> DayOutcome:
    """Write the day's partition of the target, unless it already shows a newer state of the source.

    In the Spark session, the catalog must have its own name, and the time zone must be UTC. Raises SpecError if Spark
    refuses the SQL, SchemaIncompatible if the SQL's columns do not fit the target, CommitUnavailable after ATTEMPTS
    conflicts.
    """
    result = _query_day(spark, catalog, spec, day=day, given=given)
    _create_target(spark, catalog, spec, result)
    for _ in range(MAX_ATTEMPTS):
        with catalog_errors(catalog.name):
            target, source = catalog.load_table(spec.target), catalog.load_table(spec.source)
        newer = newer_input(spec, day, given, target=target.metadata, source=source.metadata)
        if newer is not None:
            return DayOutcome(False, _not_written_message(spec, day, given, newer))
        if _overwrite(
            result, _spark_name(catalog, spec.target), day, base=target, summary=input_summary(spec, day, given)
        ):
            return DayOutcome(True, f"{spec.target}: {day} now shows {spec.source} at snapshot {given.snapshot_id}")
        log.info("%s: another run wrote %s at the same time; trying again", spec.target, day)
    raise CommitUnavailable(
        f"{spec.target}: other runs wrote {day} during each of {MAX_ATTEMPTS} attempts; run the aggregation again"
    )


def _query_day(
    spark: SparkSession, catalog: Catalog, spec: AggregationSpec, *, day: date, given: DayInput
) -> DataFrame:
    """Return the result of the SQL for the day, with the day as its first column."""
    source = _spark_name(catalog, spec.source)
    try:
        spark.catalog.refreshTable(source)
        rows = spark.read.option("versionAsOf", str(given.snapshot_id)).table(source)
        moment = rows[spec.event_time]
        kind = rows.schema[spec.event_time].dataType
        begin, end = (F.lit(f"{d} 00:00:00").cast(kind) for d in (day, day + timedelta(days=1)))
        rows.where((moment >= begin) & (moment < end)).createOrReplaceTempView(SOURCE_VIEW)
        return spark.sql(spec.sql).select(F.lit(day).alias(DAY_COLUMN), "*")
    except AnalysisException as error:
        raise SpecError(
            f"aggregation {spec.name}: the SQL cannot be run on {spec.source}: {_first_line(error)}"
        ) from error


def _create_target(spark: SparkSession, catalog: Catalog, spec: AggregationSpec, result: DataFrame) -> None:
    """Create the target, partitioned by day, if it does not exist.

    PyIceberg creates the table, because Spark numbers the columns of a new table from 0, and SeaweedFS's REST catalog
    does not accept a partition by column 0.
    """
    target = _spark_name(catalog, spec.target)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {target.rpartition('.')[0]}")
    with catalog_errors(catalog.name):
        if not catalog.table_exists(spec.target):
            schema = _iceberg_schema(spark, result)
            day_id = schema.find_field(DAY_COLUMN).field_id
            by_day = PartitionSpec(PartitionField(day_id, 1000, IdentityTransform(), DAY_COLUMN))
            catalog.create_table_if_not_exists(spec.target, schema, partition_spec=by_day)
    spark.catalog.refreshTable(target)


def _iceberg_schema(spark: SparkSession, result: DataFrame) -> Schema:
    """Return the result's schema as Iceberg's Spark runtime translates it; the catalog assigns new column ids."""
    iceberg: Any = spark._jvm.org.apache.iceberg  # type: ignore[union-attr]  # PySpark has no public name for it
    return Schema.model_validate_json(
        iceberg.SchemaParser.toJson(iceberg.spark.SparkSchemaUtil.convert(result._jdf.schema()))
    )


def _overwrite(result: DataFrame, target: str, day: date, *, base: Table, summary: Mapping[str, str]) -> bool:
    """Replace the day's partition with the result, which may be empty. Returns False if the day has changed since
    `base`.
    """
    writer = result.writeTo(target).option("isolation-level", "serializable")
    snapshot = base.current_snapshot()
    if snapshot is not None:
        writer = writer.option("validate-from-snapshot-id", str(snapshot.snapshot_id))
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    try:
        writer.overwrite(F.col(DAY_COLUMN) == F.lit(day))
    except AnalysisException as error:
        raise SchemaIncompatible(
            f"the SQL's columns do not fit the table {target}: {_first_line(error)}. Change the SQL, or the table "
            "(ALTER TABLE)"
        ) from error
    except (Py4JJavaError, PySparkException) as error:
        if not any(conflict in str(error) for conflict in _CONFLICTS):
            raise
        return False
    return True


def _not_written_message(spec: AggregationSpec, day: date, given: DayInput, newer: Mapping[str, str]) -> str:
    return (
        f"{spec.target}: {day} was not changed, because it already shows a newer state of {spec.source}: sequence "
        f"number {newer['frazil.input-sequence-number']} (snapshot {newer['frazil.input-snapshot-id']}). The input of "
        f"this run has sequence number {given.sequence_number} (snapshot {given.snapshot_id})"
    )


def _spark_name(catalog: Catalog, identifier: str) -> str:
    return ".".join(f"`{part}`" for part in (catalog.name, *identifier.split(".")))


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
