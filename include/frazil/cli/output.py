"""How the commands speak: JSON for programs, words and tables for people, and one way to ask before an act."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_A_PIPE = 200
"""Where no terminal says how wide it is, nothing is broken that a program may want to read."""


def echo_json(document: object) -> None:
    """One JSON document; fields of dataclasses in kebab-case, as in the streams' YAML; what JSON has not, as text."""
    click.echo(json.dumps(_plain(document), indent=2, default=str))


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[str] = frozenset()) -> None:
    """A table on standard output; columns named in `numbers` are aligned to the right."""
    from rich.table import Table  # noqa: PLC0415 - only where people look

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def echo_fields(fields: Mapping[str, str]) -> None:
    """Names and values, a line each."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name:<{width}}  {value}")


def ask(question: str, *, yes: bool) -> None:
    """Go on only with a person's yes, or with --yes; without a terminal and --yes nothing is ever done.

    Raises click.UsageError (exit 2) where nobody can be asked, click.Abort (exit 1) for a no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: there is no terminal. Give --yes to go on without asking")
    click.confirm(question, abort=True, err=True)


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=WIDTH_OF_A_PIPE)


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {name.replace("_", "-"): _plain(field) for name, field in named.items()}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    return value
