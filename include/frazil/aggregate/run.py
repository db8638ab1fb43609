"""Aggregates one day in Spark: reads one snapshot of the source, and overwrites that day's partition of the target.

If another run has written the partition since this run read the target, the write fails. The run then reads the target
again. If the target already has a result from a newer snapshot, the run ends without a write. An error while reporting
to OpenLineage never stops a run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own abbreviation

from frazil import clock
from frazil.aggregate.day_input import (
    DayInput,
    choose_input,
    find_newer_input,
    input_summary,
    load_day_signals,
    reuse_input,
)
from frazil.aggregate.spec import DAY_COLUMN, SOURCE_VIEW, AggregationSpec, find_aggregation, parse_day
from frazil.commit.history import ancestors
from frazil.errors import CommitUnavailable, FrazilError, SchemaIncompatible, SpecError, first_line
from frazil.host.process_log import log_to_stderr
from frazil.lineage.facts import RunFacts, Totals, table_dataset
from frazil.lineage.jobs import JobReporter, openlineage_jobs
from frazil.spark.application import start_session
from frazil.table.catalogs import open_existing_catalog, translate_catalog_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
_CONFLICT_ERRORS = ("ValidationException", "CommitFailedException")
"""Names of Iceberg's exceptions when another run wrote the day, or the catalog kept refusing the commit."""


@dataclass(frozen=True, slots=True)
class DayOutcome:
    written: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class DayRun:
    catalog: Catalog
    spec: AggregationSpec
    day: date
    day_input: DayInput

    @contextmanager
    def report(self, jobs: JobReporter | None) -> Iterator[None]:
        """Report START before the run, and COMPLETE or FAIL after it; nothing if no backend is declared."""
        if jobs is None:
            yield
            return
        run, start_facts = jobs.run(f"aggregation.{self.spec.name}"), self._start_facts()
        run.started(clock.now_ms(), start_facts)
        try:
            yield
        except BaseException as error:
            run.ended(clock.now_ms(), replace(start_facts, error=f"{type(error).__name__}: {error}"))
            raise
        run.ended(clock.now_ms(), self._end_facts(start_facts))

    def _start_facts(self) -> RunFacts:
        try:
            source = table_dataset(self.catalog.load_table(self.spec.source))
        except Exception as error:  # catalogs' clients raise anything; the run will report the same error
            log.info("cannot report the source %s to the OpenLineage backend: %r", self.spec.source, error)
            return RunFacts(day=self.day)
        return RunFacts(inputs=(replace(source, snapshot_id=self.day_input.snapshot_id),), day=self.day)

    def _end_facts(self, start_facts: RunFacts) -> RunFacts:
        try:
            target = self.catalog.load_table(self.spec.target)
            return replace(start_facts, output=table_dataset(target), totals=self._written_totals(target))
        except Exception as error:  # as above
            log.info("cannot report the target %s to the OpenLineage backend: %r", self.spec.target, error)
            return start_facts

    def _written_totals(self, target: Table) -> Totals | None:
        """Return the totals of this run's snapshot; None if this run did not write the target."""
        input_properties = input_summary(self.spec, self.day, self.day_input)
        of_day = ("frazil.aggregation", "frazil.day")
        of_input = ("frazil.input-snapshot-id", "frazil.input-revisions")
        for snapshot in ancestors(target.metadata):
            summary = snapshot.summary
            if summary is not None and all(summary.get(key) == input_properties[key] for key in of_day):
                if any(summary.get(key) != input_properties[key] for key in of_input):
                    return None
                keys = ("added-records", "added-files-size", "added-data-files")
                rows, size, files = (int(summary.get(key) or 0) for key in keys)
                return Totals(rows, size, files, snapshot.snapshot_id)
        return None


def run_aggregation(name: str, *, folder: Path, day: str, snapshot_id: int | None, revisions: str) -> int:
    """Aggregate one day. Without `snapshot_id`, the input is chosen now. Return the exit code (see `frazil.errors`)."""
    log_to_stderr()
    try:
        spec, of_day = find_aggregation(folder, name), parse_day(day)
        catalog = open_existing_catalog(spec.catalog)
        if snapshot_id is None:
            day_input = choose_input(catalog, spec, of_day, load_day_signals(catalog, spec, of_day))
        else:
            day_input = reuse_input(catalog, spec, of_day, snapshot_id=snapshot_id, revisions=revisions)
        run = DayRun(catalog, spec, of_day, day_input)
        with openlineage_jobs() as jobs, run.report(jobs):
            spark = start_session(f"frazil {spec.name} {of_day}", spec.catalog)
            try:
                log.info(aggregate_day(spark, run).sentence)
            finally:
                spark.stop()
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    return 0


