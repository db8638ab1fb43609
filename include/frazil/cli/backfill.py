"""`frazil backfill`: runs, shows and abandons backfills, like the DAG `frazil_backfill`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from frazil import clock
from frazil.backfill.commit import abandon, count_changes
from frazil.backfill.request import BackfillRequest, parse_request
from frazil.backfill.rules import describe_interruption
from frazil.backfill.run import open_backfill
from frazil.cli.options import OFFSETS, TIME, ParsedParam, current_user, stream_options, yes_option
from frazil.cli.output import ask, echo, echo_fields, echo_json, format_counts, progress, to_json_value
from frazil.commit.backfill_records import BackfillMarker, BackfillState, branch_name, read_backfill
from frazil.commit.marker import nest_by_topic
from frazil.commit.open_streams import OpenStream, open_read_only, open_stream
from frazil.fast_imports import allow_pandas
from frazil.home import home
from frazil.host.process_log import claim_log
from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S
from frazil.offsets.spans import Offsets
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count

_TIME_OR_OFFSETS = ParsedParam[datetime | Offsets](
    "time-or-offsets", lambda text: (OFFSETS if text.lstrip().startswith("{") else TIME).parse(text)
)


@click.command()
@stream_options
@click.option(
    "--from", "begin", type=_TIME_OR_OFFSETS, help="Kafka's timestamp (ISO 8601 with a zone), or JSON offsets."
)
@click.option("--to", "end", type=_TIME_OR_OFFSETS, help="Exclusive end. Default: the live stream's position.")
@click.option("--event-from", type=TIME, help="Only rows with this event time or later.")
@click.option("--event-to", type=TIME, help="Only rows with an earlier event time.")
@click.option("--files", help="Read a folder or file, by path or URI, instead of Kafka.")
@click.option("--branch", is_flag=True, help="Leave the staged and audited rows on their branch.")
@click.option("--chunk-records", type=int, help="Approximate number of records per commit to the branch.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--status", is_flag=True, help="Show the state of the stream's last backfill.")
@click.option("--abandon", "end_it", is_flag=True, help="End the open backfill, and remove what it staged.")
@yes_option
def backfill(  # noqa: PLR0913 - a command's options
    stream: str,
    streams_folder: Path,
    *,
    as_json: bool,
    dry_run: bool,
    status: bool,
    end_it: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Land older records that are missing from the table of STREAM.

    Each record lands once. Reads the records before the stream's position, from Kafka or from files. Without bounds,
    reads all of them. Stages the records on a branch of the table, compares the branch with its source, and publishes
    it in one commit. A writer may run meanwhile. If interrupted, run the command again with the same bounds: it
    continues.

    \b
    Example:
      frazil backfill flights --from 2013-12-30T00:00:00Z --to 2013-12-31T00:00:00Z --dry-run
      frazil backfill flights --from '{"flights": {"0": 1200}}'
      frazil backfill flights --files s3://archive/flights/2013/ --dry-run
      frazil backfill flights --status
    """
    spec = find_stream(streams_folder, stream)
    if status or end_it:
        opened = open_read_only(spec) if status else open_stream(spec)
        metadata = opened.tables.main.refresh().metadata
        last = read_backfill(metadata.properties, stream)
        interruption = describe_interruption(last, metadata, now_ms=clock.now_ms()) if last else None
        _print_result(last, opened, as_json=as_json, interruption=interruption) if status else _abandon(
            opened, last, yes=yes
        )
        return
    request = _build_request(stream, options)
    if not dry_run:
        _run_backfill(spec, request, as_json=as_json)
        return
    from frazil.backfill.estimate import estimate, estimate_messages  # loads the decoders, only for a dry run

    with open_backfill(spec, request, kafka_timeout_s=INTERACTIVE_TIMEOUT_S, read_only=True) as requested:
        result = estimate(requested, requested.plan(requested.last()))
    messages = estimate_messages(result, stream=stream, mode=spec.sinks.mode)
    echo_json(result) if as_json else echo("\n".join(messages))


