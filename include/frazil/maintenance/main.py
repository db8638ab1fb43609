"""Runs one maintenance process over some tables: Spark session, log, report and exit code."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from frazil import clock
from frazil.errors import FrazilError
from frazil.host.process_log import log_to_stderr
from frazil.lineage.jobs import openlineage_jobs
from frazil.maintenance.due import Action
from frazil.maintenance.outcomes import Outcome, report_maintenance
from frazil.maintenance.run import maintain
from frazil.maintenance.tables import find_maintained
from frazil.spark.application import start_session
from frazil.spec.load import load_valid_streams
from frazil.table.catalogs import open_existing_catalog

log = logging.getLogger("frazil")

MAX_LISTED = 3
"""Maximum number of tables in the Spark application's name."""


def run_maintenance(
    identifiers: Sequence[str], *, streams: Path, actions: Collection[Action], report: Path | None = None
) -> int:
    """Maintain the tables in one Spark session, and write the outcomes to `report` as JSON. Returns the exit code."""
    log_to_stderr()
    try:
        specs, problems = load_valid_streams(streams)
        for problem in problems:
            log.warning("%s", problem)
        tables = [find_maintained(specs, identifier) for identifier in identifiers]
        more = f" and {len(tables) - MAX_LISTED} more" if len(tables) > MAX_LISTED else ""
        name = f"frazil maintenance of {', '.join(identifiers[:MAX_LISTED])}{more}"
        spark = start_session(name, *{t.catalog for t in tables})
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    outcomes: list[Outcome] = []
    with openlineage_jobs() as jobs:
        try:
            for table in tables:
                now_ms, catalog = clock.now_ms(), open_existing_catalog(table.catalog)
                made = maintain(lambda: spark, catalog, table, actions=actions, now_ms=now_ms)
                report_maintenance(jobs, table, made, began_ms=now_ms)
                outcomes += made
                if report:  # written after each table, so that the report of a killed run has the finished tables
                    report.write_text(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=2))
        finally:
            spark.stop()
    return next((o.exit_code for o in outcomes if o.exit_code), 0)
