"""`frazil route`: which tables of a stream's route lack rows, and how one goes on without them."""

from __future__ import annotations

from pathlib import Path

import click
from pyiceberg.exceptions import NoSuchTableError

from frazil.cli.options import json_option, stream_argument, streams_option
from frazil.cli.output import Teller, ask
from frazil.commit import followers
from frazil.commit.followers import Behind, lacking
from frazil.commit.marker import Marker, property_name
from frazil.commit.opened import OpenStream, open_stream
from frazil.errors import SpecError
from frazil.spec.load import find_stream
from frazil.stream.routed_tables import made_anew
from frazil.table.catalogs import catalog_errors
from frazil.timetext import utc


@click.command()
@stream_argument()
@streams_option
@click.option("--give-up", metavar="TABLE", help="Let this table go on without the rows that wait for it.")
@click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
@json_option
def route(stream: str, streams_folder: Path, *, give_up: str | None, yes: bool, as_json: bool) -> None:
    """Say which tables of STREAM's route lack rows that home has, and why.

    With --give-up, one of them goes on as it stands: the rows that wait for it never reach it. A table that was dropped
    is made again, empty.

    \b
    Example:
      frazil route shop
      frazil route shop --give-up shop.orders
    """
    teller = Teller(as_json)
    opened = open_stream(find_stream(streams_folder, stream))
    marker = opened.tables.marker()
    if marker is None or (marker.routed is None and opened.spec.route is None):
        raise SpecError(f"stream {stream!r} has no route, or was never started")
    with catalog_errors(opened.tables.main.catalog_name):
        behind = lacking(opened.tables, marker)
        if give_up is None:
            _show(behind, stream, teller)
        else:
            waiting = {found.target: found for found in behind}
            _check_lacks(opened, marker, waiting, give_up)
            rows = waiting[give_up].rows if give_up in waiting else 0
            teller.say(f"Rows that never reach {give_up}: {rows:,}. Their files become orphans.")
            ask(f"Let {give_up} go on as it stands?", yes=yes)
            followers.give_up(opened.tables, give_up, marker)
            teller.say(f"{give_up} goes on. `frazil resume {stream}` starts the writer, if it has ended.")
    teller.end(stream=stream, behind=behind, given_up=give_up)


def _show(behind: list[Behind], stream: str, teller: Teller) -> None:
    if not behind:
        teller.say(f"All tables of the route of {stream} have all rows that its home has.")
        return
    rows = [(b.target, f"{b.rows:,}", f"{b.batches:,}", utc(b.since_ms), b.reason) for b in behind]
    teller.table(["table", "rows", "batches", "since", "why"], rows, numbers=frozenset({"rows", "batches"}))


def _check_lacks(opened: OpenStream, home: Marker, behind: dict[str, Behind], table: str) -> None:
    """Check that the table is one of the route. One that was dropped is made again."""
    try:
        known = property_name(home.stream) in opened.tables.handle(table).refresh().properties
    except NoSuchTableError:
        known = False
        if table in behind:
            made_anew(opened.spec, table)
    if not (known or table in behind):
        others = ", ".join(behind) or "none"
        raise SpecError(
            f"table {table} is none of the route of {home.stream!r} that lacks rows (those that do: {others})"
        )