def aggregate_day(spark: SparkSession, run: DayRun) -> DayOutcome:
    """Write the day's partition of the target, unless it was written from newer input. The Spark session must name the
    catalog as `run.catalog` does, and use UTC. Raises SpecError if Spark refuses the SQL, SchemaIncompatible if its
    columns do not fit the target, and CommitUnavailable after MAX_ATTEMPTS conflicts.
    """
    catalog, spec, day = run.catalog, run.spec, run.day
    result = _query_day(spark, run)
    _create_target(spark, run, result)
    for _ in range(MAX_ATTEMPTS):
        with translate_catalog_errors(catalog.name):
            target, source = catalog.load_table(spec.target), catalog.load_table(spec.source)
        newer = find_newer_input(spec, day, run.day_input, target=target.metadata, source=source.metadata)
        if newer is not None:
            return DayOutcome(
                False,
                f"{spec.target}: {day} was not changed: it was computed from a newer state of {spec.source}: "
                f"sequence number {newer['frazil.input-sequence-number']} (snapshot "
                f"{newer['frazil.input-snapshot-id']}). The input of this run has sequence number "
                f"{run.day_input.sequence_number} (snapshot {run.day_input.snapshot_id})",
            )
        if _overwrite(run, result, base=target):
            origin = f"{spec.source} at snapshot {run.day_input.snapshot_id}"
            return DayOutcome(True, f"{spec.target}: {day} was computed from {origin}")
        log.info("%s: another run wrote %s at the same time; trying again", spec.target, day)
    text = f"other runs wrote {day} during each of {MAX_ATTEMPTS} attempts; run the aggregation again"
    raise CommitUnavailable(f"{spec.target}: {text}")


def _query_day(spark: SparkSession, run: DayRun) -> DataFrame:
    spec, day, source = run.spec, run.day, _spark_name(run.catalog, run.spec.source)
    try:
        spark.catalog.refreshTable(source)
        rows = spark.read.option("versionAsOf", str(run.day_input.snapshot_id)).table(source)
        moment = rows[spec.event_time]
        kind = rows.schema[spec.event_time].dataType
        begin, end = (F.lit(f"{d} 00:00:00").cast(kind) for d in (day, day + timedelta(days=1)))
        rows.where((moment >= begin) & (moment < end)).createOrReplaceTempView(SOURCE_VIEW)
        return spark.sql(spec.sql).select(F.lit(day).alias(DAY_COLUMN), "*")
    except AnalysisException as error:
        raise SpecError(
            f"aggregation {spec.name}: Spark cannot run the SQL on {spec.source}: {first_line(error)}. Correct the SQL"
        ) from error


def _create_target(spark: SparkSession, run: DayRun, result: DataFrame) -> None:
    catalog, identifier, target = run.catalog, run.spec.target, _spark_name(run.catalog, run.spec.target)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {target.rpartition('.')[0]}")
    with translate_catalog_errors(catalog.name):
        if not catalog.table_exists(identifier):
            # Spark would number the columns from 0, and SeaweedFS refuses a partition by column 0.
            iceberg: Any = spark._jvm.org.apache.iceberg  # type: ignore[union-attr]  # it has no public name
            converted = iceberg.spark.SparkSchemaUtil.convert(result._jdf.schema())
            schema = Schema.model_validate_json(iceberg.SchemaParser.toJson(converted))
            day_id = schema.find_field(DAY_COLUMN).field_id
            by_day = PartitionSpec(PartitionField(day_id, 1000, IdentityTransform(), DAY_COLUMN))
            catalog.create_table_if_not_exists(identifier, schema, partition_spec=by_day)
    spark.catalog.refreshTable(target)


def _overwrite(run: DayRun, result: DataFrame, *, base: Table) -> bool:
    """Replace the day's partition with the result. Returns False if the partition has changed since `base`."""
    target = _spark_name(run.catalog, run.spec.target)
    writer = result.writeTo(target).option("isolation-level", "serializable")
    snapshot = base.current_snapshot()
    if snapshot is not None:
        writer = writer.option("validate-from-snapshot-id", str(snapshot.snapshot_id))
    for key, value in input_summary(run.spec, run.day, run.day_input).items():
        writer = writer.option(f"snapshot-property.{key}", value)
    try:
        writer.overwrite(F.col(DAY_COLUMN) == F.lit(run.day))
    except AnalysisException as error:
        raise SchemaIncompatible(
            f"the SQL's columns do not fit the table {target}: {first_line(error)}. "
            "Change the SQL, or the table (ALTER TABLE)"
        ) from error
    except (Py4JJavaError, PySparkException) as error:
        if not any(conflict in str(error) for conflict in _CONFLICT_ERRORS):
            raise
        return False
    return True


def _spark_name(catalog: Catalog, identifier: str) -> str:
    return ".".join(f"`{part}`" for part in (catalog.name, *identifier.split(".")))
