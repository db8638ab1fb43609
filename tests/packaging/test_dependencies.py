"""The dependencies of pyproject.toml, and the versions that the lock file pins."""

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


def test_versions_are_pinned_only_in_the_lock_file() -> None:
    assert [text for text in requirements() if "==" in text] == []


def test_packages_that_share_pysparks_folder_have_its_version() -> None:
    assert PINS["pyspark"] == PINS["pyspark-client"]


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="not a checkout of git")
def test_no_file_contains_a_path_of_a_developers_machine() -> None:
    command = ["git", "grep", "-nIE", MACHINE_PATH, "--", ".", f":!{Path(__file__).relative_to(CHECKOUT)}"]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == []
    assert found.returncode == 1, found.stderr
