"""Changes one decision of a module at a time, for `tests/mutant_hunt.py`."""

from __future__ import annotations

import ast
import copy
import gc
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType

PACKAGE = Path("include/frazil").resolve()

PAIRS = ((ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot))
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    one: other for pair in (*PAIRS, (ast.And, ast.Or), (ast.Add, ast.Sub)) for one, other in (pair, pair[::-1])
}

Place = tuple[str, str, int]
"""A function's file, qualified name and first line, as in its code object."""


@dataclass(frozen=True)
class Mutant:
    """A changed function, and a description of the change."""

    place: Place
    line: int
    change: str
    changed: ast.FunctionDef = field(repr=False)

    @property
    def name(self) -> str:
        return f"{Path(self.place[0]).relative_to(PACKAGE)}::{self.place[1]}: {self.change}"

    def apply(self) -> None:
        """Replace the function's code in this process, wherever the function was imported."""
        tree = ast.parse(Path(self.place[0]).read_text())
        for scope in _scopes(tree):
            scope.body = [self.changed if _is_of(node, self.changed.lineno) else node for node in scope.body]
        codes = _codes(compile(ast.fix_missing_locations(tree), self.place[0], "exec"))
        code = next(code for code in codes if place_of(code) == self.place)
        gc.unfreeze()  # `tests/conftest.py` hides from the collector what was imported
        for found in gc.get_objects():
            # Not isinstance: proxies among the objects answer it by looking for what they stand for.
            if type(found) is FunctionType and place_of(found.__code__) == self.place:
                found.__code__ = code


def place_of(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield all mutants of a module's functions. A change in a nested function belongs to the outermost function."""
    for scope in _scopes(ast.parse(file.read_text())):
        for function in [node for node in scope.body if isinstance(node, ast.FunctionDef)]:
            name = f"{scope.name}.{function.name}" if isinstance(scope, ast.ClassDef) else function.name
            place = (str(file), name, min([function.lineno, *(d.lineno for d in function.decorator_list)]))
            for at, site in enumerate(_sites(function)):
                for number in range(len(_changes(site))):
                    twin = copy.deepcopy(function)
                    node = _sites(twin)[at]
                    _changes(node)[number]()
                    after = "nothing" if node is twin else _short(node)
                    yield Mutant(place, getattr(site, "lineno", function.lineno), f"{_short(site)} -> {after}", twin)


def _scopes(tree: ast.Module) -> list[ast.Module | ast.ClassDef]:
    return [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]


def _sites(function: ast.FunctionDef) -> list[ast.AST]:
    """Return the nodes that may change: the function as a whole, and all nodes of its body."""
    return [function, *(node for statement in function.body for node in ast.walk(statement))]


def _is_of(node: ast.stmt, line: int) -> bool:
    return isinstance(node, ast.FunctionDef) and node.lineno == line


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _short(node: ast.AST) -> str:
    """Return a short text for a node: a function's name, or a statement's first line."""
    text = f"def {node.name}" if isinstance(node, ast.FunctionDef) else ast.unparse(node)
    return text.split("\n")[0][:90]


def _changes(node: ast.AST) -> list[Callable[[], None]]:
    """Return functions that each change the node in place in one way."""
    found: list[Callable[[], None]] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        found.append(lambda: setattr(node, "test", _negated(node.test)))
    if isinstance(node, ast.comprehension):
        found += [lambda i=i: node.ifs.__setitem__(i, _negated(node.ifs[i])) for i in range(len(node.ifs))]  # type: ignore[misc]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        found.append(lambda: node.ops.__setitem__(0, SWAPS[type(node.ops[0])]()))  # type: ignore[arg-type]
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
        found.append(lambda: setattr(node, "op", SWAPS[type(node.op)]()))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found.append(lambda: setattr(node, "value", node.value + 1))
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        found.append(lambda: setattr(node, "value", not node.value))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _reports(node.value):
        found.append(lambda: setattr(node, "value", ast.Constant(None)))
    if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Constant) and node.returns.value is None:
        found.append(lambda: setattr(node, "body", [ast.Return(None)]))
    return found


def _negated(test: ast.expr) -> ast.expr:
    return test.operand if isinstance(test, ast.UnaryOp) else ast.UnaryOp(ast.Not(), test)


def _reports(call: ast.Call) -> bool:
    """Return whether the statement only writes to the log, which no test checks."""
    return (
        isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == "log"
    )


def sample(room: str, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of a room, chosen by hash, so a change elsewhere in the room replaces few of them."""
    every = [m for file in sorted((PACKAGE / room).glob("*.py")) for m in mutants_of(file)]
    every.sort(key=lambda m: hashlib.sha256(f"{seed} {m.name}".encode()).digest())
    return every[:count]
