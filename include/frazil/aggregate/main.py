"""Runs one daily aggregation as a process, with its Spark session, its log, and its exit code for Airflow."""

from __future__ import annotations

import logging
from datetime import date
from pathlib import Path

from frazil.aggregate.day_input import NO_REVISIONS, choose_input, day_signals, reuse_input
from frazil.aggregate.day_run import DayRun
from frazil.aggregate.run import aggregate_day
from frazil.aggregate.spec import AggregationSpec, find_aggregation, parse_day
from frazil.errors import FrazilError
from frazil.host.process_log import log_to_stderr
from frazil.lineage.jobs import openlineage_jobs
from frazil.spark.application import start_session
from frazil.table.catalogs import open_existing_catalog

log = logging.getLogger("frazil")


def run_aggregation(
    name: str, *, folder: Path, day: str, snapshot_id: int | None = None, revisions: str = NO_REVISIONS
) -> int:
    """Aggregate one day, and return the process's exit code: 0, also if the target already has a newer input.

    Without a snapshot id, the input is chosen here from the day's signals. Other exit codes are those of
    `frazil.errors`.
    """
    log_to_stderr()
    try:
        _run(find_aggregation(folder, name), parse_day(day), snapshot_id=snapshot_id, revisions=revisions)
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    return 0


def _run(spec: AggregationSpec, day: date, *, snapshot_id: int | None, revisions: str) -> None:
    catalog = open_existing_catalog(spec.catalog)
    if snapshot_id is None:
        given = choose_input(catalog, spec, day, day_signals(catalog, spec, day))
    else:
        given = reuse_input(catalog, spec, day, snapshot_id=snapshot_id, revisions=revisions)
    with openlineage_jobs() as jobs, DayRun(catalog, spec, day, given).report(jobs):
        spark = start_session(f"frazil {spec.name} {day}", spec.catalog)
        try:
            log.info(aggregate_day(spark, catalog, spec, day=day, given=given).sentence)
        finally:
            spark.stop()
