"""`frazil status`: shows the state of streams, as text or as JSON, once or repeatedly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from frazil import clock
from frazil.cli.options import json_option, stream_argument, streams_option
from frazil.cli.output import (
    build_table,
    echo,
    echo_json,
    echo_lines,
    format_counts,
    format_fields,
    group_messages,
    is_terminal_narrow,
    watch,
)
from frazil.errors import Failure, SpecError
from frazil.home import full_disk_message, home
from frazil.host.heartbeat import Phase
from frazil.host.launcher import ProcessState
from frazil.host.local import LocalLauncher
from frazil.operations.dead_letters import count_rejected, find_treatments
from frazil.spec.application import find_application
from frazil.spec.last_valid import find_declared_streams, find_or_recall
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count, shorten_list
from frazil.status.derive import describe_desired, describe_exit, describe_reset
from frazil.status.recent_commits import DAY_MS
from frazil.status.state import StreamState, WriterProcess
from frazil.status.stream import read_stream_state
from frazil.table.catalogs import keep_catalogs
from frazil.table.parallel import run_in_parallel
from frazil.table.tables import load_stream_table
from frazil.table.unresponsive import Unresponsive
from frazil.timetext import format_elapsed, format_utc

if TYPE_CHECKING:
    from rich.console import RenderableType


COLUMNS = ("stream", "desired", "writer", "lag", "rejected", "last commit", "watermark", "table", "rows")
WIDE_COLUMNS = frozenset({"watermark", "table"})

MAX_UNDECLARED = 30


@click.command()
@stream_argument(required=False)
@streams_option
@json_option
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=1),
    is_flag=False,
    flag_value=5,
    metavar="[SECONDS]",
    help="Refresh every N seconds, by default 5, until Ctrl-C.",
)
@keep_catalogs()
def status(stream: str | None, streams_folder: Path, *, as_json: bool, every_s: float | None) -> None:
    """Show the state of every stream, or all details of STREAM.

    The name of a shared application selects all of its streams.

    Reads the run folders on this host and the tables; starts nothing. For a writer on another host, it shows only its
    commits. Exits with 0 even if a stream has problems, and with 10 if a declaration cannot be read.

    \b
    Example:
      frazil status flights --json
    """
    if every_s is not None:
        if as_json:
            raise click.UsageError("--watch cannot be combined with --json: run `frazil status --json` repeatedly")
        watch(lambda: _read_report(stream, streams_folder).lines(), every_s=every_s)
        return
    report = _read_report(stream, streams_folder)
    if as_json:
        echo_json({"at-ms": report.now_ms, "streams": report.states, "errors": report.errors})
    else:
        echo_lines(report.lines())
        for error in report.errors:
            echo(error, err=True)
    if report.errors:
        raise SystemExit(SpecError.exit_code)


@dataclass(frozen=True, slots=True)
class StatusReport:
    now_ms: int
    states: list[StreamState]
    errors: list[str]
    in_full: bool
    application: str | None = None
    left: int | None = None
    """Number of the last day's rejected records that are still dead letters. None if all are."""

    def lines(self) -> list[RenderableType]:
        lines: list[RenderableType] = [self.application] if self.application else []
        if self.in_full:
            for state in self.states:
                lines += format_fields(_detail_fields(state, self.left, now_ms=self.now_ms))
        else:
            columns = [name for name in COLUMNS if not (name in WIDE_COLUMNS and is_terminal_narrow())]
            cells = [_overview_cells(state, now_ms=self.now_ms) for state in self.states]
            rows = [tuple(row[name] for name in columns) for row in cells]
            lines.append(build_table(columns, rows, numbers=frozenset({"lag", "rejected", "rows"})))
        return [*lines, *_problem_messages(self.states)]


def _read_report(stream: str | None, streams_folder: Path) -> StatusReport:
    now_ms = clock.now_ms()
    application = find_application(streams_folder, stream) if stream else None
    if stream is None:
        specs, errors = find_declared_streams(streams_folder, now_ms=now_ms)
    elif application is not None:
        specs, errors = list(application.streams), []
    else:
        spec, problem = find_or_recall(streams_folder, stream)
        specs, errors = [spec], [problem] if problem else []
    states = run_in_parallel(partial(read_stream_state, now_ms=now_ms, catalogs=Unresponsive()), specs)
    if application is None:
        dead_letters_left = _count_dead_letters_left(specs[0], states[0], now_ms=now_ms) if stream is not None else None
        return StatusReport(now_ms, states, errors, in_full=stream is not None, left=dead_letters_left)
    state = f"application {application.name}: {LocalLauncher(application.name).observe().process}"
    return StatusReport(now_ms, states, errors, in_full=False, application=state)


def _problem_messages(streams: list[StreamState]) -> list[str]:
    """Return each problem and notice once, with its streams and its fix, if known."""
    return group_messages(
        (state.name, problem)
        for state in streams
        for problem in (*state.problems, *(Failure(f"note: {notice}") for notice in state.notices))
    )


def _count_dead_letters_left(spec: StreamSpec, state: StreamState, *, now_ms: int) -> int | None:
    # Part of a day is not enough: replays are counted by hour, and may concern earlier dead letters.
    commits = state.recent_commits
    if commits is None or not commits.rejected_last_day or commits.rejected_since_ms is not None:
        return None
    try:
        if (main := load_stream_table(spec)) is None:
            return None
        dead_letters = main.catalog.load_table(spec.dead_letter_table)
    except Exception:  # catalogs' clients raise anything, and the reason is shown with the stream
        return None
    treatments = find_treatments(dead_letters.metadata, main.metadata, spec.name, since_ms=now_ms - DAY_MS)
    reasons = count_rejected(main.metadata, spec.name, treatments, now_ms=now_ms)
    remaining, counted_by_class = sum(reason.remaining for reason in reasons), sum(reason.count for reason in reasons)
    return remaining if remaining < counted_by_class == commits.rejected_last_day else None


