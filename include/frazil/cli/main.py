"""`frazil`: one command, whose subcommands load their own modules only when called."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from frazil import __version__, fast_imports
from frazil.cli.options import JSON
from frazil.cli.output import echo, echo_json
from frazil.errors import EnvironmentUnusable, FrazilError
from frazil.extras import check_configuration, report_missing_extras
from frazil.home import home

COMMANDS = {
    "init": "frazil.cli.init:init",
    "dev": "frazil.cli.dev:dev",
    "doctor": "frazil.cli.doctor:doctor",
    "infer": "frazil.cli.infer:infer",
    "validate": "frazil.cli.validate:validate",
    "preview": "frazil.cli.records:preview",
    "run": "frazil.cli.run:run",
    "status": "frazil.cli.status:status",
    "health": "frazil.cli.health:health",
    "cost": "frazil.cli.cost:cost",
    "pause": "frazil.cli.desired:pause",
    "resume": "frazil.cli.desired:resume",
    "restart": "frazil.cli.desired:restart",
    "reset": "frazil.cli.marker:reset",
    "adopt": "frazil.cli.marker:adopt",
    "forget": "frazil.cli.marker:forget",
    "route": "frazil.cli.route:route",
    "evolve": "frazil.cli.evolve:evolve",
    "audit": "frazil.cli.audit:audit",
    "cut": "frazil.cli.cut:cut",
    "partitions": "frazil.cli.partitions:partitions",
    "backfill": "frazil.cli.backfill:backfill",
    "dlq": "frazil.cli.dlq:dlq",
    "reveal": "frazil.cli.records:reveal",
    "maintain": "frazil.cli.maintain:maintain",
    "orphans": "frazil.cli.maintain:orphans",
    "catalog": "frazil.cli.catalog:catalog",
    "register": "frazil.cli.catalog:register",
    "package": "frazil.cli.catalog:package",
    "completion": "frazil.cli.options:completion",
}

COMMANDS_WITHOUT_CATALOG = {"completion", "dev", "doctor", "infer", "init", "package", "preview", "reveal", "validate"}
COMMANDS_WITHOUT_DEMO = frozenset({"dev", "init", "run"})
"""Commands that ignore a running demo, because the processes that they start must outlive it."""


def enter_running_demo() -> None:
    """Use the demo that runs in this folder (`.frazil/demo.json`), unless FRAZIL_HOME names a folder."""
    try:
        demo = json.loads((home() / "demo.json").read_text())
        os.kill(demo["pid"], 0)
    except (OSError, ValueError):
        return
    if not os.environ.get("FRAZIL_HOME"):
        os.environ.update(demo["environment"])
        echo(f"Using the running demo (FRAZIL_HOME={home()}).", err=True)


class LazyGroup(click.Group):
    """Imports a subcommand's module only when it is used, so that `frazil --help` loads no PyArrow."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in COMMANDS_WITHOUT_DEMO:
            enter_running_demo()
        if cmd_name not in COMMANDS_WITHOUT_CATALOG:
            check_configuration()
        module, attribute = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        fast_imports.end_fast_imports()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            similar = get_close_matches(args[0], COMMANDS, n=1)
            if not similar:
                raise
            text = f"{error.message.rstrip('.')}; did you mean `frazil {similar[0]}`?"
            raise click.UsageError(text, ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete subcommands' names without imports, because a shell calls this at each press of the Tab key."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        return [CompletionItem(name, help=_parse_help(name).get_short_help_str()) for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _parse_help(name).get_short_help_str(width)) for name in COMMANDS])


def _parse_help(command: str) -> click.Command:
    """Return a command with only its help text, read from the source file without an import."""
    module, attribute = COMMANDS[command].split(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == attribute)
    return click.Command(command, help=ast.get_docstring(function))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="frazil")
def frazil() -> None:
    """Kafka streams into Apache Iceberg tables, exactly once."""


@contextmanager
def _report_disk_faults() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        from frazil.table.storage_errors import translate_local_failure  # loads PyIceberg

        if (translated := translate_local_failure(error.filename or "a file", error)) is None:
            raise
        raise EnvironmentUnusable(f"{translated} (FRAZIL_HOME is {home()})") from error


def _check_current_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise EnvironmentUnusable("the current folder was deleted. Change to a folder that exists") from None


def main() -> None:
    fast_imports.begin_fast_imports()
    try:
        _check_current_folder()
        with report_missing_extras(), _report_disk_faults():
            frazil()
    except FrazilError as error:
        echo(f"{type(error).__name__}: {error}", err=True)
        if JSON in sys.argv[1:]:
            kind = {"type": type(error).__name__, "message": str(error), "exit-code": error.exit_code}
            with suppress(OSError):  # standard output may be the full disk
                echo_json({"error": kind})
        sys.exit(error.exit_code)
