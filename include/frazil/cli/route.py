"""`frazil route`: shows tables of a route that differ from the stream's default table.

Lets operators give up their waiting rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.cli.options import json_option, stream_argument, streams_option
from frazil.cli.output import CommandOutput, ask, said_of
from frazil.commit import marker_change
from frazil.commit.backfill_records import give_up_rows
from frazil.commit.followers import Behind, check_routed_not_rolled_back
from frazil.commit.marker import Marker, property_name, read_marker
from frazil.commit.marker_change import is_ahead
from frazil.commit.members import forget_member, read_member, write_member
from frazil.commit.opened import OpenStream, open_stream, read_stream
from frazil.commit.waiting_files import load_note
from frazil.errors import MarkerUnreadable, RolledBack, SpecError
from frazil.spec.load import find_stream
from frazil.spec.units import counted
from frazil.stream.dropped_tables import DroppedTable, behind_default_table, recreate_table, route_has, value_of_dropped
from frazil.stream.routed_tables import is_in_the_place
from frazil.table.catalogs import catalog_errors
from frazil.table.made_tables import load_route_tables
from frazil.timetext import utc


@click.command()
@stream_argument()
@streams_option
@click.option(
    "--give-up",
    "given_up",
    metavar="TABLE",
    multiple=True,
    help="Let this table continue as it is; may be repeated.",
)
@click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
@json_option
def route(stream: str, streams_folder: Path, *, given_up: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Show which tables of STREAM's route differ from its default table, and why.

    With --give-up, a table continues as it is. Rows that wait for the table never reach it, and batches that the
    default table does not have stay in it. A dropped table is created again, empty; if files of the old table still
    exist, in another folder. If another table now has the name, that table is used. A table that the route no longer
    has is not created again: all rows that wait for it are discarded, including rows of a replay.

    Exits with 1 if a table differs from the default table. Exits with 0 if no table differs, and always with --give-up.
    Rows of the default table's last batch may take a minute to arrive: they are reported, and do not count as a
    difference.

    \b
    Example:
      frazil route shop
      frazil route shop --give-up shop.orders --give-up shop.refunds
    """
    output = CommandOutput(as_json)
    opened = (open_stream if given_up else read_stream)(find_stream(streams_folder, stream))
    marker = opened.tables.marker()
    if marker is None or (marker.routed is None and opened.spec.route is None):
        what = "has no route" if opened.spec.route is None else "was never started: its first start makes its tables"
        raise SpecError(f"stream {stream!r} {what}")
    with catalog_errors(opened.tables.main.catalog_name):
        found = _Differences.of(opened, marker)
        done = [table for table in given_up if _give_up(opened, marker, found, table, _Asking(output, yes))]
        if not given_up:
            _show(found, stream, output)
    output.end(
        stream=stream,
        behind=found.behind,
        coming=found.coming,
        dropped=found.dropped,
        ahead=found.ahead,
        given_up=done,
    )
    if not given_up and found.is_amiss:
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class _Asking:
    output: CommandOutput
    yes: bool


@dataclass(frozen=True, slots=True)
class _Differences:
    """The tables of a route that differ from the default table, by kind of difference."""

    behind: list[Behind]
    coming: list[Behind]
    """Tables that are missing only the default table's last batch. The writer may be about to commit it to them."""
    dropped: list[DroppedTable]
    """Dropped tables for which no rows wait."""
    ahead: list[str]

    @classmethod
    def of(cls, opened: OpenStream, default_marker: Marker) -> _Differences:
        route, catalog = opened.spec.route, opened.tables.main.current().catalog
        there = {} if route is None else load_route_tables(catalog, route, stream=opened.spec.name)
        behind, dropped = behind_default_table(opened.spec, opened.tables, default_marker, there)
        now_ms = opened.tables.clock_ms()
        coming = [found for found in behind if found.is_coming(now_ms)]
        behind = [found for found in behind if found not in coming]
        return cls(behind, coming, dropped, _ahead(opened, default_marker, there))

    @property
    def is_amiss(self) -> bool:
        return bool(self.behind or self.dropped or self.ahead)

    @property
    def amiss(self) -> set[str]:
        """Tables that get rows again only after an operator's --give-up, whether rows wait for them or not."""
        return {*(found.target for found in self.dropped), *self.ahead}

    def rows_for(self, table: str, *, backfilled: bool) -> int:
        """Return the number of rows that wait for a table. `backfilled` includes rows of a backfill."""
        return sum(b.rows for b in self._missing() if b.target == table and (backfilled or b.backfill is None))

    def backfill_for(self, table: str) -> Behind | None:
        """Return the backfill or replay whose rows wait for a table; None if there is none."""
        return next((b for b in self.behind if b.target == table and b.backfill), None)

    def named(self) -> set[str]:
        return {*(found.target for found in self._missing()), *(found.target for found in self.dropped)}

    def _missing(self) -> list[Behind]:
        return [*self.behind, *self.coming]


def _ahead(opened: OpenStream, default_marker: Marker, there: Mapping[str, Table]) -> list[str]:
    """Return tables with batches that the default table does not have, for example after `frazil forget`.

    The writer cannot start until an operator gives up these tables.
    """
    markers = {name: read_marker(table.properties, opened.spec.name) for name, table in there.items()}
    return [name for name, marker in markers.items() if marker is not None and is_ahead(marker, default_marker)]


