"""Executors that cannot run a driver's tasks are distinguished from those that can."""

from __future__ import annotations

import pytest

from frazil import __version__
from frazil.stream.progress import MAX_WRITE_INTERVAL_S, MAX_WRITES_PER_SECOND, cluster_period_s
from frazil.stream.session import find_executor_problem

VALID = {"host": "a", "frazil": __version__}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([VALID], None),
        ([VALID, {"host": "b", "frazil": "0.0.9"}], f"has frazil 0.0.9 on b, and the driver has {__version__}"),
        ([{"host": "b", "missing": "No module named 'numba'"}], "cannot stage records on b: No module named 'numba'"),
    ],
)
def test_the_first_executor_that_differs_is_named(answers: list[dict[str, str]], said: str | None) -> None:
    assert find_executor_problem(answers) == said


@pytest.mark.parametrize("tasks", [1, 2, 8, 9, 64, 120, 1000])
def test_progress_of_all_tasks_together_is_a_bounded_number_of_requests(tasks: int) -> None:
    period_s = cluster_period_s(tasks)
    assert 1 <= period_s <= MAX_WRITE_INTERVAL_S
    assert tasks / period_s <= MAX_WRITES_PER_SECOND or period_s == MAX_WRITE_INTERVAL_S
