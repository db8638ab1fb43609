"""`frazil reset`, `adopt` and `forget`: change a stream's marker, after showing the consequences and asking."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from pyiceberg.table import Table

from frazil import clock
from frazil.cli.options import OFFSETS, TIME, current_user, stream_options, yes_option
from frazil.cli.output import CommandOutput, ask
from frazil.commit import marker_changes
from frazil.commit.catalog_probe import check_catalog_guarantees
from frazil.commit.commit_checks import continued_offsets, forgotten_reader, other_readers
from frazil.commit.marker import nest_by_topic, property_name
from frazil.commit.missing_rows import find_lagging_tables
from frazil.commit.open_streams import (
    check_own_table,
    open_dead_letters,
    open_kafka,
    open_read_only,
    open_stream,
    open_with_table,
)
from frazil.commit.reset_plan import AvailableOffsets, OffsetMove, StateBeforeReset, read_state_before_reset
from frazil.commit.stream_tables import StreamTables
from frazil.errors import AdoptionRequired, MarkerUnreadable, SpecError, TableLost
from frazil.home import run_folder
from frazil.host.launcher import ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.lock import WriterLock
from frazil.offsets.spans import format_span
from frazil.operations.stream_actions import (
    NotInKafka,
    ResetTarget,
    carry_out_reset,
    compute_moves,
    describe_consequences,
    fetch_available,
    find_target_offsets,
)
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.table.branches import count_live_rows
from frazil.table.lost_tables import find_lost_table
from frazil.table.tables import ensure_table, load_stream_table
from frazil.timetext import format_utc


@click.command()
@stream_options
@click.option(
    "--to",
    required=True,
    type=click.Choice(["marker", "earliest", "latest", "timestamp", "offsets", "table"]),
    help="Where to continue. `marker`: at the marker, or at the first offset that Kafka still has. `timestamp`: at "
    "the Kafka timestamp in --at. `table`: where the table is after a rollback.",
)
@click.option("--at", type=TIME, help="With --to timestamp: ISO 8601 with a zone, 2013-12-30T00:00:00Z.")
@click.option(
    "--offsets",
    type=OFFSETS,
    help='With --to offsets: \'{"flights": {"0": 1200}}\', or a file with it. Other partitions stay.',
)
@yes_option
def reset(stream: str, streams_folder: Path, *, yes: bool, as_json: bool, **options: Any) -> None:
    """Choose where STREAM continues to read.

    Resolves OffsetGap, RolledBack, TopicRecreated and MarkerUnreadable. For each topic-partition, shows what it skips
    (records that never reach the table) and what it reads again (duplicates, if the table has them). Asks for
    confirmation, and commits the new marker with the next epoch in one snapshot. This fences a running writer. It ends
    within a minute, or after its current batch. No row is deleted.

    \b
    Example:
      frazil reset flights --to marker
      frazil reset flights --to timestamp --at 2013-12-30T00:00:00Z
    """
    try:
        choice = ResetTarget(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    output = CommandOutput(as_json)
    spec = find_stream(streams_folder, stream)
    opened = open_read_only(spec)
    with open_kafka(spec) as kafka:
        state = read_state_before_reset(opened.tables)
        if state.marker_text is None:
            raise AdoptionRequired(
                f"stream {stream!r} has no marker in table {spec.table.identifier}, so nothing can be reset. Its first "
                f"start begins at source.start; if the table has rows already, run `frazil adopt {stream}` first"
            )
        available = fetch_available(kafka, state.marker)
        try:
            target = find_target_offsets(choice, state=state, available=available, kafka=kafka)
        except NotInKafka as error:
            raise click.BadParameter(str(error), param_hint="--offsets") from error
    plan = compute_moves(spec, target, state=state, available=available)
    _print_moves(plan, spec, state, available, output)
    ask(f"Reset stream {stream} to these offsets?", yes=yes)
    marker = carry_out_reset(
        open_stream(spec).tables, choice, target, plan=plan, state=state, available=available, by=current_user()
    )
    output.say(describe_next_step(stream, marker.key.epoch, LocalLauncher(stream).observe().process))
    moved = [{**asdict(m), "skipped": m.skipped, "repeated": m.repeated} for m in plan]
    output.end(stream=stream, epoch=marker.key.epoch, moves=moved)


def describe_next_step(stream: str, epoch: int, writer: ProcessState) -> str:
    if not writer.is_alive:
        next_step = f"`frazil resume {stream}`, or `frazil run {stream}`, continues at the new position."
        return f"Stream {stream} has epoch {epoch}. {next_step}"
    command = "run" if writer in {ProcessState.FOREGROUND, ProcessState.ORPHANED} else "resume"
    return (
        f"Stream {stream} has epoch {epoch}, so the writer on this host commits nothing more. It exits with 13 "
        "(Fenced) within a minute, or after the batch that it stages; `frazil status` shows when it has ended. "
        f"Only after that, `frazil {command} {stream}` continues at the new position."
    )


def _print_moves(
    plan: tuple[OffsetMove, ...],
    spec: StreamSpec,
    state: StateBeforeReset,
    available: AvailableOffsets,
    output: CommandOutput,
) -> None:
    columns = ("topic-partition", "table holds up to", "Kafka has", "continues at", "skips", "reads again")
    rows = [
        (
            f"{m.topic}-{m.partition}",
            "unknown" if m.held is None else f"{m.held:,}",
            format_span(m.first, m.end),
            f"{m.target:,}",
            f"{m.skipped:,}",
            f"{m.repeated:,}",
        )
        for m in plan
    ]
    output.table(columns, rows, numbers=frozenset(columns[1:]))
    for sentence in describe_consequences(spec, plan, state=state, available=available):
        output.say(sentence)
    if LocalLauncher(spec.name).observe().process.is_alive:
        output.say(
            f"A writer of {spec.name} runs on this host, and a reset fences it. To let its batch commit, answer no and "
            f"run `frazil pause {spec.name}` first."
        )


@click.command()
@stream_options
@yes_option
def adopt(stream: str, streams_folder: Path, *, yes: bool, as_json: bool) -> None:
    """Let STREAM append to a table whose rows it did not write.

    Shows how many rows the table has, and the time of its oldest snapshot. Checks the schema, adds missing declared
    columns, and writes the first marker. The marker starts at the stream's declared source.start. If another stream of
    the table has read the same topics (after a rename), it starts at that stream's position instead. No row changes.

    \b
    Example:
      frazil adopt flights
    """
    output = CommandOutput(as_json)
    spec = find_stream(streams_folder, stream)
    table = load_stream_table(spec)
    check_own_table(spec, table)
    if table is None:
        output.say(f"Table {spec.table.identifier} does not exist yet: nothing to adopt, the first start creates it.")
    elif property_name(stream) in table.properties:
        output.say(f"Stream {stream} has its marker in table {spec.table.identifier} already: nothing to adopt.")
    if table is None or property_name(stream) in table.properties:
        output.end(stream=stream, adopted=False)
        return
    output.say(f"Table {spec.table.identifier} has {_describe_rows(table)}.")
    with open_kafka(spec) as kafka:
        topics = kafka.describe()
        offsets = kafka.starts(spec.source.start, topics.partitions)
    readers = other_readers(table.properties, topics.identity, stream=stream)
    output.say(f"Stream {stream} would append to it, from {spec.source.start} of {spec.source.topics_text}.")
    forgotten = forgotten_reader(table.properties, topics.identity, stream=stream)
    for sentence in _describe_earlier_readers(stream, readers, forgotten=forgotten):
        output.say(sentence)
    ask(f"Let stream {stream} append to {spec.table.identifier}?", yes=yes)
    check_catalog_guarantees(table.catalog, spec, now_ms=clock.now_ms())
    ensure_table(table.catalog, spec)
    opened = open_stream(spec)
    begin = continued_offsets(offsets, readers)
    marker = marker_changes.adopt(opened.tables, offsets=begin, source=topics.identity)
    output.say(f"Adopted: stream {stream} begins at {nest_by_topic(marker.offsets)}. `frazil run {stream}` starts it.")
    output.end(stream=stream, adopted=True, offsets=nest_by_topic(marker.offsets))


def _describe_earlier_readers(
    stream: str, readers: Mapping[str, Mapping[str, object]], *, forgotten: str | None
) -> Iterator[str]:
    for other, topics in readers.items():
        yield (
            f"Stream {other} has already read {', '.join(sorted(topics))} into this table, so {stream} continues at "
            f"the position of {other}. Stop every writer of {other}: run `frazil pause {other}` before you confirm, "
            f"and `frazil forget {other}` afterwards, while a file still declares {other}."
        )
    if forgotten:
        owner = "It" if forgotten == stream else f"Stream {forgotten}, which has read the same topics,"
        yield (
            f"{owner} was forgotten, and its rows are still in the table. Records that Kafka still has will be written "
            f"a second time, unless `frazil reset {stream}` chooses another position before the first start."
        )


@click.command()
@stream_options
@yes_option
def forget(stream: str, streams_folder: Path, *, yes: bool, as_json: bool) -> None:
    """Remove everything that frazil stores about STREAM, except its rows.

    This removes markers, journals, desired state and run folder. Refuses while a writer of the stream runs on this host
    (exit 9); a writer on another host is fenced. To write the stream to the same table again, run `frazil adopt`. Run
    `frazil forget` before you remove the stream's declaration, because the declaration names the table.

    \b
    Example:
      frazil forget flights
    """
    output, removed = CommandOutput(as_json), 0
    spec = find_stream(streams_folder, stream)
    folder = run_folder(stream)
    with WriterLock(folder, streams=(stream,)):
        table = load_stream_table(spec)
        if table is None and (lost := find_lost_table(spec)):
            raise TableLost(lost)
        where = f"from {spec.table.identifier} and {spec.dead_letter_table}" if table else "(the table does not exist)"
        output.say(f"This removes the marker of {stream} {where}, its journals, desired state and {folder}.")
        output.say("The rows stay. A later start begins at source.start, after `frazil adopt`.")
        ask(f"Forget stream {stream}?", yes=yes)
        if table is not None:
            opened = open_with_table(spec, table)
            _check_no_rows_wait(opened.tables, stream)
            removed = marker_changes.forget(opened.tables, state=opened.tables.state)
            output.say(f"Removed the markers and {format_count(removed, 'object')} next to the table.")
        elif (dead_letters := open_dead_letters(spec)) is not None:
            marker_changes.forget_dead_letters(dead_letters)
        shutil.rmtree(folder, ignore_errors=True)
    output.say(f"Stream {stream} is forgotten.")
    output.end(stream=stream, removed_objects=removed, run_folder=folder)


def _check_no_rows_wait(tables: StreamTables, stream: str) -> None:
    try:
        marker = tables.marker()
    except MarkerUnreadable:
        return
    if marker and (behind := find_lagging_tables(tables, marker)):
        raise SpecError(
            f"rows wait for {behind[0].target}, and would be lost. Let the writer run until `frazil route {stream}` "
            f"lists no table, or discard the rows: `frazil route {stream} --give-up {behind[0].target}`"
        )


def _describe_rows(table: Table) -> str:
    oldest = min((s.timestamp_ms for s in table.metadata.snapshots), default=None)
    head = table.current_snapshot()
    rows = count_live_rows(head) if head else 0
    count = "an unknown number of rows" if rows is None else format_count(rows, "row")
    return count if oldest is None else f"{count}; its oldest snapshot is from {format_utc(oldest)}"
