"""A mutant changes exactly one function, also of classes that are in use."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.mutants import mutants_of

MODULE = """
class Pair:
    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b

    def least(self) -> int:
        if self.a < self.b:
            return self.a
        return self.b

    def swap(self) -> None:
        self.a, self.b = self.b, self.a
"""


def test_each_mutant_changes_one_function_of_classes_that_are_in_use(tmp_path: Path) -> None:
    file = tmp_path / "pairs.py"
    file.write_text(MODULE)
    by_change = {mutant.change: mutant for mutant in mutants_of(file)}
    assert list(by_change) == [
        "def __init__ -> nothing",
        "if self.a < self.b: -> if not self.a < self.b:",
        "self.a < self.b -> self.a <= self.b",
        "def swap -> nothing",
    ]
    spec = importlib.util.spec_from_file_location("pairs", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pair = module.Pair(1, 2)
    swap = pair.swap
    by_change["if self.a < self.b: -> if not self.a < self.b:"].apply()
    assert pair.least() == 2
    by_change["def swap -> nothing"].apply()
    swap()
    assert (pair.a, pair.b, pair.least()) == (1, 2, 2), "the first change stays"
