"""Options and parameter types that several subcommands share."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from frazil.home import streams_folder
from frazil.offsets.spans import TopicPartition
from frazil.safe_text import reason_problem
from frazil.spec.units import parse_duration
from frazil.timetext import parse_zoned_moment

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec

A = TypeVar("A")

JSON = "--json"


def check_reason(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (problem := reason_problem(value)):
        raise click.BadParameter(problem, ctx, param)
    return value


json_option = click.option(JSON, "as_json", is_flag=True, help="One JSON document on standard output.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
streams_option = click.option(
    "--streams",
    "streams_folder",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="FRAZIL_STREAMS",
    default=Path("include/streams"),
    show_default=True,
    help="The folder of declared streams (also: FRAZIL_STREAMS).",
)


class ParsedParam(click.ParamType[A]):
    """A parameter type. `parse` raises ValueError, whose text is the end of a sentence about the value."""

    def __init__(self, name: str, parse: Callable[[Any], A]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> A:
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


def _parse_offsets(text: str) -> Mapping[TopicPartition, int]:
    from frazil.commit.marker import flatten_topics  # PyIceberg, which the help text does not need

    try:
        return flatten_topics(json.loads(text if text.lstrip().startswith("{") else Path(text).read_text()))
    except OSError as error:
        raise ValueError(f"is not a JSON mapping and cannot be read as a file: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError('is not of the form {"topic": {"partition": offset}}') from None


TIME = ParsedParam("time", parse_zoned_moment)
DURATION = ParsedParam("duration", parse_duration)
OFFSETS = ParsedParam("json-or-file", _parse_offsets)
"""Offsets as JSON, `{"topic": {"partition": offset}}`, or the path of a file with such JSON."""


def _make_completion(names: Callable[[StreamSpec], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
        from frazil.errors import SpecError  # only when a shell asks
        from frazil.spec.load import load_valid_streams

        folder = ctx.params.get("streams_folder") or streams_folder()
        try:
            specs, _ = load_valid_streams(Path(folder))
        except SpecError:  # the folder declares no stream
            return []
        offered = {name for spec in specs for name in names(spec)}
        return [CompletionItem(name) for name in sorted(offered) if name.startswith(incomplete)]

    return complete


_complete_streams = _make_completion(lambda spec: (spec.name,))
_complete_tables = _make_completion(lambda spec: (spec.table.identifier, spec.dead_letter_table))
streams_argument = click.argument("streams", nargs=-1, required=True, shell_complete=_complete_streams)
any_streams_argument = click.argument("streams", nargs=-1, shell_complete=_complete_streams)


def stream_argument(**options: Any) -> Callable[[Any], Any]:
    return click.argument("stream", shell_complete=_complete_streams, **options)


def stream_options(command: Callable[..., Any]) -> Any:
    return stream_argument()(streams_option(json_option(command)))


def table_options(command: Callable[..., Any]) -> Any:
    return table_argument()(streams_option(json_option(command)))


def table_argument(**options: Any) -> Callable[..., Any]:
    return click.argument("table", shell_complete=_complete_tables, **options)


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL: bash, zsh or fish.

    Source the script when the shell starts. It completes commands, options, and the names of streams and tables that
    the folder of streams declares.

    \b
    Example:
      echo 'eval "$(frazil completion bash)"' >> ~/.bashrc
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "frazil", "_FRAZIL_COMPLETE").source())


def current_user() -> str:
    """Return the user's name, or text such as `uid 50000` if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