def _show(found: _Differences, stream: str, output: CommandOutput) -> None:
    if found.behind:
        rows = [(b.target, f"{b.rows:,}", f"{b.batches:,}", utc(b.since_ms)) for b in found.behind]
        output.table(["table", "rows", "batches", "since"], rows, numbers=frozenset({"rows", "batches"}))
    for behind in found.behind:
        output.say(said_of(behind.target, behind.reason))
    for dropped in found.dropped:
        output.say(dropped.reason)
    for table in found.ahead:
        output.say(
            f"{table} has batches that the default table does not have: the default table is another one than "
            "before, or the stream was "
            f"forgotten. `frazil route {stream} --give-up {table}` lets it go on"
        )
    for coming in found.coming:
        last = f"{counted(coming.rows, 'row')} of the default table's last batch, of {utc(coming.since_ms)}"
        output.say(
            f"{coming.target} is missing {last}: its writer brings them right after the default table's, if it runs."
        )
    if not (found.coming or found.is_amiss):
        output.say(f"No table of the route is behind (positions only; rows: frazil audit {stream}).")


def _give_up(opened: OpenStream, default_marker: Marker, found: _Differences, table: str, asking: _Asking) -> bool:
    """Give up the waiting rows of one table, if the user confirms. Returns False if there was nothing to give up."""
    _check_routed(opened, default_marker, found, table)
    has, there = route_has(opened.spec, opened.tables, table), _is_there(opened, table)
    if has and not there:
        value_of_dropped(opened.spec, opened.tables, table)  # raises an error before anything is printed
    rows = found.rows_for(table, backfilled=not has)  # tables of the route still get the rows of a backfill
    if not rows and _is_well(opened, default_marker, found, table, there=there):
        waiting = found.backfill_for(table)
        more = f" {waiting}." if waiting else ""
        asking.output.say(f"No row of a batch waits for {table}: nothing is given up.{more}")
        return False
    asking.output.say(
        f"Rows that never reach {table}: {rows:,}. Their files become orphans. Audits of the time of these rows, and "
        "of what a dropped table had, go on to miss them."
        if rows
        else f"No row waits for {table}. If it was dropped, audits go on to miss what it had."
    )
    ask(f"Let {table} go on as it stands?", yes=asking.yes)
    if not has and _let_rows_go(opened, default_marker, found, table, there=there):
        asking.output.say(f"The route no longer has {table}: the stream goes on without these rows.")
        return True
    try:
        if not there:
            recreate_table(opened.spec, opened.tables, table)
        elif is_in_the_place(opened.spec, opened.tables, table):
            marker_change.give_up_waiting_rows(opened.tables, table, default_marker)
            forget_member(opened.tables, table)
            asking.output.say(
                f"{table} was not made for these rows, and stays as it is. The stream goes on without it: records "
                "that it would get become dead letters, unless the declaration adds it to route.tables."
            )
            return True
        marker_change.give_up(opened.tables, table, default_marker)
        _record_current_table(opened, table)
    except Exception as error:  # catalogs' clients raise anything
        if load_note(opened.tables, table) is None:
            raise
        asking.output.say(f"It is still not there ({error}): it gets what comes from now on, once it is.")
        marker_change.give_up_waiting_rows(opened.tables, table, default_marker)
    asking.output.say(f"{table} goes on. `frazil resume {default_marker.stream}` starts the writer, if it has ended.")
    return True


def _is_well(opened: OpenStream, default_marker: Marker, found: _Differences, table: str, *, there: bool) -> bool:
    """Whether a table agrees with the default table, or was given up before. Called only if no rows wait for it."""
    if table in found.amiss:
        return False
    if not there or is_in_the_place(opened.spec, opened.tables, table):
        return _was_given_up(opened, table)
    metadata = opened.tables.handle(table).current().metadata
    try:
        marker = read_marker(metadata.properties, default_marker.stream)
        if marker is not None:
            check_routed_not_rolled_back(metadata, marker, table=table)
    except (MarkerUnreadable, RolledBack):
        return False
    return marker is not None


def _let_rows_go(opened: OpenStream, default_marker: Marker, found: _Differences, table: str, *, there: bool) -> bool:
    """Discard rows that wait for a table that the route no longer has. Does not create the table again.

    Returns True if nothing more is to be given up. `there` is whether the table exists.
    """
    waiting, of_batches = found.backfill_for(table), found.rows_for(table, backfilled=False)
    if waiting and waiting.backfill:
        give_up_rows(opened.tables.journals, waiting.backfill, table)
    if of_batches and not there:
        marker_change.give_up_waiting_rows(opened.tables, table, default_marker)
    return not there or (waiting is not None and not of_batches)


def _record_current_table(opened: OpenStream, table: str) -> None:
    """Record the current table of this name as a table of the route, if the route had one of this name before."""
    member = read_member(opened.tables, table)
    if member is not None:
        write_member(opened.tables, table, member.value, opened.tables.handle(table).current())


def _check_routed(opened: OpenStream, default_marker: Marker, found: _Differences, table: str) -> None:
    spec = opened.spec
    own = table in {spec.table.identifier, spec.dead_letter_table}
    named = spec.route is not None and table in spec.route.tables.values()
    if table in found.named():
        return
    if _was_given_up(opened, table):
        return
    known = (
        _is_there(opened, table)
        and property_name(default_marker.stream) in opened.tables.handle(table).current().properties
    )
    if own or not (known or named):
        others = ", ".join(sorted(found.named()))
        amiss = (
            f"those that are missing rows, or were dropped: {others}"
            if others
            else "none of its tables is missing rows"
        )
        raise SpecError(f"table {table} is not in the route of {default_marker.stream!r}; {amiss}")


def _was_given_up(opened: OpenStream, table: str) -> bool:
    """Whether an operator gave up rows of a table that was missing, or that the route had not created."""
    note = load_note(opened.tables, table)
    return note is not None and note.given_up is not None


def _is_there(opened: OpenStream, table: str) -> bool:
    try:
        opened.tables.handle(table).refresh()
    except NoSuchTableError:
        return False
    return True
