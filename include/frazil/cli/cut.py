"""`frazil cut`: prints a consistent set of snapshots for the tables of streams."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

import click
from pyiceberg.table import Table

from frazil.cli.options import json_option, streams_argument, streams_option
from frazil.cli.output import echo, echo_json, echo_table
from frazil.cli.positions import MomentText
from frazil.commit.backfill_marker import BackfillState, read_backfill
from frazil.commit.cut import TAG, Cut, CutStream, CutTable, find_cut, remove_tag, set_tag
from frazil.commit.marker import read_marker
from frazil.commit.missing_rows import missing_since, tables_missing_backfill
from frazil.commit.opened import RETRY_TIMEOUT_S, read_stream
from frazil.commit.stream_tables import StreamTables
from frazil.commit.swap import RetryPolicy
from frazil.errors import FrazilError, RouteBehind, TableLost, WriterBusy
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.stream.dropped_tables import dropped_sentences, dropped_tables, unknown_sentence
from frazil.table.catalogs import catalog_errors
from frazil.table.made_tables import load_route_tables
from frazil.timetext import utc

Engine = Literal["spark", "trino", "duckdb"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
ATTEMPTS = 3
"""Maximum of attempts to load the tables, because backfills or replays may be published meanwhile."""


@click.command()
@streams_argument()
@streams_option
@json_option
@click.option("--at", type=MomentText(), help="As of this time: ISO 8601 with a zone. Default: now.")
@click.option("--sql", "engine", type=click.Choice(get_args(Engine)), help="Print a SELECT for each table.")
@click.option("--tag", metavar="NAME", help=f"Tag the snapshots as {TAG}NAME, so that expiry keeps them.")
@click.option("--untag", metavar="NAME", help="Remove these tags, and print no cut.")
def cut(  # noqa: PLR0913 - a command's options
    streams: tuple[str, ...],
    streams_folder: Path,
    *,
    as_json: bool,
    at: datetime | None,
    engine: Engine | None,
    tag: str | None,
    untag: str | None,
) -> None:
    """Print a consistent set of snapshots (a cut) for the tables of STREAMS.

    One stream is cut by batch: its dead-letter table and its routed tables show the same batches as its table. Several
    streams are cut by watermark: the newest watermark that all of them have reached. Each table then has its newest
    snapshot at or below this watermark.

    A tag keeps its snapshot from expiry until --untag removes the tag. If a snapshot of the cut has already expired,
    prints its table and exits with 1.

    \b
    Example:
      frazil cut flights --sql spark
      frazil cut flights weather --at 2013-12-31T00:00:00Z --tag year-end
      frazil cut flights weather --untag year-end
    """
    if untag and (tag or at or engine or as_json):
        raise click.UsageError("--untag only removes tags: give it without other options")
    if as_json and engine:
        raise click.UsageError("--json and --sql are two output formats: give one of them")
    _check_names(tag, untag)
    histories, tables = _opened(streams, streams_folder, whole=untag is None)
    if untag:
        _untag(untag, tables)
        return
    found = find_cut(
        histories,
        {name: table for name, (table, _) in tables.items()},
        at_ms=None if at is None else int(at.timestamp() * 1000),
    )
    if tag:
        _tag(tag, found, tables)
    if as_json:
        echo_json(found)
    else:
        _print(found, engine, tables)


def _check_names(*tags: str | None) -> None:
    for name in filter(None, tags):
        if not _NAME.fullmatch(name):
            raise click.UsageError(f"{name!r} is not a valid tag: use letters, digits, `.`, `-` and `_`")


Tables = dict[str, tuple[Table, str]]
"""The loaded tables, each with its catalog's name, by identifier."""


def _opened(names: Sequence[str], folder: Path, *, whole: bool) -> tuple[list[CutStream], Tables]:
    """Return the streams and their tables. All tables of a stream have the same published backfills and replays.

    With `whole`, raises TableLost or RouteBehind if rows are missing. Raises WriterBusy if a backfill or replay was
    published during each attempt.
    """
    for _ in range(ATTEMPTS):
        opened, histories, tables = _load_streams(names, folder, whole=whole)
        # Main tables are loaded first: what is published later is in the other tables, and in no main table.
        met = [of.stream for of in opened if _published_meanwhile(of, tables[of.main.identifier][0])]
        if not met:
            return histories, tables
    raise WriterBusy(
        f"while the tables of stream {met[0]!r} were loaded, a backfill or a replay of dead letters was published "
        f"{ATTEMPTS} times: no cut of them is complete. Cut again once these have ended"
    )


def _published_meanwhile(tables: StreamTables, default_table: Table) -> bool:
    """Whether a backfill or replay was, or may have been, published after the default table was loaded."""
    before = read_backfill(default_table.properties, tables.stream)
    now = read_backfill(tables.main.refresh().properties, tables.stream)
    if now is None or before is None or now.id != before.id:
        return now != before
    return now.state is BackfillState.PUBLISHED and before.state is not BackfillState.PUBLISHED


