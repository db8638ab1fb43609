"""The files that a merge writes again."""

from __future__ import annotations

import pytest

from frazil.merge.contract import TableFile
from frazil.merge.task import files_to_rewrite

MIB = 2**20


def made(bytes_: int, records: int = 1000, name: str = "a") -> TableFile:
    return TableFile(path=name, records=records, bytes=bytes_, spec_id=0, partition=())


@pytest.mark.parametrize(
    ("bytes_", "stay", "leave"),
    [(128 * MIB, 200, 201), (MIB, 200, 201), (MIB // 2, 100, 101), (MIB // 20, 9, 11), (100, 0, 1)],
)
def test_the_smaller_a_file_is_the_fewer_rows_may_have_left_it(bytes_: int, stay: int, leave: int) -> None:
    file = made(bytes_)
    assert files_to_rewrite("auto", {file: stay}, [file], new_rows=0) == set()
    assert files_to_rewrite("auto", {file: leave}, [file], new_rows=0) == {"a"}


def test_copies_are_made_of_each_file_or_of_none_where_a_stream_says_so() -> None:
    file, emptied = made(MIB), made(MIB, name="b")
    leaving = {file: 1, emptied: 1000}
    assert files_to_rewrite("copy-on-write", leaving, [file, emptied], new_rows=0) == {"a", "b"}
    assert files_to_rewrite("merge-on-read", leaving, [file, emptied], new_rows=0) == {"b"}


def test_small_files_join_what_is_written_once_there_are_four() -> None:
    small = [made(10_000, name=str(n)) for n in range(4)]
    assert files_to_rewrite("auto", {}, small, new_rows=10) == {"0", "1", "2", "3"}
    assert files_to_rewrite("auto", {}, small[:3], new_rows=10) == set()
    assert files_to_rewrite("auto", {}, [*small[:3], made(100 * MIB, name="large")], new_rows=10) == set()
