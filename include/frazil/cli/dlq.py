"""`frazil dlq`: shows a stream's dead letters, decodes them again, or discards them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from frazil import clock
from frazil.backfill.commit import find_unfinished
from frazil.backfill.request import check_coordinates
from frazil.cli.options import TIME, check_reason, current_user, stream_options, yes_option
from frazil.cli.output import ask, echo, echo_json, echo_table, progress
from frazil.commit.open_streams import OpenStream, open_read_only
from frazil.dead_letters.selection import (
    ERROR_CLASS_PATTERN,
    DiscardMark,
    LeftOutReason,
    Selection,
    count_by_day,
    count_left_out,
    discard,
    left_out_messages,
    read_samples,
)
from frazil.errors import AdoptionRequired
from frazil.fast_imports import allow_pandas
from frazil.safe_text import escape_unsafe
from frazil.spec.last_valid import find_or_recall
from frazil.spec.load import find_stream
from frazil.spec.units import format_count
from frazil.timetext import format_utc

if TYPE_CHECKING:
    from frazil.dead_letters.replay import Preview, ReplayResult
    from frazil.spec.model import StreamSpec

_REASON_HELP = "Only dead letters of this error class; may be repeated."
_all_option = click.option("--all", "discarded", is_flag=True, help="Include discarded dead letters.")
MAX_SHOWN_CHARACTERS = 200


def _check_error_classes(_: click.Context, __: click.Parameter, reasons: tuple[str, ...]) -> tuple[str, ...]:
    for reason in reasons:
        if not re.fullmatch(ERROR_CLASS_PATTERN, reason):
            raise click.BadParameter(f"{reason!r} is not an error class; `frazil dlq list` shows the existing ones")
    return reasons


def _selection_options(command: Callable[..., None]) -> Any:
    options = (
        click.option("--reason", "reasons", multiple=True, callback=_check_error_classes, help=_REASON_HELP),
        click.option("--from", "begin", type=TIME, help="Only dead letters rejected at this time or later."),
        click.option("--to", "end", type=TIME, help="Only dead letters rejected earlier."),
    )
    return stream_options(reduce(lambda decorated, option: option(decorated), reversed(options), command))


@click.group()
def dlq() -> None:
    """Show the dead letters of a stream, decode them again, or discard them."""


@dlq.command("list")
@_selection_options
@_all_option
def list_(stream: str, streams_folder: Path, *, as_json: bool, discarded: bool, **where: Any) -> None:
    """Count the dead letters of STREAM by day and reason.

    \b
    Example:
      frazil dlq list flights
      frazil dlq list flights --from 2013-12-30T00:00:00Z --json
    """
    opened = _open(stream, streams_folder, where["reasons"], recall=True)
    counts = count_by_day(opened.tables.dead_letters.current(), opened.spec, Selection(discarded=discarded, **where))
    if as_json:
        echo_json(counts)
    elif not counts:
        _echo_none_found(opened, Selection(discarded=discarded, **where))
    else:
        rows = [(f"{c.day}", c.reason, f"{c.dead_letters:,}", f"{c.replayed:,}", f"{c.discarded:,}") for c in counts]
        columns = ("day", "reason", "dead letters", "failed again", "discarded")
        echo_table(columns, rows, numbers=frozenset(columns[2:]))
        for sentence in _left_out_messages(opened, Selection(discarded=discarded, **where)):
            echo(f"In a replay, {sentence}", err=True)
    if (backfill := find_unfinished(opened.tables)) and backfill.replays:
        echo(f"A replay of stream {stream} is running, or was interrupted: `{backfill.command}` finishes it.", err=True)


@dlq.command()
@_selection_options
@_all_option
@click.option("--limit", type=click.IntRange(1), default=10, show_default=True, help="Number of dead letters to show.")
@click.option("--decrypt", is_flag=True, help="Decrypt what a stream with sensitive fields stores encrypted.")
def show(  # noqa: PLR0913 - a command's options
    stream: str, streams_folder: Path, *, as_json: bool, discarded: bool, limit: int, decrypt: bool, **where: Any
) -> None:
    """Show the first dead letters of STREAM, by topic, partition and offset, with their bytes.

    \b
    Example:
      frazil dlq show flights --reason TypeMismatch --limit 3
    """
    opened = _open(stream, streams_folder, where["reasons"], recall=True)
    selection = Selection(discarded=discarded, **where)
    dead_letters = opened.tables.dead_letters.current()
    samples = read_samples(dead_letters, opened.spec, selection, limit=limit, decrypt=decrypt)
    if as_json:
        echo_json(samples)
        return
    for dead_letter in samples:
        rejected_at = format_utc(dead_letter.rejected_at_ms)
        echo(f"{dead_letter.where}  {rejected_at}  {dead_letter.reason}: {dead_letter.error}")
        value = "none (a tombstone)" if dead_letter.value is None else dead_letter.value
        for name, text in (("key", dead_letter.key), ("value", value), ("discarded", dead_letter.discarded)):
            if text is not None:
                echo(f"    {name}: {_shorten(text)}")
        for name, values in dead_letter.headers.items():
            for text in values:
                echo(f"    header {_shorten(name)}: {'null' if text is None else _shorten(text)}")
    if not samples:
        _echo_none_found(opened, selection)
    elif len(samples) == limit:
        hidden = sum(c.dead_letters for c in count_by_day(dead_letters, opened.spec, selection)) - limit
        if hidden > 0:
            echo(f"{format_count(hidden, 'more dead letter')} not shown; --limit shows more.", err=True)


@dlq.command("discard")
@_selection_options
@click.option("--because", required=True, callback=check_reason, help="Reason; kept with each dead letter.")
@click.option(
    "--by", default=current_user, show_default="the user who runs the command", help="User; kept with each dead letter."
)
@click.option("--dry-run", is_flag=True, help="Count the dead letters, and change nothing.")
@yes_option
def discard_(  # noqa: PLR0913 - a command's options
    stream: str, streams_folder: Path, *, as_json: bool, because: str, by: str, dry_run: bool, yes: bool, **where: Any
) -> None:
    """Mark dead letters of STREAM as discarded, with the user and the reason.

    The dead letters stay in their table, but `frazil dlq list` and `replay` omit them.

    \b
    Example:
      frazil dlq discard flights --reason InvalidJson --because "test records" --dry-run
    """
    opened, selection = _open(stream, streams_folder, where["reasons"]), Selection(**where)
    count = sum(c.dead_letters for c in count_by_day(opened.tables.dead_letters.current(), opened.spec, selection))
    if dry_run or not count:
        sentence = f"{format_count(count, 'dead letter')} of stream {stream} would be discarded."
        sentence = sentence if count else _nothing_message(stream, "to discard", selection)
        _print_result(as_json, sentence, discarded=0, selected=count)
        return
    ask(f"Discard {format_count(count, 'dead letter')} of stream {stream}?", yes=yes)
    count_discarded = discard(opened, selection, DiscardMark(by, because, clock.now_ms()))
    sentence = f"{format_count(count_discarded, 'dead letter')} of stream {stream} discarded."
    _print_result(as_json, sentence, discarded=count_discarded, selected=count)
    backfill = find_unfinished(opened.tables) if count_discarded < count else None
    if backfill and backfill.replays and not backfill.is_open:
        echo(
            f"Some dead letters were not discarded: the replay {backfill.id} has already added their rows to the main "
            f"table. It removes these dead letters once each routed table has its rows too. To finish the replay, run "
            f"`{backfill.command}`. If a table prevents this, `frazil route {stream}` shows the remedy.",
            err=True,
        )


@dlq.command("replay")
@_selection_options
@click.option("--dry-run", is_flag=True, help="Show which dead letters would fail again and why, and change nothing.")
@click.option("--yes", is_flag=True, expose_value=False, help="Has no effect: a replay never asks for confirmation.")
@click.option("--run", help="Id of a scheduler's run, the same for retries. An abandoned run is not started again.")
def replay_(stream: str, streams_folder: Path, *, as_json: bool, dry_run: bool, run: str | None, **where: Any) -> None:
    """Decode dead letters of STREAM again, with the current declaration.

    If a record now decodes, it becomes a row or is merged, and is no longer a dead letter. The other dead letters stay,
    and get the new error in front of the earlier one. All of this takes one commit per table. If interrupted, run the
    command again: it continues. A writer may run meanwhile.

    \b
    Example:
      frazil dlq replay flights --reason MissingRequired --dry-run
      frazil dlq replay flights --from 2013-12-30T00:00:00Z
    """
    opened, selection = _open(stream, streams_folder, where["reasons"]), Selection(**where)
    check_coordinates(opened.spec)
    dead_letters = opened.tables.dead_letters.current()
    left = count_left_out(opened, selection)
    for sentence in left_out_messages(left, stream):
        echo(sentence, err=True)
    allow_pandas()
    from frazil.dead_letters.replay import EMPTY_RESULT, preview, replay  # loads the decoders for replays only

    if dry_run:
        count = sum(c.dead_letters for c in count_by_day(dead_letters, opened.spec, selection)) - left.total()
        previewed = preview(opened, selection, run=run)
        sentence = " ".join(_preview_messages(previewed, count, stream=stream))
        sentence = sentence if count else _nothing_message(stream, "to replay", selection, left_out=bool(left))
        counts = {
            "would-land": previewed.landing,
            "would-fail": previewed.failing,
            "errors": _describe_errors(previewed),
        }
        _print_result(as_json, sentence, landed=0, failed=0, selected=count, **counts, **_left_out_document(left))
        return
    interrupted = find_unfinished(opened.tables)
    if interrupted and interrupted.replays and interrupted.request["dead-letters"] != str(selection):
        echo(
            f"An interrupted replay of stream {stream} with another selection is finished first, as `"
            f"{interrupted.command}` would. After that, this command replays its own selection.",
            err=True,
        )
    with progress("decoding dead letters again"):
        results = replay(opened, selection, run=run)
    result = next((d for d in results if not d.interrupted), EMPTY_RESULT)
    earlier = next((d for d in results if d.interrupted), None)
    if as_json:
        finished = {"finished": _result_counts(earlier)} if earlier else {}
        echo_json({**_result_counts(result), **_left_out_document(left), **finished})
        return
    if earlier:
        echo(f"Finished a replay that another command began. {_result_message(opened.spec, earlier)}")
    if result.backfill:
        echo(_result_message(opened.spec, result))
    else:
        purpose = "else to replay" if earlier else "to replay"
        total = sum(c.dead_letters for c in count_by_day(opened.tables.dead_letters.refresh(), opened.spec, selection))
        echo(_nothing_message(stream, purpose, selection, left_out=bool(left), are_rows=total > left.total()))


def _left_out_messages(opened: OpenStream, selection: Selection) -> list[str]:
    try:
        return left_out_messages(count_left_out(opened, selection), opened.spec.name)
    except AdoptionRequired:
        return []


def _nothing_message(
    stream: str, purpose: str, selection: Selection, *, left_out: bool = False, are_rows: bool = False
) -> str:
    match = "" if selection == Selection() else " that match"
    if are_rows:
        text = f"all dead letters{match} have already landed"
    elif left_out:
        text = f"all dead letters{match} are left out"
    else:
        text = f"no dead letters are left{match}"
    return f"Stream {stream}: nothing {purpose}, because {text}."


def _preview_messages(previewed: Preview, count: int, *, stream: str) -> Iterator[str]:
    yield f"{format_count(count, 'dead letter')} of stream {stream} would be decoded again."
    sampled = previewed.landing + previewed.failing
    if not sampled:
        yield "Their records have already landed."
        return
    sample = "" if sampled == count else f"Of a sample of {sampled:,}, "
    yield f"{sample}{previewed.landing:,} would land, and {previewed.failing:,} would fail again."
    yield from _describe_errors(previewed)
    if previewed.failing:
        if count > 1:
            yield f"`frazil dlq show {stream} --limit {count}`, with the same options, shows each record."
        yield "Correct the declaration first, or discard unwanted records with `frazil dlq discard`."


def _describe_errors(previewed: Preview) -> list[str]:
    first = {rejection.error_class: rejection for rejection in reversed(previewed.rejects.samples)}
    return [
        f"{name} ({number:,}{', the first' if number > 1 else ''}): {first[name].topic}[{first[name].partition}]"
        f"@{first[name].offset}: {first[name].error.rstrip('.')}."
        for name, number in previewed.rejects.counts.items()
        if name in first
    ]


def _result_counts(result: ReplayResult) -> dict[str, int]:
    given_up = {"given-up": result.given_up} if result.given_up else {}
    repeated = {"repeated": result.repeated} if result.repeated else {}
    return {"landed": result.landed, "failed": result.failed, **given_up, **repeated}


def _left_out_document(left_out: Mapping[LeftOutReason, int]) -> dict[str, Any]:
    return {"left-out": {reason.value: left_out[reason] for reason in sorted(left_out)}} if left_out else {}


def _result_message(spec: StreamSpec, result: ReplayResult) -> str:
    outcome = "is merged|are merged" if spec.sinks.mode.replaces_rows else "is a row|are rows"
    extra = f" {result.given_up:,} {'was' if result.given_up == 1 else 'were'} given up;" if result.given_up else ""
    if result.repeated:
        extra += f" {result.repeated:,} repeated a row and {'was' if result.repeated == 1 else 'were'} dropped;"
    landed = format_count(result.landed, "dead letter", outcome)
    return f"Stream {spec.name}: {landed} now;{extra} {result.failed:,} failed again."


def _echo_none_found(opened: OpenStream, selection: Selection) -> None:
    if selection.reasons and not _existing_reasons(opened).intersection(selection.reasons):
        return  # `_open` has reported it
    hint = "" if selection.discarded else " With --all, discarded ones are included."
    echo(f"Stream {opened.spec.name} has no such dead letters.{hint}")


def _shorten(text: str) -> str:
    return f"{escape_unsafe(text[:MAX_SHOWN_CHARACTERS], lines=False)}{'…' if len(text) > MAX_SHOWN_CHARACTERS else ''}"


def _print_result(as_json: bool, sentence: str, **document: Any) -> None:
    if as_json:
        echo_json(document)
    else:
        echo(sentence)


def _open(stream: str, streams_folder: Path, reasons: tuple[str, ...], *, recall: bool = False) -> OpenStream:
    """Open the stream's tables. With `recall`, the last valid declaration is used if its file is broken."""
    spec, problem = find_or_recall(streams_folder, stream) if recall else (find_stream(streams_folder, stream), None)
    if problem:
        echo(f"{problem}; its last valid declaration is used", err=True)
    opened = open_read_only(spec)
    if reasons:
        existing = _existing_reasons(opened)
        if unknown := sorted({*reasons} - existing):
            hint = f"; existing reasons: {', '.join(sorted(existing))}" if existing else ""
            echo(f"Stream {stream} has no dead letters with the reason {', '.join(unknown)}{hint}.", err=True)
    return opened


def _existing_reasons(opened: OpenStream) -> set[str]:
    discarded = Selection(discarded=True)
    return {c.reason for c in count_by_day(opened.tables.dead_letters.current(), opened.spec, discarded)}