def _run_backfill(spec: StreamSpec, request: BackfillRequest, *, as_json: bool) -> None:
    allow_pandas()
    from frazil.backfill.stage import run  # takes seconds to import, and only a run needs it
    from frazil.stream.spark_engine import SparkEngine

    small = spec.model_copy(update={"resources": spec.resources.model_copy(update={"cores": 1, "executor_cores": 1})})
    log_file = home() / "backfill" / f"{spec.name}.log"
    with progress("starting Spark") as step, open_backfill(spec, request) as requested:
        requested.check()

        def show(marker: BackfillMarker) -> None:
            step(marker.chunks, marker.planned, f"{format_count(marker.records, 'row')} staged")

        with claim_log(log_file):  # the same request would take over a run that has not ended
            try:
                with SparkEngine(small, output=log_file) as engine:
                    last = run(requested, engine, show)
            except Exception:
                if log_file.stat().st_size:
                    echo(f"What Spark printed is in {log_file}", err=True)
                raise
    if last is None and not as_json:
        echo(f"Stream {spec.name}: no requested record is missing.")
    else:
        _print_result(last, requested.opened, as_json=as_json)


def _build_request(stream: str, options: Mapping[str, Any]) -> BackfillRequest:
    files = options["files"]
    raw: dict[str, Any] = {
        "stream": stream,
        "from-event-time": options["event_from"],
        "to-event-time": options["event_to"],
        "files": files if not files or "://" in files else str(Path(files).absolute()),
        "chunk-records": options["chunk_records"],
        "target": "branch" if options["branch"] else "table",
    }
    for end, bound in (("from", options["begin"]), ("to", options["end"])):
        if isinstance(bound, Mapping):
            raw[f"{end}-offsets"] = nest_by_topic(bound)
        else:
            raw[f"{end}-time"] = bound
    return parse_request(raw)


def _print_result(
    last: BackfillMarker | None, opened: OpenStream, *, as_json: bool, interruption: str | None = None
) -> None:
    spec = opened.spec
    changes = count_changes(opened.tables, last) if last and spec.sinks.mode.merges else {}
    if as_json:
        echo_json(last and {**to_json_value(last), "changes": changes})
    elif last is None:
        echo(f"Stream {spec.name} has never had a backfill.")
    else:
        mode = spec.sinks.mode
        repeats_text = "; repeats do not become rows" if mode.drops_repeats else ""
        staged_text = f"{last.records:,} in {format_count(last.files, 'file')}, {last.bytes:,} bytes{repeats_text}"
        on_branch = f", on branch {branch_name(spec.name)}" if last.is_open and not mode.replaces_rows else ""
        echo_fields(
            {
                "replay" if last.replays else "backfill": last.id,
                "state": f"{last.state}{on_branch}" + (f"; {interruption}" if interruption else ""),
                "chunks": f"{last.chunks:,} of {max(last.planned, last.chunks):,}" if last.chunks else "none yet",
                f"{mode.noun}s": staged_text,
                **({"changed rows": format_counts(changes)} if any(changes.values()) else {}),
                "dead letters": f"{last.rejected:,}",
                **{name: _option_text(value) for name, value in last.options.items()},
            }
        )


def _option_text(value: object) -> str:
    if not isinstance(value, Mapping):
        return f"{value:,}" if isinstance(value, int) else str(value)
    offsets = [f"{topic}[{partition}] {offset:,}" for topic, tps in value.items() for partition, offset in tps.items()]
    return f"offsets {', '.join(offsets)}"


def _abandon(opened: OpenStream, last: BackfillMarker | None, *, yes: bool) -> None:
    if last is None or last.state in {BackfillState.PUBLISHED, BackfillState.ABANDONED}:
        echo(f"Stream {opened.spec.name} has no open backfill.")
        return
    mode = opened.spec.sinks.mode
    staged = format_count(last.records, mode.noun)
    on_branch = f" from branch {branch_name(opened.spec.name)}" if not mode.replaces_rows else ""
    echo(f"Backfill {last.id} has staged {staged} in {format_count(last.chunks, 'chunk')}; none of them is on main.")
    ask(f"Abandon it, and remove them{on_branch}?", yes=yes)
    # The backfill may have been published while the prompt waited.
    echo(f"Backfill {last.id} is {abandon(opened.tables, last, by=current_user()).state}.")
