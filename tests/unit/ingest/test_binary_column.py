from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frazil.ingest.chunk import BinaryColumn

VALUES = st.lists(st.none() | st.binary(max_size=9), max_size=20)


@given(VALUES, st.data())
def test_a_binary_column_reads_as_the_list_that_it_was_made_from(
    values: list[bytes | None], data: st.DataObject
) -> None:
    column = BinaryColumn.of(values)
    assert [*column] == values
    assert [column[i] for i in range(-len(values), len(values))] == values * 2
    start, end = (data.draw(st.integers(0, len(values))) for _ in range(2))
    assert [*column[start:end]] == values[start:end]
    places = data.draw(st.lists(st.sampled_from(range(len(values))), max_size=9)) if values else []
    assert [*column.take(np.array(places, np.int64))] == [values[place] for place in places]


@given(VALUES)
def test_a_newline_follows_each_value(values: list[bytes | None]) -> None:
    assert BinaryColumn.of(values).data.tobytes() == b"".join((value or b"") + b"\n" for value in values)


def test_a_pickled_slice_of_a_binary_column_contains_only_its_values() -> None:
    column = BinaryColumn.of([b"x" * 1_000_000, b"last", None])
    pickled = pickle.dumps(column[1:])
    assert len(pickled) < 1000
    assert [*pickle.loads(pickled)] == [b"last", None]


def test_a_binary_column_of_nulls_can_be_created() -> None:
    assert [*BinaryColumn.nulls(2)] == [None, None]
    assert [*BinaryColumn.nulls(0)] == []
