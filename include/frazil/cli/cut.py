"""`frazil cut`: prints a consistent set of snapshots (a cut) for the tables of streams."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

import click
from pyiceberg.table import Table

from frazil.cli.options import TIME, json_option, streams_argument, streams_option
from frazil.cli.output import echo, echo_json, echo_table
from frazil.clock import epoch_ms
from frazil.commit.backfill_records import BackfillState, read_backfill
from frazil.commit.compare_and_swap import RetryPolicy
from frazil.commit.marker import read_marker
from frazil.commit.missing_rows import find_tables_missing_backfill, first_batch_missing_anywhere
from frazil.commit.open_streams import RETRY_TIMEOUT_S, open_read_only
from frazil.commit.snapshot_sets import (
    TAG_PREFIX,
    SnapshotSet,
    StreamTableNames,
    TableSnapshot,
    find_snapshot_set,
    remove_tag,
    set_tag,
)
from frazil.commit.stream_tables import StreamTables
from frazil.errors import FrazilError, RouteBehind, TableLost, WriterBusy
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.stream.dropped_tables import describe_unknown_table, find_dropped_tables, shorten_dropped_tables
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.declared_tables import load_route_tables
from frazil.timetext import format_utc

Engine = Literal["spark", "trino", "duckdb"]
MAX_LOAD_ATTEMPTS = 3
_RETRY_POLICY = RetryPolicy(total_s=RETRY_TIMEOUT_S)


@click.command()
@streams_argument
@streams_option
@json_option
@click.option("--at", type=TIME, help="As of this time: ISO 8601 with a zone. Default: now.")
@click.option("--sql", "engine", type=click.Choice(get_args(Engine)), help="Print a SELECT for each table.")
@click.option("--tag", metavar="NAME", help=f"Tag the snapshots as {TAG_PREFIX}NAME, so that expiry keeps them.")
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
    for name in filter(None, (tag, untag)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise click.UsageError(f"{name!r} is not a valid tag: use letters, digits, `.`, `-` and `_`")
    histories, tables = _load_unchanged(streams, streams_folder, is_complete=untag is None)
    if untag:
        removed = [each for each, (table, _) in tables.items() if remove_tag(table, untag, retry_policy=_RETRY_POLICY)]
        if not removed:
            raise FrazilError(f"no table has the tag {TAG_PREFIX}{untag}; tables searched: {', '.join(tables)}")
        echo(f"{TAG_PREFIX}{untag} is removed from {', '.join(removed)}")
        return
    at_ms = None if at is None else epoch_ms(at)
    snapshot_set = find_snapshot_set(histories, {name: table for name, (table, _) in tables.items()}, at_ms=at_ms)
    if tag:
        _tag(tag, snapshot_set, tables)
    if as_json:
        echo_json(snapshot_set)
    elif engine is None:
        _print_snapshot_set(snapshot_set)
    else:
        for table in snapshot_set.tables:
            echo(format_select(engine, tables[table.table][1], table))


LoadedTables = dict[str, tuple[Table, str]]


def _load_unchanged(
    names: Sequence[str], folder: Path, *, is_complete: bool
) -> tuple[list[StreamTableNames], LoadedTables]:
    """Return the streams and their tables, all with the same published backfills. Raises WriterBusy."""
    for _ in range(MAX_LOAD_ATTEMPTS):
        opened, histories, tables = _load_streams(names, folder, is_complete=is_complete)
        # Main tables are loaded first. Rows that are published after that may be in other tables, but in no main table.
        loaded = [(each, tables[each.main.identifier][0]) for each in opened]
        changed = [each.stream for each, table in loaded if _may_have_published_meanwhile(each, table)]
        if not changed:
            return histories, tables
    raise WriterBusy(
        f"no cut of stream {changed[0]!r} is complete: a backfill or a replay of dead letters was published during "
        f"each of {MAX_LOAD_ATTEMPTS} attempts. Run the command again once these have ended"
    )


def _may_have_published_meanwhile(tables: StreamTables, default_table: Table) -> bool:
    """Whether a backfill or replay may have been published after the default table was loaded."""
    first_read = read_backfill(default_table.properties, tables.stream)
    backfill = tables.last_backfill()
    if backfill is None or first_read is None or backfill.id != first_read.id:
        return backfill != first_read
    return backfill.state is BackfillState.PUBLISHED and first_read.state is not BackfillState.PUBLISHED


def _load_streams(
    names: Sequence[str], folder: Path, *, is_complete: bool
) -> tuple[list[StreamTables], list[StreamTableNames], LoadedTables]:
    """Return handles, the names of the streams' tables, and the tables. With `is_complete`, no rows may be missing."""
    streams: list[StreamTables] = []
    histories: list[StreamTableNames] = []
    tables: LoadedTables = {}
    for name in dict.fromkeys(names):
        spec = find_stream(folder, name)
        opened = open_read_only(spec).tables
        streams.append(opened)
        for handle in (opened.main, opened.dead_letters):
            _, catalog = tables.setdefault(handle.identifier, (handle.current(), handle.catalog_name))
            if catalog != handle.catalog_name:
                raise FrazilError(f"table {handle.identifier} is in two catalogs: cut the streams one by one")
        default_marker, since = read_marker(opened.main.current().properties, name), None
        routed = {}
        if spec.sinks.has_routed_tables and default_marker is not None:
            with translate_catalog_errors(opened.main.catalog_name):
                since = first_batch_missing_anywhere(opened, default_marker)
                routed = load_route_tables(opened.main.current().catalog, spec.sinks)
            if is_complete:
                _check_complete(spec, opened, routed)
        elif default_marker is not None and default_marker.routed is not None and is_complete:
            echo(f"stream {name} no longer has a route: its former tables are not in this cut", err=True)
        tables |= {each: (table, opened.main.catalog_name) for each, table in routed.items()}
        expected = opened.main.identifier, opened.dead_letters.identifier
        histories.append(StreamTableNames(name, *expected, tuple(routed), since))
    return streams, histories, tables