def _load_streams(
    names: Sequence[str], folder: Path, *, whole: bool
) -> tuple[list[StreamTables], list[CutStream], Tables]:
    streams: list[StreamTables] = []
    histories: list[CutStream] = []
    tables: Tables = {}
    for name in dict.fromkeys(names):
        spec = find_stream(folder, name)
        opened = read_stream(spec).tables
        streams.append(opened)
        both = [opened.main, opened.dead_letters]
        for handle in both:
            known = tables.setdefault(handle.identifier, (handle.current(), handle.catalog_name))
            if known[1] != handle.catalog_name:
                raise FrazilError(f"table {handle.identifier} is in two catalogs: cut the streams one by one")
        own = [handle.identifier for handle in both]
        default_marker, since = read_marker(opened.main.current().properties, name), None
        routed = {}
        if spec.route is not None and default_marker is not None:
            with catalog_errors(opened.main.catalog_name):
                since = missing_since(opened, default_marker)
                routed = load_route_tables(opened.main.current().catalog, spec.route, stream=name)
            if whole:
                _check_whole(spec, opened, routed)
        elif default_marker is not None and default_marker.routed is not None and whole:
            echo(f"stream {name} had a route: the tables that it made are not part of this cut", err=True)
        tables |= {each: (table, opened.main.catalog_name) for each, table in routed.items()}
        histories.append(CutStream(name, own[0], own[1], tuple(routed), since))
    return streams, histories, tables


def _check_whole(spec: StreamSpec, tables: StreamTables, there: Mapping[str, Table]) -> None:
    """Check that the catalog has each table that the route lists or once had, with all rows of backfills.

    Raises TableLost for a missing table, or RouteBehind if a table waits for rows that a backfill brings.
    """
    dropped = dropped_tables(spec, tables, there)
    named = set(spec.route.tables.values()) if spec.route else set()
    unknown = sorted(named - {*there, *(found.target for found in dropped)})
    with catalog_errors(tables.main.catalog_name):
        said = [*dropped_sentences(dropped), *(unknown_sentence(spec, tables, target) for target in unknown)]
    backfilled = [*map(str, tables_missing_backfill(tables, there))]
    if said or backfilled:
        error = TableLost if said else RouteBehind
        missing = [*said, *backfilled]
        between = "\n- " if len(missing) > 1 else " "  # each has its remedy, and is long
        raise error(f"no cut of {spec.name!r} has all rows:{between}{between.join(missing)}")


def _tag(name: str, found: Cut, tables: Tables) -> None:
    """Tag the snapshots of all tables. If one cannot be tagged, remove the new tags from the others."""
    made = []
    try:
        for table in found.tables:
            if table.snapshot_id is None:
                echo(f"{table.table} had no snapshot at that time: it is not tagged", err=True)
                continue
            loaded = tables[table.table][0]
            had = TAG + name in loaded.metadata.refs
            set_tag(loaded, name, table.snapshot_id, retry_policy=RetryPolicy(total_s=RETRY_TIMEOUT_S))
            if not had:
                made.append(loaded)
    except FrazilError:
        for loaded in made:
            remove_tag(loaded, name, retry_policy=RetryPolicy(total_s=RETRY_TIMEOUT_S))
        raise


def _untag(name: str, tables: Tables) -> None:
    removed = [
        identifier
        for identifier, (table, _) in tables.items()
        if remove_tag(table, name, retry_policy=RetryPolicy(total_s=RETRY_TIMEOUT_S))
    ]
    if not removed:
        raise FrazilError(f"no table has a tag {TAG}{name}: {', '.join(tables)}")
    echo(f"{TAG}{name} is removed from {', '.join(removed)}")


def _print(found: Cut, engine: Engine | None, tables: Tables) -> None:
    if engine is None:
        _show(found)
        return
    for table in found.tables:
        echo(select(engine, tables[table.table][1], table))


def select(engine: Engine, catalog: str, table: CutTable) -> str:
    """Return a SELECT statement that reads the table's snapshot in the cut."""
    if table.snapshot_id is None:
        return f"-- {table.table} had no snapshot at that time"
    parts = [catalog, *table.table.split(".")]
    match engine:
        case "spark":
            return f"SELECT * FROM {'.'.join(f'`{part}`' for part in parts)} VERSION AS OF {table.snapshot_id};"
        case "trino":
            quoted = ".".join(f'"{part}"' for part in parts)
            return f"SELECT * FROM {quoted} FOR VERSION AS OF {table.snapshot_id};"
        case "duckdb":
            location = table.metadata_location.replace("'", "''")
            return f"SELECT * FROM iceberg_scan('{location}', snapshot_from_id = {table.snapshot_id});"


def _show(found: Cut) -> None:
    def moment(ms: int | None) -> str:
        return "" if ms is None else utc(ms)

    rows = [
        (
            table.table,
            table.holds,
            "none yet" if table.snapshot_id is None else str(table.snapshot_id),
            moment(table.committed_at_ms),
            ", ".join(f"{name} {batch}" for name, batch in table.batches.items()),
            ", ".join(moment(ms) for ms in table.watermarks_ms.values()),
        )
        for table in found.tables
    ]
    echo_table(("table", "holds", "snapshot", "committed", "last batch", "watermark"), rows)
    if found.watermark_ms is not None:
        echo(f"Cut by watermark: {moment(found.watermark_ms)}.")
