"""Output of the commands: JSON for programs, sentences and tables for users, and a prompt before an action."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from frazil.errors import Explanation, Failure
from frazil.safe_text import escape_unsafe

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

INDENT = "    "
REMEDY_INDENT = "  → "
MAX_SUBJECTS = 3
"""Maximum number of streams or tables that are named with a message about all of them."""
_COMMAND = re.compile(r": `(frazil [^`]+)`(?:[;.,] ?|$)")
"""A command after a colon, in backticks, and the punctuation after it."""
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"]|['"])+""")
"""A word of a command line. Quotes keep words together."""
PIPE_WIDTH = 200
"""Width of output without a terminal: long values in tables stay on one line."""
MIN_WIDTH = 80
"""Minimum width of tables. A narrower terminal wraps their lines, and each word stays whole."""


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text. Escapes control characters, which may come from users or producers."""
    click.echo(escape_unsafe(text), err=err, nl=nl)


def echo_json(document: object) -> None:
    """Print one JSON document. Names of fields become kebab-case; values of other types become strings."""
    echo(json.dumps(to_json_value(document), indent=2, default=str))


@dataclasses.dataclass(frozen=True, slots=True)
class CommandOutput:
    """Sentences while a command runs. They go to stderr if a JSON document is printed at the end (--json)."""

    as_json: bool

    def say(self, sentence: str) -> None:
        for line in split_commands(sentence):
            echo(line, err=self.as_json)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[str]) -> None:
        _make_console(err=self.as_json).print(build_table(columns, rows, numbers=numbers))

    def end(self, **document: object) -> None:
        if self.as_json:
            echo_json({name.replace("_", "-"): value for name, value in document.items()})


def split_commands(sentence: str) -> list[str]:
    """Split a sentence so that each command after a colon has its own line and can be copied as a whole."""
    lines: list[str] = []
    for index, part in enumerate(_COMMAND.split(sentence)):
        if index % 2:
            lines[-1:] = [f"{lines[-1] if lines else ''}:"]
        if part:
            lines.append(f"{INDENT}{part}" if index % 2 else part)
    return lines


def wrap_command(line: str, width: int) -> str:
    """Wrap a line of `split_commands` with backslashes, so that a command can still be copied."""
    if len(line) <= width or not line.startswith(INDENT):
        return line
    lines = [""]
    for word in _WORD.findall(line):
        if lines[-1] and len(INDENT) + len(lines[-1]) + len(word) + 3 > width:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return " \\\n".join(f"{INDENT}{part}" for part in lines)


def group_messages(messages: Iterable[tuple[str, Explanation]]) -> list[str]:
    """Return each message once, after the subjects that it concerns, and its remedy as the next line.

    The common cause of several messages replaces them.
    """
    found = [*messages]
    common = Counter(message.common for _, message in found if isinstance(message, Failure))
    subjects_by_message: dict[Explanation, list[str]] = {}
    for subject, message in found:
        shown = message
        if isinstance(message, Failure) and message.common and common[message.common] > 1:
            shown = message.common
        subjects_by_message.setdefault(shown, []).append(subject)
    lines = []
    for message, subjects in subjects_by_message.items():
        more_text = f" and {len(subjects) - MAX_SUBJECTS} more" if len(subjects) > MAX_SUBJECTS else ""
        lines.append(f"{', '.join(subjects[:MAX_SUBJECTS])}{more_text}: {message.headline}")
        lines += [f"{REMEDY_INDENT}{message.remedy}"] if message.remedy else []
    return lines


def echo_explanation(explanation: Explanation) -> None:
    """Print an error's reason and, as the next line, its remedy to stderr."""
    echo(explanation.headline, err=True)
    if explanation.remedy:
        echo(f"{REMEDY_INDENT}{explanation.remedy}", err=True)


def build_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[str]) -> Table:
    from rich.table import Table  # only for output to users

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_first = column == columns[0]
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=is_first)
    for row in rows:
        table.add_row(*map(escape_unsafe, row))
    return table


def format_fields(fields: Mapping[str, str]) -> list[str]:
    width = max(map(len, fields), default=0)
    return [f"{name:<{width}}  {value}" for name, value in fields.items()]


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[str] = frozenset()) -> None:
    _make_console().print(build_table(columns, rows, numbers=numbers))


def echo_fields(fields: Mapping[str, str]) -> None:
    echo_lines(format_fields(fields))


def echo_lines(lines: Iterable[RenderableType]) -> None:
    for line in lines:
        if isinstance(line, str):
            for part in split_commands(line):
                echo(part)
        else:
            _make_console().print(line)


def is_terminal_narrow() -> bool:
    return _make_console().width < 100


def echo_line(line: str, *, style: str, head: int) -> None:
    from rich.text import Text  # only for output to users

    text = Text(escape_unsafe(line))
    text.stylize(style, 0, head)
    _make_console().print(text, soft_wrap=True)


def watch(render: Callable[[], Iterable[RenderableType]], *, every_s: float) -> None:
    from rich.console import Group  # only for output to users
    from rich.live import Live
    from rich.text import Text

    console = _make_console(min_width=0)
    if not console.is_terminal:
        raise click.UsageError("--watch needs a terminal")
    # Our own signal handler might wait for a lock that the loop holds. Python's handler raises at once.
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            parts: list[RenderableType] = []
            for line in render():
                if isinstance(line, str):
                    parts += [wrap_command(escape_unsafe(part), console.width) for part in split_commands(line)]
                else:
                    parts.append(line)
            head = Text(f"{datetime.now(UTC):%H:%M:%S} UTC, every {every_s:g} s; Ctrl-C ends\n", style="dim")
            live.update(Group(head, *parts), refresh=True)
            time.sleep(max(0.0, every_s - (time.monotonic() - began)))


@contextmanager
def progress(noun: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show at a terminal that work is in progress. Yields `step(done, total, text)`, which shows a progress bar."""
    console = _make_console(err=True, min_width=0)
    if not console.is_terminal:
        yield lambda _done, _total, _text: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # for users

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(noun, total=None)
        yield lambda done, total, text: bars.update(bar, completed=done, total=total, description=text)


class CannotAsk(click.ClickException):
    exit_code = click.UsageError.exit_code


def ask(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin or not sys.stdin.isatty():  # None if the shell closed it
        raise CannotAsk(f"{question} Cannot ask: no terminal, so nothing was changed. Pass --yes")
    click.confirm(question, abort=True, err=True)


def _make_console(*, err: bool = False, min_width: int = MIN_WIDTH) -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False, stderr=err)
    console.width = max(console.width, min_width) if console.is_terminal else PIPE_WIDTH
    return console


def to_json_value(value: object) -> Any:
    if isinstance(value, Failure):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name.replace("_", "-"): to_json_value(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(v) for v in value]
    return value


def format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {noun}" for noun, n in counts.items() if n) or "none"
