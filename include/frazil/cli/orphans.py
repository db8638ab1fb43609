"""`frazil orphans`: shows or deletes the unreferenced files in a table's folders."""

from __future__ import annotations

from pathlib import Path

import click

from frazil import clock
from frazil.cli.options import json_option, streams_option, table_argument
from frazil.cli.output import echo, echo_json, working
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.tables import find_maintained
from frazil.spec.load import load_streams, no_stream
from frazil.table.catalogs import existing_catalog


@click.command()
@table_argument()
@streams_option
@json_option
@click.option("--delete", is_flag=True, help="Delete what an earlier run with --delete found as well.")
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
    specs = load_streams(streams_folder)
    if not specs:
        raise no_stream(streams_folder)
    maintained = find_maintained(specs.values(), table)
    now_ms = clock.now_ms()
    with working("listing the table's files"):
        report = clean_orphans(existing_catalog(maintained.catalog), maintained, now_ms=now_ms, dry_run=not delete)
    if as_json:
        echo_json(report)
    else:
        echo(report.sentence)
        for path in report.examples:
            echo(path)
    if report.refused:
        raise SystemExit(1)