def _overview_cells(state: StreamState, *, now_ms: int) -> dict[str, str]:
    commits = state.recent_commits
    rejected = "unknown" if commits is None else f"{commits.rejected_last_day:,}"
    if commits is not None and commits.rejected_since_reset:
        rejected += " since reset"
    committed = max((ms for ms in (state.last_commit_at_ms, state.published_at_ms) if ms is not None), default=None)
    plain = {"desired": state.desired or "unknown", "rejected": rejected}
    plain["rows"] = f"{_rows_text(state)} + routed" if state.routed else _rows_text(state)
    plain["last commit"] = "none" if committed is None else f"{format_elapsed(now_ms - committed)} ago"
    return {**_detail_fields(state, None, now_ms=now_ms), **plain}


def _rows_text(state: StreamState) -> str:
    if state.table_exists is False:
        return "missing" if state.missing else "no table yet"
    return "unknown" if state.rows is None else f"{state.rows:,}"


def _rejected_text(state: StreamState, remaining: int | None) -> str:
    if (commits := state.recent_commits) is None:
        return "unknown"
    rejected, since_ms = commits.rejected_last_day, commits.rejected_since_ms
    bound = "when the stream was reset" if commits.rejected_since_reset else "before which snapshots have expired"
    when = "in the last day" if since_ms is None else f"since {format_utc(since_ms)}, {bound}"
    if not rejected:
        return f"none {when}"
    remaining_text = "" if remaining is None else f", {remaining:,} of them left"
    return f"{rejected:,} {when}{remaining_text}; `frazil dlq list {state.name}` counts dead letters by reason"


def _detail_fields(state: StreamState, remaining: int | None, *, now_ms: int) -> dict[str, str]:
    reason = f" ({describe_desired(state, now_ms=now_ms)})" if state.desired_at_ms else ""
    waiting = (
        f", and {format_count(state.in_transactions, 'offset')} in open transactions" if state.in_transactions else ""
    )
    replayed = ""
    if state.replayed_at_ms is not None:
        replayed = f"{format_elapsed(now_ms - state.replayed_at_ms)} ago: {format_counts(state.replayed)}"
    beyond_ms = state.backpressure_ms
    backpressure = f"a batch takes {format_elapsed(beyond_ms)} longer than its interval" if beyond_ms else "none"
    return {
        "stream": state.name,
        "table": state.table,
        "state": str(state.state),
        "desired": (state.desired or "unknown") + reason,
        "writer": (
            describe_reset(state, now_ms=now_ms) if state.reset_since_end else _writer_text(state.writer, now_ms=now_ms)
        ),
        "epoch, batch": f"{state.epoch}, {state.batch}" if state.epoch is not None else "none yet",
        "lag": ("unknown" if state.lag is None else f"{state.lag:,}") + waiting,
        **({} if state.backpressure_ms is None else {"backpressure": backpressure}),
        "last commit": _last_commit_text(state, now_ms=now_ms),
        "watermark": format_utc(state.watermark_ms),
        "snapshot": "none" if state.snapshot_id is None else str(state.snapshot_id),
        "rejected": _rejected_text(state, remaining),
        **({"accepted": state.accepted} if state.accepted else {}),
        "rows": _rows_text(state) + (" in the default table (routed tables: `frazil health`)" if state.routed else ""),
        **({"route": f"`frazil route {state.name}` checks the routed tables"} if state.routed else {}),
        **({"last changes": f"{format_counts(state.changes)} in the writer's newest batch"} if state.changes else {}),
        **({"last replay": replayed} if replayed else {}),
        **({"backfill": state.backfill} if state.backfill else {}),
        **(
            {"undeclared": ", ".join(shorten_list(state.undeclared, MAX_UNDECLARED, "column"))}
            if state.undeclared
            else {}
        ),
        **({"distribution": state.distribution} if state.distribution else {}),
    }


def _last_commit_text(state: StreamState, *, now_ms: int) -> str:
    if state.last_commit_at_ms is None:
        return "none"
    age = f"{format_elapsed(now_ms - state.last_commit_at_ms)} ago"
    if state.published_at_ms is None or state.published_at_ms < state.last_commit_at_ms:
        return age
    return f"{format_elapsed(now_ms - state.published_at_ms)} ago by a {state.published_by}, {age} by a writer"


def _writer_text(writer: WriterProcess, *, now_ms: int) -> str:
    if writer.state == ProcessState.ENDING:
        return f"ended, and its parent (pid {writer.pid}) waits for its JVM and Python workers"
    if writer.pid is not None:
        at_ms = writer.heartbeat_at_ms
        heartbeat = f", no heartbeat for {format_elapsed(now_ms - at_ms)}" if at_ms else ""
        phase = "fenced" if writer.fenced else writer.phase or "no heartbeat yet"
        if writer.phase == Phase.STAGING and not writer.fenced:
            phase += f", {format_count(writer.batch_records, 'record')} read"
        return f"{writer.state}, pid {writer.pid}, {phase}{heartbeat if writer.stale else ''}"
    if writer.ended_at_ms is None:
        cause = full_disk_message(home()) or "it may have been killed"
        return f"{writer.state}, and the reason is not recorded: {cause}" if writer.has_ended else writer.state
    return f"ended {format_elapsed(now_ms - writer.ended_at_ms)} ago with {describe_exit(writer)}"
