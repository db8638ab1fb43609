"""House rules that no linter checks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import grimp
import pytest


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("frazil.ingest.stage", ["pyspark", "airflow", "pyiceberg.catalog"]),
        ("frazil.host.heartbeat", ["pyspark", "pyarrow", "pyiceberg"]),
        ("frazil.spec.load", ["pyspark", "pyarrow", "pyiceberg", "airflow"]),
        ("frazil.cli.main", ["pyspark", "pyarrow", "pyiceberg", "airflow"]),
        ("frazil.stream.spark_engine", ["pyarrow", "pyiceberg", "airflow"]),
    ],
)
def test_a_module_imports_nothing_that_its_process_does_not_need(module: str, unwanted: list[str]):
    program = f"import sys, {module}; print([m for m in {unwanted!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_the_readme_draws_the_layers_of_the_import_contract():
    rooms = {folder.parent.name for folder in Path("include/frazil").glob("*/__init__.py")}
    contract = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [{name.removeprefix("frazil.") for name in layer.split(" | ")} & rooms for layer in contract["layers"]]
    drawn = re.findall(r"^  (\w+(?: \| \w+)*)  +\S", Path("README.md").read_text(), re.MULTILINE)
    assert [set(layer.split(" | ")) for layer in drawn] == [layer for layer in layers if layer]


def test_each_module_that_reads_data_files_through_pyiceberg_reads_nulls_as_nulls():
    reads = re.compile(r"\bArrowScan\(|\.scan\b.*\.to_\w+\(|scan\.to_arrow|_to_requested_schema\(")
    one_column = {"table/reader_configuration.py"}  # it holds the program as text
    found = {path.relative_to("include/frazil").as_posix(): path.read_text() for path in _modules()}
    readers = {name for name, text in found.items() if reads.search(text)} - one_column

    assert len(readers) > 5
    assert {name for name in readers if "import frazil.pyiceberg_fixes.data_files" not in found[name]} == set()


def _modules() -> list[Path]:
    return sorted(Path("include/frazil").rglob("*.py"))


def test_no_modules_import_each_other_in_a_circle_not_even_inside_functions():
    graph = grimp.build_graph("frazil", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert set(_circles(imports)) == set()


def _circles(imports: Mapping[str, Collection[str]]) -> Iterator[tuple[str, ...]]:
    """Groups of modules that all reach each other by imports."""
    left = {module: set(found) for module, found in imports.items()}
    while ends := {m for m, found in left.items() if not found & left.keys()}:
        left = {m: found for m, found in left.items() if m not in ends}
    reach = {module: _reached(module, left) for module in left}
    groups = {tuple(sorted(m for m in found if module in reach[m])) for module, found in reach.items()}
    return (group for group in groups if group)


def _reached(module: str, imports: Mapping[str, Collection[str]]) -> set[str]:
    found: set[str] = set()
    todo = [module]
    while todo:
        new = set(imports.get(todo.pop(), ())) & imports.keys() - found
        found |= new
        todo += new
    return found
