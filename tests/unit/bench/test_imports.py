"""What benchmarks import from frazil exists. No type checker reads them, and no test runs all of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import bench
import frazil

BENCHMARKS = Path(bench.__path__[0])
PACKAGE = Path(frazil.__file__).parent


@cache
def names_in(module: str) -> set[str]:
    """Return the names that a module of frazil has, and those of its modules if it is a package."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = {one.stem for one in path.iterdir()} if path.is_dir() else set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name)
    return found


@pytest.mark.parametrize("file", sorted(BENCHMARKS.rglob("*.py")), ids=lambda file: str(file.relative_to(BENCHMARKS)))
def test_every_import_of_the_benchmarks_from_frazil_exists(file: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    of_frazil = {node.module: node.names for node in imports if (node.module or "").partition(".")[0] == "frazil"}

    missing = [
        f"{module}.{alias.name}"
        for module, names in of_frazil.items()
        for alias in names
        if module is not None and alias.name not in names_in(module)
    ]

    assert not missing
