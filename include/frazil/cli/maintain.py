"""`frazil maintain`: plans a table's maintenance, or runs it from a terminal as Airflow would."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pyiceberg.exceptions import NoSuchTableError

from frazil import clock
from frazil.cli.options import table_options
from frazil.cli.output import echo, echo_json, echo_table, progress
from frazil.commit.expiry import ExpiryPlan
from frazil.fast_imports import allow_pandas
from frazil.home import home
from frazil.host.process_log import log_to_file
from frazil.lineage.jobs import openlineage_jobs
from frazil.maintenance.compaction import CompactionPlan
from frazil.maintenance.due import Action, is_enabled
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.outcomes import report_maintenance
from frazil.maintenance.plans import MaintenancePlan, MaintenancePlanner
from frazil.maintenance.tables import MaintainedTable, find_maintained
from frazil.spark.jars import ensure_catalog_jars
from frazil.spark.java import find_root_cause, log_file_options
from frazil.spec.last_valid import find_declared_streams
from frazil.spec.maintenance import Maintenance
from frazil.spec.units import format_count
from frazil.table.catalogs import open_existing_catalog
from frazil.table.lost_tables import absent_table_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_SHOWN_ROWS = 20


class ActionsParam(click.ParamType[tuple[Action, ...]]):
    name = "actions"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Action, ...]:
        try:
            return tuple(Action(name.strip()) for name in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not among {', '.join(Action)}", param, ctx)


@click.command()
@table_options
@click.option("--actions", type=ActionsParam(), default=",".join(Action), show_default=True, help="Only these actions.")
@click.option("--dry-run", is_flag=True, help="Show what would be done and why, and change nothing; no JVM starts.")
def maintain(table: str, streams_folder: Path, *, as_json: bool, actions: tuple[Action, ...], dry_run: bool) -> None:
    """Compact TABLE, rewrite its manifests, and expire its snapshots, each only if worthwhile.

    A writer may run meanwhile: on a conflict, the writer's commit wins. TABLE is the table of a declared
    stream, a table that a route has created, a dead-letter table, or frazil.signals.

    Exits with 0 even if nothing was due or another commit won.

    \b
    Example:
      frazil maintain demo.flights --dry-run
      frazil maintain demo.flights --actions compaction
    """
    maintained = _find_table(streams_folder, table)
    if dry_run:
        planner = MaintenancePlanner(open_existing_catalog(maintained.catalog), maintained, clock.now_ms())
        try:
            plans = {action: planner.plan(action) for action in Action if action in actions}
        except NoSuchTableError:
            raise absent_table_error(maintained.identifier, maintained.streams) from None
        echo_json(plans) if as_json else _print_plans(plans, maintained.settings)
        return
    _run_actions(maintained, actions, as_json=as_json)


def _find_table(folder: Path, name: str) -> MaintainedTable:
    """Return a declared table. Prints the problems of broken files, whose last valid content is used."""
    specs, problems = find_declared_streams(folder, now_ms=clock.now_ms())
    for problem in problems:
        echo(problem, err=True)
    return find_maintained(specs, name)


def _run_actions(maintained: MaintainedTable, actions: Iterable[Action], *, as_json: bool) -> None:
    allow_pandas()
    from frazil.maintenance import run  # takes seconds to import, and only a run needs it

    log_file = home() / "maintain" / f"{maintained.identifier}.log"
    with ExitStack() as end:
        end.enter_context(log_to_file(log_file))

        @cache
        def spark() -> SparkSession:
            from frazil.spark.application import start_session

            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            name = f"frazil maintain {maintained.identifier}"
            settings = local_spark_settings(maintained.catalog, log_file)
            session = start_session(name, maintained.catalog, properties=settings, output=log_file)
            end.callback(session.stop)
            return session

        catalog = open_existing_catalog(maintained.catalog)
        with progress("measuring the table, and running the actions that are due"):
            began_ms = clock.now_ms()
            outcomes = run.maintain(spark, catalog, maintained, actions=tuple(actions), now_ms=began_ms)
            with openlineage_jobs() as jobs:
                report_maintenance(jobs, maintained, outcomes, began_ms=began_ms)
    echo_json(outcomes) if as_json else echo("\n".join(map(str, outcomes)))
    exit_code = next((outcome.exit_code for outcome in outcomes if outcome.exit_code), 0)
    if exit_code or any(outcome.numbers.get("files-missed") for outcome in outcomes):
        cause = find_first_cause(log_file.read_text(errors="replace"))
        echo(f"{f'Spark reported: {cause}. ' if cause else ''}The log has the details: {log_file}", err=True)
    sys.exit(exit_code)


def find_first_cause(log: str) -> str | None:
    """Return the root cause of the first error whose Java stack trace is in a log; None without one."""
    trace = re.search(r"(^[\w.$]+: .*\n)?(?:^(?:\tat |Caused by: |\t\.\.\. ).*\n?)+", log, re.MULTILINE)
    cause = (find_root_cause(trace[0]) or (trace[1] or "").strip()) if trace else None
    return cause.rstrip(".") if cause else None


def local_spark_settings(catalog: str | None, log_file: Path | None = None) -> dict[str, str]:
    return {
        "spark.master": "local[*,4]",
        "spark.driver.memory": "4g",
        # The serial collector used least CPU in bench/compaction.py.
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {log_file_options(log_file) if log_file else ''}".strip(),
        "spark.jars": ",".join(map(str, ensure_catalog_jars(catalog))),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _print_plans(plans: Mapping[Action, MaintenancePlan], settings: Maintenance) -> None:
    for action, plan in plans.items():
        echo(f"{action}: {plan.sentence}")
        if isinstance(plan, CompactionPlan):
            _print_partitions(plan)
            if plan.dangling:
                deletes = format_count(len(plan.dangling), "delete file")
                echo(f"{deletes} whose data files are gone would be dropped too")
        elif isinstance(plan, ExpiryPlan) and plan.retained_reasons:
            retained = [(str(snapshot), reason) for snapshot, reason in plan.retained_reasons.items()]
            _print_rows(("kept snapshot", "why"), retained)
    for action in (action for action in plans if not is_enabled(settings, action)):
        echo(f"{action} is switched off: a run skips it")


def _print_partitions(plan: CompactionPlan) -> None:
    counted = [("rewrite", r.partition, r.files, r.bytes, r.reason) for r in plan.rewrites]
    counted += [("leave", s.partition, s.partition.small_files, s.partition.small_bytes, s.reason) for s in plan.left]
    rows = [
        (action, p.path or "(all)", f"{files:,}", f"{size:,}", reason) for action, p, files, size, reason in counted
    ]
    if rows:
        _print_rows(("plan", "partition", "files", "bytes", "why"), rows)


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    echo_table(columns, rows[:MAX_SHOWN_ROWS], numbers=frozenset({"files", "bytes"}))
    if len(rows) > MAX_SHOWN_ROWS:
        echo(f"and {len(rows) - MAX_SHOWN_ROWS:,} more: --json has them all")


@click.command()
@table_options
@click.option("--delete", is_flag=True, help="Delete the files that an earlier run with --delete also found.")
def orphans(table: str, streams_folder: Path, *, as_json: bool, delete: bool) -> None:
    """Show, or delete, files of TABLE that nothing references.

    These are files in the table's folders that no snapshot, journal or backfill refers to. --delete deletes a file only
    if an earlier run with --delete found it too. That run must be at least an hour ago, and before the table's last
    commit. Exits with 1 if the cleanup is refused or stops.

    \b
    Example:
      frazil orphans demo.flights
      frazil orphans demo.flights --delete --json
    """
    maintained, now_ms = _find_table(streams_folder, table), clock.now_ms()
    with progress("listing the table's files"):
        report = clean_orphans(open_existing_catalog(maintained.catalog), maintained, now_ms=now_ms, dry_run=not delete)
    if as_json:
        echo_json(report)
    else:
        echo(report.sentence)
        for path in report.examples:
            echo(path)
    if report.refused:
        raise SystemExit(1)
