"""`frazil partitions`: shows which windows are complete; releases held windows, and signals windows again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click
from pyiceberg.catalog import Catalog

from frazil import clock
from frazil.cli.options import check_reason, current_user, table_options
from frazil.cli.output import echo, echo_fields, echo_json, echo_table
from frazil.errors import SpecError
from frazil.partitions.completeness import complete_until_us, format_time
from frazil.partitions.windows import Grain, Window, windows_between
from frazil.signals.completion import Assessment, assess_group, assess_table, release_window, resend_signals
from frazil.signals.signal_table import Signal
from frazil.spec.load import find_streams_of, load_valid_streams
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import is_template_view, never_complete_message
from frazil.spec.units import format_duration
from frazil.table.catalogs import open_existing_catalog
from frazil.table.lost_tables import absent_table_error


@dataclass(frozen=True, slots=True)
class SourceStream:
    """A stream that writes to the table. Times are ISO 8601, UTC."""

    stream: str
    watermark: str | None
    lateness: str
    held_back_by: str | None


@dataclass(frozen=True, slots=True)
class PartitionsDocument:
    """The document that `--json` prints. Times are None before the first signal or if unknown."""

    table: str
    window: str
    complete_to: str | None
    signalled_from: str | None
    signalled_to: str | None
    waits_for: str
    delay: str
    """Why complete windows have no event, or why there is no first window; otherwise empty."""
    held: tuple[str, ...]
    streams: tuple[SourceStream, ...]
    signals: tuple[Signal, ...]


@dataclass(frozen=True, slots=True)
class TemplateTable:
    table: str
    signalled_to: str | None
    waits_for: str
    delay: str
    held: tuple[str, ...]


@click.command()
@table_options
@click.option("--last", default=24, show_default=True, help="Number of the latest signalled windows to show.")
@click.option(
    "--send-again",
    "again",
    multiple=True,
    metavar="DAY",
    help="Send a day's signals again, with their current revisions, for consumers that were paused.",
)
@click.option("--release", "held", metavar="PARTITION", help="Signal a window that its quality gate holds.")
@click.option("--reason", callback=check_reason, help="With --release: the reason; it is recorded.")
def partitions(  # noqa: PLR0913 - a command's options
    table: str,
    streams_folder: Path,
    *,
    as_json: bool,
    last: int,
    again: tuple[str, ...],
    held: str | None,
    reason: str | None,
) -> None:
    """Show which windows of TABLE are complete, and why the next window is not.

    The table's partition DAG signals complete windows; this command signals windows only with --send-again or
    --release. To see all tables that a route's template created, give the template as TABLE.

    \b
    Example:
      frazil partitions demo.flights
      frazil partitions demo.flights --send-again 2013-12-30
      frazil partitions demo.flights --release 2013-12-30T15 --reason "the source had an outage"
    """
    if bool(held) != bool(reason):
        raise click.UsageError("--release requires --reason, and --reason requires --release")
    specs = _find_streams(streams_folder, table)
    table = specs[0].table.identifier
    catalog = open_existing_catalog(specs[0].table.catalog)
    if is_template_view(specs[0]):
        if held or again:
            raise click.UsageError("--release and --send-again need one of the tables that the template created")
        _show_group(_template_tables(assess_group(catalog, specs[0], limit=sys.maxsize)), as_json=as_json)
        return
    by = f"by {current_user()}, frazil partitions"
    assessment = _assess(catalog, specs)
    if held and reason:
        release_window(catalog, specs[0], _parse_window(held), note=f"released {by}: {reason}", clock_ms=clock.now_ms())
    if again:
        windows = [window for key in again for window in _windows_of_day(key, assessment.grain)]
        resend_signals(catalog, table, windows, note=f"sent again {by}", clock_ms=clock.now_ms())
    document = _build_document(_assess(catalog, specs) if held or again else assessment, last)
    if as_json:
        echo_json(document)
    else:
        _print_windows(document)


def _find_streams(streams_folder: Path, name: str) -> tuple[StreamSpec, ...]:
    """Return the streams that write to a table. `name` is the name of the table or of one of these streams."""
    specs = load_valid_streams(streams_folder)[0] if "." not in name else []
    table = next((spec.table.identifier for spec in specs if spec.name == name), None)
    if table is None:
        return find_streams_of(streams_folder, name)
    echo(f"{name} is a stream; showing its table {table}", err=True)
    return find_streams_of(streams_folder, table)


def _assess(catalog: Catalog, specs: Sequence[StreamSpec]) -> Assessment:
    assessment = assess_table(catalog, specs)
    if assessment is None:
        if specs[0].window is None:
            raise SpecError(never_complete_message(specs[0]))
        raise absent_table_error(specs[0].table.identifier, specs)
    return assessment


def _parse_window(key: str) -> Window:
    try:
        return Window.parse(key)
    except ValueError as error:
        raise click.UsageError(f"partition {error}") from error


def _windows_of_day(key: str, grain: Grain) -> Sequence[Window]:
    """Return all windows of a day. Refuses an hour: a day's roll-up waits for all of its hours."""
    window = _parse_window(key)
    if window.grain is not Grain.DAY:
        raise click.UsageError(f"--send-again needs a day, but {key} is an hour: give {key[:10]}")
    return list(windows_between(grain, window.start_us, window.end_us))


