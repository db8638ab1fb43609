"""`frazil route`: shows tables of a route that differ from the stream's default table, and discards waiting rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import click
from pyiceberg.exceptions import NoSuchTableError

from frazil import clock
from frazil.cli.options import stream_options, yes_option
from frazil.cli.output import CommandOutput, ask
from frazil.commit import marker_changes
from frazil.commit.backfill_records import record_given_up_rows
from frazil.commit.followers import LaggingTable, TableAbsence, check_routed_not_rolled_back
from frazil.commit.marker import Marker, property_name, read_marker
from frazil.commit.marker_changes import is_ahead
from frazil.commit.open_streams import OpenStream, open_read_only, open_stream
from frazil.commit.routed_table_records import delete_table_record, read_table_record, write_table_record
from frazil.commit.waiting_files import load_missing_table_note
from frazil.errors import MarkerUnreadable, RolledBack, SpecError
from frazil.host.supervision import find_supervision
from frazil.spec.load import find_stream
from frazil.spec.units import format_count
from frazil.stream.dropped_tables import (
    DroppedTable,
    dropped_table_value,
    find_lagging_and_dropped_tables,
    recreate_table,
    route_may_include,
)
from frazil.stream.routed_tables import is_foreign_table
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.declared_tables import load_route_tables
from frazil.timetext import format_utc

_GIVE_UP_HELP = "Let this table continue without its waiting rows; may be repeated."


@click.command()
@stream_options
@click.option("--give-up", "given_up", metavar="TABLE", multiple=True, help=_GIVE_UP_HELP)
@yes_option
def route(stream: str, streams_folder: Path, *, given_up: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Show which tables of STREAM's route differ from its default table, and why.

    With --give-up, a table continues as it is. Rows that wait for the table never reach it. The table keeps rows of
    batches that the default table does not have. A dropped table is created again, empty. If files of the old table
    still exist, the new table gets another folder. If the table was replaced by another table of the same name, that
    table is used. If the route no longer includes a table, it is not created again: all rows that wait for it are
    discarded, including rows of a replay.

    Exits with 1 if a table differs from the default table. Exits with 0 if no table differs, and always with --give-up.
    Rows of the default table's last batch may take a minute to arrive: they are reported, and do not count as a
    difference.

    \b
    Example:
      frazil route shop
      frazil route shop --give-up shop.orders --give-up shop.refunds
    """
    output = CommandOutput(as_json)
    opened = (open_stream if given_up else open_read_only)(find_stream(streams_folder, stream))
    marker = opened.tables.marker()
    if marker is None or (marker.routed is None and not opened.spec.sinks.has_routed_tables):
        effect = (
            "has no route"
            if not opened.spec.sinks.has_routed_tables
            else "has never started: its first start creates its tables"
        )
        raise SpecError(f"stream {stream!r} {effect}")
    with translate_catalog_errors(opened.tables.main.catalog_name):
        result = _RouteDifferences.find(opened, marker)
        done = [table for table in given_up if _give_up(opened, marker, result, table, output, yes=yes)]
        if not given_up:
            _print_differences(result, stream, output)
    output.end(stream=stream, **{field.name: getattr(result, field.name) for field in fields(result)}, given_up=done)
    if not given_up and result.has_any:
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class _RouteDifferences:
    behind: list[LaggingTable]
    coming: list[LaggingTable]
    """Tables that are missing only the last batch, which the writer may be about to commit."""
    dropped: list[DroppedTable]
    ahead: list[str]

    @classmethod
    def find(cls, opened: OpenStream, default_marker: Marker) -> _RouteDifferences:
        existing = load_route_tables(opened.tables.main.current().catalog, opened.spec.sinks)
        behind, dropped = find_lagging_and_dropped_tables(opened.spec, opened.tables, default_marker, existing)
        now_ms = opened.tables.clock_ms()
        coming = [each for each in behind if each.is_about_to_commit(now_ms)]
        behind = [each for each in behind if each not in coming]
        markers = {name: read_marker(table.properties, opened.spec.name) for name, table in existing.items()}
        ahead = [name for name, marker in markers.items() if marker is not None and is_ahead(marker, default_marker)]
        return cls(behind, coming, dropped, ahead)

    @property
    def has_any(self) -> bool:
        return bool(self.behind or self.dropped or self.ahead)

    @property
    def stopped(self) -> set[str]:
        return {*(each.target for each in self.dropped), *self.ahead}

    def rows_for(self, table: str, *, backfilled: bool) -> int:
        return sum(b.rows for b in self._missing() if b.target == table and (backfilled or b.backfill is None))

    def lagging_backfill(self, table: str) -> LaggingTable | None:
        return next((b for b in self.behind if b.target == table and b.backfill), None)

    def tables(self) -> set[str]:
        return {*(each.target for each in self._missing()), *(each.target for each in self.dropped)}

    def _missing(self) -> list[LaggingTable]:
        return [*self.behind, *self.coming]


