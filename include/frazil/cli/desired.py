"""`frazil pause`, `resume` and `restart`: set the desired state of a stream. They never create a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from frazil import clock
from frazil.cli.options import check_reason, current_user, stream_options
from frazil.cli.output import CommandOutput, echo
from frazil.commit.open_streams import explain_lost_table
from frazil.errors import WriterBusy
from frazil.host.supervision import Starter, find_supervision
from frazil.spec.application import find_application
from frazil.spec.last_valid import find_or_recall
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.status.stream import read_stream_state
from frazil.supervise.desired_state import DesiredStore, open_desired_store

MAX_NAMED_PARTITIONS = 5
_reason_option = click.option(
    "--reason", default="", callback=check_reason, help="Reason; shown in the log and by `frazil status`."
)


def _for_each_stream(command: Callable[..., DesiredStore]) -> Any:
    """Return the command with the common options. For a shared application, it runs for each of its streams."""

    @wraps(command)
    def each(stream: str, streams_folder: Path, reason: str, *, as_json: bool, **options: Any) -> None:
        output = CommandOutput(as_json)
        application = find_application(streams_folder, stream)
        names = [spec.name for spec in application.streams] if application else [stream]
        stores = {name: command(name, streams_folder, reason, output=output, **options) for name in names}
        if application and command.__name__ != "pause":  # its task in Airflow may have been marked failed
            DesiredStore(stream, None).resume(by=current_user(), reason=reason)
        states = {n: {"desired": store.read(), "on-every-host": store.is_with_table} for n, store in stores.items()}
        output.end(streams=states)

    return stream_options(_reason_option(each))


@click.command()
@_for_each_stream
def pause(stream: str, streams_folder: Path, reason: str, *, output: CommandOutput) -> DesiredStore:
    """Stop the writer of STREAM, and keep it stopped.

    The name of a shared application selects all of its streams.

    The current batch commits first. Nothing is lost: after `frazil resume`, the stream continues where it stopped.
    The supervisor (Airflow) reacts within a few seconds, on any host. It does not stop a writer in the foreground
    (`frazil run`).

    \b
    Example:
      frazil pause flights --reason "Kafka upgrade until 14:00"
    """
    spec, problem = find_or_recall(streams_folder, stream)  # a writer whose file broke continues, and can be stopped
    desired = open_desired_store(spec)
    desired.pause(by=current_user(), reason=reason)
    supervision, stop_text = find_supervision(spec, now_ms=clock.now_ms()), ": its writer stops after the current batch"
    if supervision.starter is Starter.USER:
        stop_text = f": its writer runs in the foreground and continues until you end it ({supervision.how_to_end})"
    if spec.resources.driver_in_cluster:
        stop_text = ": its driver in the cluster notices within half a minute, and stops after its current batch"
    elif read_stream_state(spec, now_ms=clock.now_ms(), in_full=False).alive is False:
        stop_text = "; no writer runs"
    output.say(f"{stream} is paused{stop_text}. No supervisor starts one until `frazil resume {stream}`.")
    _report_scope(spec, desired, output)
    if problem:
        echo(problem, err=True)
    return desired


@click.command()
@_for_each_stream
@click.option(
    "--accept",
    is_flag=True,
    help="After CircuitOpen: do not limit dead letters among the records that Kafka has now. The limit applies again "
    "to later records.",
)
def resume(stream: str, streams_folder: Path, reason: str, *, output: CommandOutput, accept: bool) -> DesiredStore:
    """Let the writer of STREAM run again.

    The name of a shared application selects all of its streams.

    Use this command after a pause, or after the supervisor gave up and the cause is fixed.

    \b
    Example:
      frazil resume flights
      frazil resume flights --accept --reason "the sensors of hall 3 sent nonsense until 14:00"
    """
    spec = find_stream(streams_folder, stream)
    if accept:
        _accept_rejects(spec, reason, output)
    desired = open_desired_store(spec)
    desired.resume(by=current_user(), reason=reason)
    supervision = find_supervision(spec, now_ms=clock.now_ms())
    start_text = supervision.next_start
    if supervision.starter is Starter.USER:
        start_text = "it runs in the foreground"
    elif _missing_table_reason(spec, desired):
        start_text = "its writer cannot continue until its table is restored"
    output.say(f"{stream} is resumed: {start_text}.")
    _report_scope(spec, desired, output)
    return desired


@click.command()
@_for_each_stream
def restart(stream: str, streams_folder: Path, reason: str, *, output: CommandOutput) -> DesiredStore:
    """Replace the writer of STREAM with a new one.

    The name of a shared application selects all of its streams.

    The current batch commits first. A paused or given-up stream is resumed. If the writer runs in the foreground
    (`frazil run`), no supervisor replaces it: exits with 9 and changes nothing. End it there, and run it again.

    \b
    Example:
      frazil restart flights --reason "new credentials"
    """
    spec = find_stream(streams_folder, stream)
    desired = open_desired_store(spec)
    supervision = find_supervision(spec, now_ms=clock.now_ms())
    if supervision.starter is Starter.USER:
        raise WriterBusy(f"{stream} is not restarted, and nothing was changed; {supervision.replacement}")
    is_stopped = read_stream_state(spec, now_ms=clock.now_ms(), in_full=False).alive is False
    desired.restart(by=current_user(), reason=reason)
    start_text = supervision.next_start if is_stopped else supervision.replacement
    if _missing_table_reason(spec, desired):
        start_text = "it cannot continue until its table is restored"
    effect = "has no writer to replace, and is resumed" if is_stopped else "gets a new writer"
    output.say(f"{stream} {effect}: {start_text}.")
    _report_scope(spec, desired, output)
    return desired


def _accept_rejects(spec: StreamSpec, reason: str, output: CommandOutput) -> None:
    from frazil.commit.open_streams import open_kafka, open_stream
    from frazil.stream.circuit_breaker import AcceptedRejects, store_acceptance  # with librdkafka, for --accept

    opened = open_stream(spec)
    with open_kafka(spec) as kafka:
        topics = kafka.describe()
        ends = kafka.ends(topics.partitions)
    store_acceptance(opened.tables, AcceptedRejects(ends, topics.identity, current_user(), reason, clock.now_ms()))
    parts = [f"{topic}[{partition}]@{end}" for (topic, partition), end in sorted(ends.items())]
    more = f" and {len(parts) - MAX_NAMED_PARTITIONS:,} more" if len(parts) > MAX_NAMED_PARTITIONS else ""
    output.say(
        f"The circuit breaker ignores rejected records before {', '.join(parts[:MAX_NAMED_PARTITIONS])}{more}: they "
        "become dead letters."
    )


def _missing_table_reason(spec: StreamSpec, desired: DesiredStore) -> str | None:
    return None if desired.is_with_table else explain_lost_table(spec, None)


def _report_scope(spec: StreamSpec, desired: DesiredStore, output: CommandOutput) -> None:
    if not desired.is_with_table:
        reason = _missing_table_reason(spec, desired) or f"the catalog has no table {spec.table.identifier} yet"
        output.say(f"This applies to this host only, because {reason}.")
