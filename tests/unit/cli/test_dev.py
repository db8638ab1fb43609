"""`frazil dev` where nothing runs; tests/e2e has it with a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from frazil.cli.dev import dev
from frazil.cli.main import frazil


def run(*arguments: str) -> Result:
    return CliRunner().invoke(frazil, ["dev", *arguments])


def test_dev_status_and_down_of_a_fresh_home_show_that_nothing_runs(frazil_home: Path) -> None:
    shown = run("status")
    assert shown.exit_code == 1
    assert "kafka          not running" in shown.output
    assert run("down").output == "nothing was running\n"
    assert not frazil_home.exists()


@pytest.mark.parametrize("name", ["up", "down", "status"])
def test_every_command_has_an_example(name: str) -> None:
    assert f"frazil dev {name}" in run(name, "--help").output
    assert name in dev.commands