def _print_differences(differences: _RouteDifferences, stream: str, output: CommandOutput) -> None:
    if differences.behind:
        rows = [(b.target, f"{b.rows:,}", f"{b.batches:,}", format_utc(b.since_ms)) for b in differences.behind]
        output.table(["table", "rows", "batches", "since"], rows, numbers=frozenset({"rows", "batches"}))
    for behind in differences.behind:
        output.say(f"{behind.target}: {behind.explanation}")
    for dropped in differences.dropped:
        output.say(str(dropped))
    if differences.dropped or any(behind.absence is TableAbsence.MISSING for behind in differences.behind):
        output.say("frazil deletes no files in the folder of a dropped table, not even files of failed batches.")
    for table in differences.ahead:
        output.say(
            f"{table} has batches that the default table does not have: the default table was replaced, or the stream "
            f"was forgotten. `frazil route {stream} --give-up {table}` lets it continue"
        )
    for coming in differences.coming:
        text = f"{format_count(coming.rows, 'row')} of the default table's last batch, of {format_utc(coming.since_ms)}"
        output.say(f"{coming.target} is missing {text}: the writer, if it runs, is about to commit them.")
    if not (differences.coming or differences.has_any):
        output.say(f"No table of the route is behind. This compares positions; `frazil audit {stream}` compares rows.")


def _give_up(  # noqa: PLR0913
    opened: OpenStream,
    default_marker: Marker,
    differences: _RouteDifferences,
    table: str,
    output: CommandOutput,
    *,
    yes: bool,
) -> bool:
    _check_routed(opened, default_marker, differences, table)
    is_routed, exists = route_may_include(opened.spec, opened.tables, table), _table_exists(opened, table)
    if is_routed and not exists:
        dropped_table_value(opened.spec, opened.tables, table)  # raises an error before anything is printed
    rows = differences.rows_for(table, backfilled=not is_routed)  # tables of the route still get the rows of a backfill
    if not rows and _needs_no_action(opened, default_marker, differences, table, table_exists=exists):
        waiting = differences.lagging_backfill(table)
        waiting_text = f" {waiting}." if waiting else ""
        output.say(f"No row of a batch waits for {table}: nothing is given up.{waiting_text}")
        return False
    output.say(
        f"Rows that never reach {table}: {rows:,}. Their files become orphans. Audits will report these rows as "
        "missing, and all rows of a dropped table."
        if rows
        else f"No row waits for {table}. If it was dropped, audits will report its rows as missing."
    )
    ask(f"Let {table} continue as it is?", yes=yes)
    if not is_routed and _discard_rows(opened, default_marker, differences, table, table_exists=exists):
        output.say(f"The route no longer includes {table}: the stream continues without these rows.")
        return True
    try:
        if not exists:
            recreate_table(opened.spec, opened.tables, table)
        elif is_foreign_table(opened.spec, opened.tables, table):
            marker_changes.discard_rows_of_missing_table(opened.tables, table, default_marker)
            delete_table_record(opened.tables, table)
            output.say(
                f"The route did not create {table}, so the table is not changed. The stream continues without the "
                "table: records for it become dead letters, unless you add the table to route.tables."
            )
            return True
        marker_changes.discard_rows_of_existing_table(opened.tables, table, default_marker)
        member = read_table_record(opened.tables, table)
        if member is not None:
            write_table_record(opened.tables, table, member.value, opened.tables.handle(table).current())
    except Exception as error:  # catalogs' clients raise anything
        if load_missing_table_note(opened.tables, table) is None:
            raise
        output.say(f"{table} still does not exist ({error}). Once it exists, it gets the rows of later batches.")
        marker_changes.discard_rows_of_missing_table(opened.tables, table, default_marker)
    supervision = find_supervision(opened.spec, now_ms=clock.now_ms())
    output.say(f"{table} continues. `{supervision.start_command}` starts the writer, if it has ended.")
    return True


def _needs_no_action(
    opened: OpenStream, default_marker: Marker, differences: _RouteDifferences, table: str, *, table_exists: bool
) -> bool:
    if table in differences.stopped:
        return False
    if not table_exists or is_foreign_table(opened.spec, opened.tables, table):
        return _were_rows_discarded(opened, table)
    metadata = opened.tables.handle(table).current().metadata
    try:
        marker = read_marker(metadata.properties, default_marker.stream)
        if marker is not None:
            check_routed_not_rolled_back(metadata, marker, table=table)
    except (MarkerUnreadable, RolledBack):
        return False
    return marker is not None


def _discard_rows(
    opened: OpenStream, default_marker: Marker, differences: _RouteDifferences, table: str, *, table_exists: bool
) -> bool:
    """Discard the rows that wait for a table. Return whether this is all that --give-up has to do for the table."""
    waiting, of_batches = differences.lagging_backfill(table), differences.rows_for(table, backfilled=False)
    if waiting and waiting.backfill:
        record_given_up_rows(opened.tables.journals, waiting.backfill, table)
    if of_batches and not table_exists:
        marker_changes.discard_rows_of_missing_table(opened.tables, table, default_marker)
    return not table_exists or (waiting is not None and not of_batches)


def _check_routed(opened: OpenStream, default_marker: Marker, differences: _RouteDifferences, table: str) -> None:
    spec, marker = opened.spec, property_name(default_marker.stream)
    if table in differences.tables() or _were_rows_discarded(opened, table):
        return
    is_own = table in {spec.sinks.default_table, spec.sinks.dead_letter_table}
    properties = opened.tables.handle(table).current().properties if _table_exists(opened, table) else {}
    if is_own or not (marker in properties or spec.sinks.owns(table, properties)):
        names = ", ".join(sorted(differences.tables()))
        hint = f"tables that are missing rows, or were dropped: {names}" if names else "no table is missing rows"
        raise SpecError(f"table {table} is not in the route of {default_marker.stream!r}; {hint}")


def _were_rows_discarded(opened: OpenStream, table: str) -> bool:
    note = load_missing_table_note(opened.tables, table)
    return note is not None and note.given_up is not None


def _table_exists(opened: OpenStream, table: str) -> bool:
    try:
        opened.tables.handle(table).refresh()
    except NoSuchTableError:
        return False
    return True
