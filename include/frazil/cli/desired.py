"""`frazil pause`, `resume` and `restart`: what people want of a stream, written beside its journals."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from frazil.cli.options import streams_option
from frazil.spec.load import find_stream
from frazil.supervise.desired import DesiredStore, create_desired

_reason_option = click.option("--reason", default="", help="Why; shown in the log and by `frazil status`.")


def _arguments(command: Callable[..., None]) -> Callable[..., Any]:
    return click.argument("stream")(streams_option(_reason_option(command)))


@click.command(epilog='Example: frazil pause flights --reason "Kafka upgrade until 14:00"')
@_arguments
def pause(stream: str, streams_folder: Path, reason: str) -> None:
    """Stop the writer of STREAM after the batch at hand, and keep it stopped.

    Nothing is lost: the stream goes on where it stands when it is resumed. The supervisor (Airflow) obeys within a
    few seconds, on whichever host it runs; a writer in the foreground (`frazil run`) is not stopped.
    """
    _store(stream, streams_folder).pause(by=getpass.getuser(), reason=reason)
    click.echo(f"{stream} is paused: its writer stops after the batch at hand; `frazil resume {stream}` starts it.")


@click.command(epilog="Example: frazil resume flights")
@_arguments
def resume(stream: str, streams_folder: Path, reason: str) -> None:
    """Let the writer of STREAM run: after a pause, or after the supervisor gave up and the cause is mended."""
    _store(stream, streams_folder).resume(by=getpass.getuser(), reason=reason)
    click.echo(f"{stream} is wanted running: the supervisor starts its writer within a few seconds.")


@click.command(epilog='Example: frazil restart flights --reason "new credentials"')
@_arguments
def restart(stream: str, streams_folder: Path, reason: str) -> None:
    """Replace the writer of STREAM by a new one, after the batch at hand. A paused stream is resumed."""
    _store(stream, streams_folder).restart(by=getpass.getuser(), reason=reason)
    click.echo(f"{stream} is restarted after the batch at hand.")


def _store(stream: str, streams_folder: Path) -> DesiredStore:
    return create_desired(find_stream(streams_folder, stream))