def _build_document(assessment: Assessment, last: int) -> PartitionsDocument:
    cursor, bound = assessment.signals.cursor, complete_until_us(assessment.feeds)
    newest: dict[Window, Signal] = {}
    if cursor is not None:
        since = min([cursor.through_us - last * assessment.grain.us, *cursor.held])
        newest = assessment.signals.newest(from_us=since, to_us=cursor.through_us)
    return PartitionsDocument(
        table=assessment.signals.table,
        window=assessment.grain,
        complete_to=None if bound is None else format_time(bound),
        signalled_from=None if cursor is None else format_time(cursor.from_us),
        signalled_to=None if cursor is None else format_time(cursor.through_us),
        waits_for=assessment.decision.reason,
        delay=assessment.describe_delay(),
        held=tuple(w.key for w in sorted(newest) if not newest[w].sent),
        streams=tuple(
            SourceStream(
                f.stream,
                None if f.watermark_us is None else format_time(f.watermark_us),
                format_duration(timedelta(microseconds=f.lateness_us)),
                f"{f.delaying_partition[0]}-{f.delaying_partition[1]}" if f.delaying_partition else None,
            )
            for f in assessment.feeds
        ),
        signals=tuple(newest[w] for w in sorted(newest)),
    )


def _template_tables(assessments: Sequence[Assessment]) -> list[TemplateTable]:
    tables = []
    for assessment in assessments:
        cursor = assessment.signals.cursor
        held = tuple(Window(us, cursor.grain).key for us in sorted(cursor.held)) if cursor else ()
        signalled_to = None if cursor is None else format_time(cursor.through_us)
        tables.append(
            TemplateTable(
                assessment.signals.table, signalled_to, assessment.decision.reason, assessment.describe_delay(), held
            )
        )
    return tables


def _show_group(tables: Sequence[TemplateTable], *, as_json: bool) -> None:
    if as_json:
        echo_json(tables)
    elif tables:
        rows = [(t.table, t.signalled_to or "nothing yet", ", ".join(t.held), t.waits_for, t.delay) for t in tables]
        echo_table(("table", "signalled to", "held", "next", "delay"), rows)
    else:
        echo("the template has created no table yet")


def _print_windows(document: PartitionsDocument) -> None:
    if document.signals:
        columns = ("partition", "revision", "state", "rows", "late", "dead letters", "snapshot", "note")
        rows = []
        for s in document.signals:
            counts = [f"{count:,}" for count in (s.rows, s.late_rows, s.dead_letters)]
            rows.append((s.partition, str(s.revision), s.state, *counts, str(s.snapshot_id), s.note or ""))
        echo_table(columns, rows, numbers=frozenset({"revision", "rows", "late", "dead letters"}))
    begin, end = document.signalled_from, document.signalled_to
    range_text = "nothing yet" if begin is None or begin == end else f"from {begin} to {end}"
    echo_fields(
        {
            "table": document.table,
            "window": document.window,
            "signalled": range_text,
            "next": document.waits_for,
            **({"delay": document.delay} if document.delay else {}),
            **({"held": ", ".join(document.held)} if document.held else {}),
        }
    )
