"""A warning in the log when a batch has no executors."""

from __future__ import annotations

import threading

import pytest

from frazil.stream.session import warn_if_executors_lost


def checked(counts: list[int]) -> None:
    """Run a batch for as many looks as there are counts; then the JVM is gone."""
    left, all_seen = iter(counts), threading.Event()

    def executors() -> int:
        try:
            return next(left)
        except StopIteration:
            all_seen.set()
            raise ConnectionError from None

    with warn_if_executors_lost(executors, "no executor is left", poll_interval_s=0.001):
        watching = [thread for thread in threading.enumerate() if thread.name == "executors"]
        assert all(thread.daemon for thread in watching), "a JVM that hangs keeps no process alive"
        assert all_seen.wait(10)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([2, 2], []),
        ([2, 0, 2], []),
        ([0, 0, 0], ["no executor is left"] * 2),
        ([0, 0, 3, 0, 3], ["no executor is left", "the batch has 3 executors again"]),
    ],
)
def test_a_warning_appears_when_two_checks_in_a_row_find_no_executor(
    counts: list[int], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    checked(counts)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == said
