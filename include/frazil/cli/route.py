"""`frazil route`: which tables of a stream's route lack rows, and how one goes on without them."""

from __future__ import annotations

from pathlib import Path

import click
from pyiceberg.exceptions import NoSuchTableError

from frazil.cli.options import streams_option
from frazil.cli.output import ask, echo_table
from frazil.commit import followers
from frazil.commit.followers import Behind, lacking
from frazil.commit.marker import Marker
from frazil.commit.opened import OpenStream, open_stream
from frazil.errors import SpecError
from frazil.spec.load import find_stream
from frazil.spec.units import counted
from frazil.stream.routed_tables import made_anew
from frazil.table.catalogs import catalog_errors
from frazil.timetext import utc


@click.command()
@click.argument("stream")
@streams_option
@click.option("--give-up", metavar="TABLE", help="Let this table go on without the rows that wait for it.")
@click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
def route(stream: str, streams_folder: Path, give_up: str | None, yes: bool) -> None:
    """Say which tables of STREAM's route lack rows that home has, and why.

    With --give-up, one of them goes on as it stands: the rows that wait for it never reach it. A table that was dropped
    is made again, empty.

    \b
    Example:
      frazil route shop
      frazil route shop --give-up shop.orders
    """
    opened = open_stream(find_stream(streams_folder, stream))
    marker = opened.tables.marker()
    if marker is None or marker.routed is None:
        raise SpecError(f"stream {stream!r} has no route, or has committed no batch with one yet")
    with catalog_errors(opened.tables.main.catalog_name):
        behind = lacking(opened.tables, marker)
        if give_up is None:
            _show(behind, stream)
        else:
            _give_up(opened, marker, {found.target: found for found in behind}, give_up, yes=yes)


def _show(behind: list[Behind], stream: str) -> None:
    if not behind:
        click.echo(f"All tables of the route of {stream} have all rows that its home has.")
        return
    rows = [(b.target, f"{b.rows:,}", f"{b.batches:,}", utc(b.since_ms), b.reason) for b in behind]
    echo_table(["table", "rows", "batches", "since", "why"], rows, numbers=frozenset({"rows", "batches"}))


def _give_up(opened: OpenStream, home: Marker, behind: dict[str, Behind], table: str, *, yes: bool) -> None:
    if table not in behind:
        known = ", ".join(behind) or "none"
        raise SpecError(f"table {table} lacks no rows of stream {home.stream!r} (tables that do: {known})")
    click.echo(f"{counted(behind[table].rows, 'row')} never reach {table}. Their files become orphans.")
    ask(f"Let {table} go on without them?", yes=yes)
    try:
        opened.tables.handle(table).refresh()
    except NoSuchTableError:
        made_anew(opened.spec, table)
    followers.give_up(opened.tables, table, home)
    click.echo(f"{table} goes on. `frazil resume {home.stream}` starts the writer, if it has ended.")
