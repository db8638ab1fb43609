"""What pyproject.toml asks for, and what the lock file pins."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PINS = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (CHECKOUT / "requirements.txt").read_text(), re.MULTILINE))
MACHINE_PATH = r"/(home|Users)/[a-z]+/|/root/|/tmp/[a-z]+/[a-z]+|/work/"


def requirements() -> list[str]:
    project = PYPROJECT["project"]
    groups = [*project["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()]
    return [*project["dependencies"], *(text for group in groups for text in group)]


@pytest.mark.parametrize("text", [text for text in requirements() if not text.startswith("frazil[")])
def test_the_lock_file_pins_a_version_that_pyproject_allows(text: str) -> None:
    requirement = Requirement(text)
    name = re.sub(r"[-_.]+", "-", requirement.name).lower()
    assert name in PINS, "run `make lock`"
    assert requirement.specifier.contains(PINS[name])


def test_only_the_lock_file_pins() -> None:
    assert [text for text in requirements() if "==" in text] == []


def test_what_shares_the_folder_of_pyspark_has_its_version() -> None:
    assert PINS["pyspark"] == PINS["pyspark-client"]


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="not a checkout of git")
def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    command = ["git", "grep", "-nIE", MACHINE_PATH, "--", ".", f":!{Path(__file__).relative_to(CHECKOUT)}"]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == []
    assert found.returncode == 1, found.stderr
