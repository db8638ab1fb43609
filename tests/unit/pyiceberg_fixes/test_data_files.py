"""Lists and maps are read as the files contain them, in each of Arrow's encodings."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyiceberg.io.pyarrow
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import _to_requested_schema
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

import frazil.pyiceberg_fixes.data_files  # noqa: F401

STRUCT = pa.struct([pa.field("a", pa.int32())])
VALUES: list[Any] = [None, [{"a": 1}, None], None, [{"a": None}, {"a": 2}], None]


def lists(value: Any) -> Schema:
    element = StructType(NestedField(3, "a", value, required=False))
    return Schema(NestedField(1, "l", ListType(2, element, element_required=False), required=False))


def maps(value: Any) -> Schema:
    element = StructType(NestedField(4, "a", value, required=False))
    return Schema(NestedField(1, "l", MapType(2, StringType(), 3, element, value_required=False), required=False))


@pytest.mark.parametrize(
    "array",
    [
        pa.array(VALUES, pa.list_(STRUCT)),
        pa.array(VALUES, pa.large_list(STRUCT)),
        pa.array(VALUES, pa.list_(STRUCT, 2)),
    ],
    ids=lambda array: str(array.type)[:15],
)
@pytest.mark.parametrize("kept", [slice(None), slice(1, 4), slice(3, 5), slice(0, 1), slice(2, 2)], ids=str)
def test_lists_of_structs_with_a_widened_field_are_read(array: pa.Array, kept: slice) -> None:
    batch = pa.record_batch({"l": array[kept]})

    read = _to_requested_schema(lists(LongType()), lists(IntegerType()), batch)

    assert read.column("l").to_pylist() == VALUES[kept]
    assert read.column("l").type.value_type.field("a").type == pa.int64()
    read.validate(full=True)


@pytest.mark.parametrize("kept", [slice(None), slice(1, 4), slice(3, 5), slice(0, 1)], ids=str)
def test_maps_of_structs_with_a_widened_field_are_read(kept: slice) -> None:
    values = [None, [("x", {"a": 1}), ("y", None)], [], None, [("z", {"a": None})]]
    batch = pa.record_batch({"l": pa.array(values, pa.map_(pa.string(), STRUCT))[kept]})

    read = _to_requested_schema(maps(LongType()), maps(IntegerType()), batch)

    assert read.column("l").to_pylist() == values[kept]
    assert read.column("l").type.item_type.field("a").type == pa.int64()
    read.validate(full=True)


@given(st.text(max_size=40), st.integers(1, 20))
@example("x" * 15 + "\ud7ff" + "tail", 16)
@example("\U0010ffff" * 17, 16)
def test_a_truncated_upper_bound_of_a_text_is_valid_unicode_and_not_less_than_the_text(text: str, length: int) -> None:
    bound = pyiceberg.io.pyarrow.truncate_upper_bound_text_string(text, length)
    if bound is None:
        assert set(text[:length]) == {"\U0010ffff"}
    else:
        bound.encode()
        assert (bound >= text, len(bound) <= length or bound == text) == (True, True)
