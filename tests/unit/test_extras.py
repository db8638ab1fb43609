"""A missing package, or an unsupported version, is reported in one sentence at the start."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import frazil
from frazil import extras
from frazil.errors import UnsupportedVersion

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
AS_PYTHON = "import sys; sys.version_info = ({}, 'final', 0)\nimport frazil.cli"


@pytest.mark.parametrize(
    ("module", "found", "sentence"),
    [
        ("py4j", "4.2.1", r"Spark 4\.2\.1 is installed, but frazil supports Spark 4\.0 and 4\.1\. .*frazil\[spark\]"),
        ("py4j", "3.5.8", r"Spark 3\.5\.8 is installed"),
        ("airflow", "3.2.2", r"Airflow 3\.2\.2 is installed, but frazil supports Airflow 3\.3\. .*frazil\[airflow\]"),
    ],
)
def test_an_unsupported_version_is_refused_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, found: str, sentence: str
) -> None:
    monkeypatch.setattr(extras, "version", lambda _: found)
    with pytest.raises(UnsupportedVersion, match=sentence):
        extras.require_module(module)


def test_a_spark_without_package_metadata_passes_the_version_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "version", missing)
    extras.require_module("py4j")


def test_the_supported_versions_are_those_that_pip_allows() -> None:
    allowed = {name: Requirement(text).specifier for group in PROJECT["optional-dependencies"].values()
               for text in group if (name := re.split(r"[\[<>=!]", text)[0])}  # fmt: skip
    for package, _, minors in extras.SUPPORTED_VERSIONS.values():
        specifier = allowed[package.removesuffix("-core")]
        accepted = [
            f"{major}.{minor}" for major in (3, 4, 5) for minor in range(10) if f"{major}.{minor}.1" in specifier
        ]
        assert accepted == list(minors)
    pythons = [f"3.{minor}" for minor in range(20) if f"3.{minor}.1" in SpecifierSet(PROJECT["requires-python"])]
    first, last = (f"{one[0]}.{one[1]}" for one in frazil.SUPPORTED_PYTHONS)
    assert (pythons[0], pythons[-1]) == (first, last)
    said = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if text.startswith("Programming")]
    assert said == pythons


@pytest.mark.parametrize(("found", "accepted"), [("3, 10, 4", False), ("3, 13, 0", True), ("3, 14, 0", False)])
def test_an_unsupported_python_version_fails_with_one_sentence_and_no_traceback(found: str, accepted: bool) -> None:
    done = subprocess.run([sys.executable, "-c", AS_PYTHON.format(found)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is accepted
    assert "Traceback" not in done.stderr
    assert ("frazil runs with 3.11 to 3.13" in done.stderr) is not accepted