def _check_complete(spec: StreamSpec, tables: StreamTables, existing: Mapping[str, Table]) -> None:
    dropped = find_dropped_tables(spec, tables, existing)
    unknown = sorted({*spec.sinks.named_tables} - {*existing, *(table.target for table in dropped)})
    with translate_catalog_errors(tables.main.catalog_name):
        lost = [*shorten_dropped_tables(dropped), *(describe_unknown_table(spec, tables, target) for target in unknown)]
    missing = [*lost, *map(str, find_tables_missing_backfill(tables, existing))]
    if missing:
        error = TableLost if lost else RouteBehind
        separator = "\n- " if len(missing) > 1 else " "  # each is long, because it has a remedy
        raise error(f"no cut of {spec.name!r} has all rows:{separator}{separator.join(missing)}")


def _tag(name: str, snapshot_set: SnapshotSet, tables: LoadedTables) -> None:
    tagged = []
    try:
        for table in snapshot_set.tables:
            if table.snapshot_id is None:
                echo(f"{table.table} had no snapshot at that time: it is not tagged", err=True)
                continue
            loaded = tables[table.table][0]
            is_new = TAG_PREFIX + name not in loaded.metadata.refs
            set_tag(loaded, name, table.snapshot_id, retry_policy=_RETRY_POLICY)
            if is_new:
                tagged.append(loaded)
    except FrazilError:
        for loaded in tagged:
            remove_tag(loaded, name, retry_policy=_RETRY_POLICY)
        raise


def format_select(engine: Engine, catalog: str, table: TableSnapshot) -> str:
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


def _print_snapshot_set(snapshot_set: SnapshotSet) -> None:
    def moment(ms: int | None) -> str:
        return "" if ms is None else format_utc(ms)

    rows = []
    for table in snapshot_set.tables:
        snapshot = "none yet" if table.snapshot_id is None else str(table.snapshot_id)
        batches = ", ".join(f"{name} {batch}" for name, batch in table.batches.items())
        watermarks = ", ".join(moment(ms) for ms in table.watermarks_ms.values())
        rows.append((table.table, table.holds, snapshot, moment(table.committed_at_ms), batches, watermarks))
    echo_table(("table", "holds", "snapshot", "committed", "last batch", "watermark"), rows)
    if snapshot_set.watermark_ms is not None:
        echo(f"Cut by watermark: {moment(snapshot_set.watermark_ms)}.")
