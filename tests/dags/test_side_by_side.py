"""Parallel reads: one that fails or hangs is reported, and does not stop the others."""

from __future__ import annotations

import threading

import pytest

from frazil.table.parallel import read_in_parallel


def test_parallel_reads_return_each_result_or_its_exception_by_name() -> None:
    found = read_in_parallel(["1", "x", "3"], int, timeout_s=60)
    assert (found["1"], found["3"]) == (1, 3)
    assert isinstance(found["x"], ValueError)
    assert list(found) == ["1", "x", "3"]
    assert read_in_parallel([], int, timeout_s=60) == {}


@pytest.mark.timeout(60)
def test_a_read_that_hangs_times_out_and_so_does_one_queued_behind_it() -> None:
    go = threading.Event()
    found = read_in_parallel(["hangs", "waits"], lambda _: go.wait(), timeout_s=0.01, max_threads=1)
    go.set()
    assert {name: type(answer) for name, answer in found.items()} == dict.fromkeys(["hangs", "waits"], TimeoutError)
    assert "hangs could not be read within" in str(found["hangs"])


@pytest.mark.timeout(60)
def test_a_hanging_read_times_out_with_its_group_and_the_other_reads_complete() -> None:
    go, slow = threading.Event(), threading.Semaphore(0)

    def read(name: str) -> str:
        if name.startswith("far"):
            go.wait()
        else:
            slow.acquire(timeout=0.02)  # each read ends, and all of them together last longer than the limit
        return name

    names = ["far-1", "far-2", *map(str, range(75))]
    found = read_in_parallel(names, read, timeout_s=1, group=lambda name: name.rpartition("-")[0], max_threads=1)
    go.set()
    assert list(found) == names
    assert [name for name, answer in found.items() if answer != name] == ["far-1", "far-2"]
