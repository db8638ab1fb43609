"""The command itself: its help is there at once."""

from __future__ import annotations

import subprocess
import sys

from frazil.cli.main import COMMANDS

HELP = """
import sys
from click.testing import CliRunner
from frazil.cli.main import frazil
print(CliRunner().invoke(frazil, ["--help"]).output)
print([name for name in sys.modules if name.split(".")[0] in {"pyarrow", "pyiceberg", "pyspark", "pandas"}])
"""


def test_the_help_names_every_command_and_imports_none() -> None:
    *lines, loaded = subprocess.run(
        [sys.executable, "-c", HELP], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    told = dict(line.split(maxsplit=1) for line in lines if line.split(" ")[2:3] and line.split()[0] in COMMANDS)
    assert told.keys() == COMMANDS.keys()
    assert told["validate"].startswith("Check declared streams")
    assert loaded == "[]"
