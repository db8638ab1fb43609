"""Options that several subcommands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from frazil.safe_text import reason_problem

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec
import getpass
import time
from typing import TypeVar

from frazil.errors import CommitUnavailable

DEFAULT_STREAMS = Path("include/streams")
STREAMS_VARIABLE = "FRAZIL_STREAMS"

streams_option = click.option(
    "--streams",
    "streams_folder",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=STREAMS_VARIABLE,
    default=DEFAULT_STREAMS,
    show_default=True,
    help="The folder of declared streams (also: FRAZIL_STREAMS).",
)

JSON = "--json"


def checked_reason(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the text of an option that explains an action, or None if it was not given.

    Raises click.BadParameter for an unsuitable text, because every host and page shows it. A click callback.
    """
    if value is not None and (problem := reason_problem(value)):
        raise click.BadParameter(problem, ctx, param)
    return value


json_option = click.option(JSON, "as_json", is_flag=True, help="One JSON document on standard output.")


def _completed(names: Callable[[StreamSpec], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """Return a shell completion that offers `names(stream)` for each valid stream in the folder."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
        from frazil.errors import SpecError  # noqa: PLC0415 - only when a shell asks
        from frazil.spec.load import valid_streams  # noqa: PLC0415 - as above

        given = ctx.params.get("streams_folder") or os.environ.get(STREAMS_VARIABLE) or DEFAULT_STREAMS
        try:
            specs, _ = valid_streams(Path(given))
        except SpecError:  # the folder declares no stream
            return []
        offered = {name for spec in specs for name in names(spec)}
        return [CompletionItem(name) for name in sorted(offered) if name.startswith(incomplete)]

    return complete


def _stream_names(spec: StreamSpec) -> Iterable[str]:
    return (spec.name,)


def _table_names(spec: StreamSpec) -> Iterable[str]:
    return (spec.table.identifier, spec.dead_letter_table)


def stream_argument(**options: Any) -> Callable[[Any], Any]:
    """Add the argument STREAM; a shell completes the names of declared streams."""
    return click.argument("stream", shell_complete=_completed(_stream_names), **options)


def streams_argument() -> Callable[..., Any]:
    """Add the argument STREAMS, one or more stream names; a shell completes them."""
    return click.argument("streams", nargs=-1, required=True, shell_complete=_completed(_stream_names))


def table_argument(**options: Any) -> Callable[..., Any]:
    """Add the argument TABLE; a shell completes the tables of declared streams."""
    return click.argument("table", shell_complete=_completed(_table_names), **options)


def current_user() -> str:
    """Return the user's name.

    Returns text such as `uid 50000` if the system has no name for the user, as in many containers.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


A = TypeVar("A")

SILENT_S = 10.0
"""Time (s) after which a failed request marks its catalog as not responding. Requests that fail faster cost little, so
they may be repeated.
"""


class Asking:
    """Makes one command's requests to catalogs, from several threads.

    After a timeout, further requests to the same catalog fail at once.
    """

    def __init__(self) -> None:
        self._silent: dict[str | None, CommitUnavailable] = {}

    def is_silent(self, catalog: str | None) -> bool:
        return catalog in self._silent

    def ask(self, catalog: str | None, step: Callable[[], A]) -> A:
        """Run `step`, which makes requests to the catalog, and return its result.

        Raises the step's errors. Raises an error at once if the catalog did not respond before.
        """
        if (silent := self._silent.get(catalog)) is not None:
            raise silent
        began_s = time.monotonic()
        try:
            return step()
        except CommitUnavailable as error:
            if time.monotonic() - began_s >= SILENT_S:
                self._silent[catalog] = error
            raise
