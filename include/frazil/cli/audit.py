"""`frazil audit`: checks that each record of a stream is in its table exactly once."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from frazil.audit.declared_stream import audit_declared_stream as audit_declared
from frazil.audit.findings import Audit, Finding, FindingKind, PartitionAudit
from frazil.cli.options import DURATION, TIME, stream_options
from frazil.cli.output import echo, echo_json, echo_lines, echo_table, progress
from frazil.commit.history import Period, last_period, period_between
from frazil.errors import AdoptionRequired
from frazil.offsets.spans import format_span
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.timetext import format_utc

NOT_COMPARED_EXIT_CODE = 3
"""Exit code of an audit that found no error but could not compare everything."""


@click.command()
@stream_options
@click.option(
    "--source/--no-source",
    "with_source",
    default=False,
    help="Also read the records from Kafka, as independent evidence. Off by default, because it reads the topic.",
)
@click.option("--last", "length", type=DURATION, help="Only commits of the last 1h, 30m or 7d, for example.")
@click.option("--from", "begin", type=TIME, help="Only commits since this time: ISO 8601 with a zone.")
@click.option("--to", "end", type=TIME, help="With --from: only commits before this time. Default: now.")
def audit(  # noqa: PLR0913 - a command's options
    stream: str,
    streams_folder: Path,
    *,
    as_json: bool,
    with_source: bool,
    length: timedelta | None,
    begin: datetime | None,
    end: datetime | None,
) -> None:
    """Check that every record of STREAM landed exactly once.

    Reads the Kafka coordinates in the stream's table and dead-letter table, and compares them range by range with the
    commit records. With --source, it also compares them with the records that Kafka still has. Records that retention
    deleted are compared with the commit records only, and a note says so. A writer may run meanwhile. With --last or
    --from, only batches committed in that time are audited, and only data files that may contain them are read.

    Prints a sentence for each finding. Exits with 1 if anything is wrong, with 3 if nothing is wrong but something
    could not be compared, and with 0 otherwise.

    \b
    Example:
      frazil audit flights --last 1h
      frazil audit flights --from 2013-12-30T00:00:00Z --to 2013-12-31T00:00:00Z --source
    """
    chosen = parse_period(length, begin, end, now=datetime.now(UTC))
    spec = find_stream(streams_folder, stream)
    result = _run_audit(spec, chosen, with_source=with_source)
    if as_json:
        echo_json(result)
    else:
        _print_audit(result, with_source=with_source, has_lines=spec.has_lines)
    if not result.clean:
        raise SystemExit(1 if result.errors else NOT_COMPARED_EXIT_CODE)


def parse_period(
    length: timedelta | None, begin: datetime | None, end: datetime | None, *, now: datetime
) -> Period | None:
    if length is not None and (begin or end):
        raise click.UsageError("--last cannot be combined with --from or --to: give one period")
    if end is not None and begin is None:
        raise click.UsageError("--to requires --from, the start of the period")
    if length is None and begin is None:
        return None
    try:
        return period_between(begin or now, end or now) if length is None else last_period(length, now)
    except ValueError as error:
        raise click.UsageError(f"{error}: nothing can have been committed then") from error


def _run_audit(spec: StreamSpec, window: Period | None, *, with_source: bool) -> Audit:
    try:
        with progress("reading Kafka and the table" if with_source else "reading the table"):
            return audit_declared(spec, window=window, with_source=with_source)
    except AdoptionRequired as not_begun:  # nothing needs to be adopted, so the error's name would mislead
        echo(str(not_begun), err=True)
        raise SystemExit(not_begun.exit_code) from None


def _print_audit(result: Audit, *, with_source: bool, has_lines: bool = False) -> None:
    """Print the audit. If a record may become several rows, `has_lines`, the audit counts records."""
    noun = "change" if result.by_key else "record" if has_lines else "row"
    if result.by_key:
        columns = ("topic-partition", "committed", "changes", "dead letters")
        changes = [
            (f"{p.topic}-{p.partition}", _format_committed(p), f"{p.rows:,}", f"{p.dead_letters:,}")
            for p in result.partitions
        ]
        if changes:
            echo_table(columns, changes, numbers=frozenset(columns[1:]))
    else:
        _show_partitions(result, noun, with_source=with_source)
    result = _join_notes(result)
    reason = None if result.errors or result.complete or not result.batches else _not_compared_findings(result)[0]
    listed = (f for f in result.findings if f is not reason)  # the last line has the reason
    faults_first = sorted(listed, key=lambda f: not f.kind.is_wrong)
    echo_lines(f"{'OFF ' if f.kind.is_wrong else 'note'}  {f.where}: {f.sentence}" for f in faults_first)
    echo(_summarize(result, noun))


def _format_committed(p: PartitionAudit) -> str:
    return "none" if p.start is None else format_span(p.start, p.end)


def _join_notes(result: Audit) -> Audit:
    """Return the audit with equal notes joined into one, which lists their partitions. Counts are of one partition."""
    joined = dict[tuple[FindingKind, str, str], Finding]()
    for f in result.findings:
        is_counted = f"{f.count:,}" in re.findall(r"\d(?:[\d,.:-]*\d)?", f.sentence)
        key = f.kind, f.sentence, f.where if f.kind.is_wrong or is_counted else ""
        joined[key] = replace(joined[key], where=f"{joined[key].where}, {f.where}") if key in joined else f
    return replace(result, findings=tuple(joined.values()))


def _show_partitions(result: Audit, noun: str, *, with_source: bool) -> None:
    drops, has_former = any(p.dropped for p in result.partitions), any(p.of_former_topics for p in result.partitions)
    columns = ["topic-partition", "committed", f"{noun}s", "distinct", "duplicates", "gaps", "dead letters"]
    columns += ["dropped"] * drops + ["rows of former topic"] * has_former
    rows = [
        (
            f"{p.topic}-{p.partition}",
            _format_committed(p),
            f"{p.rows:,}",
            f"{p.distinct:,}",
            f"{p.duplicates:,}",
            "" if p.gaps is None else f"{p.gaps:,}",
            f"{p.dead_letters:,}",
            *([f"{p.dropped:,}"] * drops),
            *([f"{p.of_former_topics:,}"] * has_former),
        )
        for p in result.partitions
    ]
    if rows:
        echo_table(columns, rows, numbers=frozenset(columns[1:]))
    if result.repeats is not None:
        echo(f"dropped as repeats: {format_count(result.repeats, 'record')}")
    if not with_source and any(p.start is not None for p in result.partitions):
        echo("gaps: not checked (--source compares with Kafka)")


def _summarize(result: Audit, noun: str) -> str:
    rows = sum(p.rows for p in result.partitions)
    period = f" from {format_utc(result.window.from_ms)} to {format_utc(result.window.to_ms)}" if result.window else ""
    when = f", committed{period}" if period else ""
    subject = f"Stream {result.stream}{when}"
    if result.errors:
        return f"{subject}{',' if when else ''} is not clean: {format_count(len(result.errors), 'finding')}."
    if result.window and not result.batches:
        return f"Stream {result.stream} committed nothing{period}."
    if not (result.batches or result.window or rows):
        return f"Stream {result.stream} has committed nothing yet. `frazil status {result.stream}` shows why."
    if not result.complete:
        reason, *other_reasons = _not_compared_findings(result)
        where = "" if reason.where == result.stream else f"{reason.where}: "
        more_text = f"; and {format_count(len(other_reasons), 'more note')}" if other_reasons else ""
        return f"{subject}: no fault found, but not everything was compared: {where}{reason.sentence}{more_text}."
    if result.partitions:
        detail = ", and each key matches its newest change in Kafka" if result.by_key else ", each offset once"
        # Offsets that were committed twice were compared, so READ_AGAIN does not count.
        if any(f.kind is not FindingKind.READ_AGAIN for f in result.findings):
            detail = "; see the notes"
        row_text = format_count(rows, noun)
        return f"Stream {result.stream} is clean: {row_text}{when}{detail}."
    return f"Stream {result.stream}: nothing is wrong."


def _not_compared_findings(result: Audit) -> list[Finding]:
    return [f for f in result.findings if f.kind is FindingKind.NOT_COMPARED]
