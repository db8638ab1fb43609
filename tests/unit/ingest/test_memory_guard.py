"""A record for which a transform needs too much memory becomes a dead letter; its neighbour lands."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from frazil.ingest.transform import MAX_QUERY_GROWTH, MAX_RESULT_BYTES, limit_memory

linux_only = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux limits private memory")
GREEDY = {
    "a lambda that doubles its text": "list_reduce(tags, lambda x, y: x || x)",
    "a text for each element": "array_to_string(list_transform(tags, lambda x: repeat(txt, 1000)), '')",
    "a long text": "repeat(txt, 100000)",
    "a result that is itself too large": "repeat(txt, 20000)",
}
TRANSFORM_ONE_RECORD = """
import resource, sys
from tests.unit.ingest.test_transform import stream, transformed

spec = stream(f"SELECT {sys.argv[1]} AS a FROM records", schema={"a": "string"})
transformed(spec, [{"txt": "x", "tags": []}])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = transformed(spec, [{"txt": "y" * 20_000, "tags": ["x"] * 4_000}, {"txt": "x", "tags": ["x"]}])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024, found.record_indexes.tolist(), [tuple(r) for r in found.rejections])
"""


@linux_only
@pytest.mark.processes
@pytest.mark.rotates(2)
@pytest.mark.parametrize("expression", GREEDY.values(), ids=GREEDY)
def test_a_record_that_takes_too_much_memory_is_the_only_dead_letter(expression: str) -> None:
    command = [sys.executable, "-c", TRANSFORM_ONE_RECORD, expression]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    grown, found = done.stdout.split(" ", 1)
    assert found.startswith("[1] [(0, 'TransformFailed', ")
    assert "Out of Memory Error" in found
    assert int(grown) < MAX_QUERY_GROWTH + MAX_RESULT_BYTES


@linux_only
def test_an_allocation_beyond_the_limit_fails_and_the_limit_ends_with_the_block() -> None:
    # 4 GiB, never touched: memory that other threads or the garbage collector free meanwhile cannot make room for it.
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limit_memory(64 * 2**20), pytest.raises(MemoryError):
        np.empty(2**32, np.int8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert np.empty(2**32, np.int8).size == 2**32


@linux_only
def test_memory_guards_of_two_threads_restore_the_process_limit() -> None:
    before, inside, first_ended = resource.getrlimit(resource.RLIMIT_DATA), threading.Event(), threading.Event()

    def hold() -> None:
        with limit_memory(2**30):
            inside.set()
            first_ended.wait(10)

    with limit_memory(2**30):
        thread = threading.Thread(target=hold)
        thread.start()
        assert inside.wait(10)
    assert resource.getrlimit(resource.RLIMIT_DATA) != before
    first_ended.set()
    thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
