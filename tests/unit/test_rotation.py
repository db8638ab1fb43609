"""A rotating test runs in every n-th commit's full run, and always if its file is named."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import TEST_SEED, is_in_turn


def item(name: str, arguments: Iterable[str], *, every: Iterable[int] = (3,), **turn: int) -> Any:
    marks = [pytest.mark.rotates(number, **turn).mark for number in every]
    return SimpleNamespace(
        nodeid=name,
        path=Path(name.partition("::")[0]).resolve(),
        config=SimpleNamespace(args=list(arguments)),
        iter_markers={"rotates": marks}.get,
    )


@pytest.mark.parametrize("name", ["tests/faults/test_a.py::test_b", "tests/faults/test_a.py::test_b[é-1]"])
@pytest.mark.parametrize("every", [[1], [2], [5], [2, 8]])
def test_a_rotated_test_runs_in_one_of_n_consecutive_commits(
    name: str, every: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (1, 1419):
        turns = []
        for number in range(first, first + math.prod(every)):
            monkeypatch.setenv(TEST_SEED, str(number))
            turns.append(is_in_turn(item(name, ["tests"], every=every)))
        assert turns.count(True) == 1


def test_a_test_with_a_turn_runs_at_the_commits_whose_numbers_leave_that_remainder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for number in range(8):
        monkeypatch.setenv(TEST_SEED, str(number))
        if is_in_turn(item("tests/x.py::test_x", ["tests"], every=[4], turn=3)):
            found.append(number)
    assert found == [3, 7]


def test_other_tests_and_those_of_a_named_file_always_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        monkeypatch.setenv(TEST_SEED, str(number))
        assert is_in_turn(item("tests/x.py::test_x", ["tests"], every=[]))
        assert is_in_turn(item("tests/x.py::test_x", ["tests/x.py::test_x"]))


def test_a_rotated_test_is_not_in_turn_because_another_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    for number in range(3):
        monkeypatch.setenv(TEST_SEED, str(number))
        turns.append(is_in_turn(item("tests/x.py::test_x", [__file__, "tests"])))
    assert turns.count(True) == 1
