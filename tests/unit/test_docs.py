"""Everything that the docs refer to exists: links, anchors, commands and options."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from frazil.cli.main import COMMANDS, frazil

PAGES = [
    *(Path(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md")),
    *sorted(Path("docs").rglob("*.md")),
]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|(?:href|src|srcset)=\"([^\"]+)\"")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ +)?frazil ([a-z]+)((?: [^\n|#;]*)?)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [target for target in _links(page) if not _resolves(page, target)]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_command_and_option_exists(page: Path) -> None:
    wrong = [problem for name, rest in COMMAND.findall(_code(page)) if (problem := _wrong(name, rest))]
    assert wrong == []


def test_the_command_reference_lists_every_command() -> None:
    page = Path("docs/reference/cli.md").read_text()
    assert [name for name in COMMANDS if f"`frazil {name}" not in page and f"`{name}" not in page] == []


def test_the_dag_reference_lists_every_dag_and_every_variable_that_dags_read() -> None:
    page = Path("docs/reference/dags.md").read_text()
    files = [file for room in ("include/frazil/airflow", "dags") for file in Path(room).rglob("*.py")]
    code = "\n".join(file.read_text() for file in [*files, Path("include/frazil/spec/routed_stream.py")])
    dags = re.findall(r'(?:DAG_ID|_DAG) = "(frazil_\w+)"|return f"(frazil_\w+_)\{', code)
    variables = re.findall(r"FRAZIL_[A-Z]+(?:_[A-Z]+)*", code)
    assert len(dags) == 11
    assert [name for name in {*map("".join, dags), *variables} - {"FRAZIL_HOME"} if name not in page] == []


def test_some_page_names_every_variable_that_a_user_may_set() -> None:
    internal = {"FRAZIL_DRIVER_CATALOG", "FRAZIL_POD_IP", "FRAZIL_POD_NAME", "FRAZIL_WRITER_LOCK_FD"}
    code = "\n".join(file.read_text() for file in Path("include/frazil").rglob("*.py"))
    pages = "\n".join(page.read_text() for page in PAGES)
    read = set(re.findall(r"[\"']_?(FRAZIL_[A-Z_]+)[\"']", code)) - internal - {"FRAZIL_COMPLETE"}
    assert len(read) > 20
    assert [name for name in sorted(read) if name not in pages] == []


def test_every_page_is_reached_from_the_index() -> None:
    seen, todo = set(), [Path("docs/README.md")]
    while todo:
        page = todo.pop().resolve()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            todo += [page.parent / target.split("#")[0] for target in _links(page) if "://" not in target]
        elif page.is_dir():
            seen |= {file.resolve() for file in page.iterdir()}
    assert [page for page in PAGES if page.is_relative_to("docs") and page.resolve() not in seen] == []


def _links(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text())
    return [next(filter(None, groups)) for groups in LINK.findall(text)]


def _code(page: Path) -> str:
    """The content of code spans, and the lines of code blocks."""
    text = page.read_text()
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    indented = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    return "\n".join([*FENCE.findall(text), *spans, *indented])


def _resolves(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return True
    path, _, anchor = target.partition("#")
    file = (page.parent / path) if path else page
    return file.exists() and (not anchor or anchor in _anchors(file))


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives to headings."""
    headings = re.findall(r"^#{1,6} (.+?)\s*$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain)


def _wrong(name: str, rest: str) -> str | None:
    """Return the problem with `frazil <name> <rest>` as a page shows it; None if it has none."""
    command = _command((name,))
    if command is None:
        return f"there is no command frazil {name}"
    words = rest.split()
    if isinstance(command, click.Group) and words and words[0].isalpha():
        name, command = f"{name} {words[0].strip(',')}", _command((name, words[0]))
        if command is None:
            return f"there is no command frazil {name}"
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)) - known - {"--help"}
    return f"frazil {name} has no {sorted(unknown)}" if unknown else None


@cache
def _command(path: tuple[str, ...]) -> click.Command | None:
    command: click.Command | None = frazil
    for name in path:
        command = command.get_command(click.Context(command), name) if isinstance(command, click.Group) else None
    if command is not None:
        assert CliRunner().invoke(frazil, [*path, "--help"]).exit_code == 0
    return command
