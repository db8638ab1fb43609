"""What the package for executors and drivers in a cluster contains."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import frazil
from frazil.errors import MissingExtra
from frazil.spark import package

OF_THE_CLUSTER = {"py4j", "pyspark"}
"""Modules that Spark provides."""


def imported_modules() -> Iterator[str]:
    """Yield the modules of other packages that the packaged modules of frazil import."""
    root = Path(frazil.__file__).parent
    for file in root.rglob("*.py"):
        if file.relative_to(root).parts[0] in package.FRAZIL_EXCLUDED:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module


def test_it_contains_each_package_that_a_stream_may_need() -> None:
    found = set(package.find_packages([*package.STORAGES, *package.OTHER_EXTRAS]))
    distributions = metadata.packages_distributions()
    others = {module.partition(".")[0] for module in imported_modules()} - set(sys.stdlib_module_names)
    needed = {name: distributions[name] for name in others - OF_THE_CLUSTER - {"frazil"}}
    missing = {name for name, given in needed.items() if not found & {each.lower().replace("_", "-") for each in given}}
    assert missing == set()
    assert {"duckdb", "protobuf"} <= found


def test_optional_packages_that_this_host_does_not_have_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> metadata.Distribution:
        if name == "cryptography":
            raise metadata.PackageNotFoundError
        return metadata.distribution(name)

    monkeypatch.setattr(package, "distribution", distribution)
    assert "transform" in package.find_installed(package.OTHER_EXTRAS)
    assert "sensitive" not in package.find_installed(package.OTHER_EXTRAS)
    assert "cryptography" not in package.find_packages(["transform"])
    with pytest.raises(MissingExtra, match=r"cryptography, .*, is not installed: pip install 'frazil\[sensitive\]'"):
        package.find_packages(["sensitive"])


@pytest.mark.processes
def test_the_check_of_a_new_package_passes_here() -> None:
    done = subprocess.run([sys.executable, "-c", package.SMOKE_TEST], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
