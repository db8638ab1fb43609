"""Lists and maps are read as files have them, however Arrow keeps them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _to_requested_schema
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

import frazil.table.exact_reading  # noqa: F401

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
def test_lists_of_structs_whose_field_was_widened(array: pa.Array, kept: slice) -> None:
    batch = pa.record_batch({"l": array[kept]})

    read = _to_requested_schema(lists(LongType()), lists(IntegerType()), batch)

    assert read.column("l").to_pylist() == VALUES[kept]
    assert read.column("l").type.value_type.field("a").type == pa.int64()
    read.validate(full=True)


@pytest.mark.parametrize("kept", [slice(None), slice(1, 4), slice(3, 5), slice(0, 1)], ids=str)
def test_maps_of_structs_whose_field_was_widened(kept: slice) -> None:
    values = [None, [("x", {"a": 1}), ("y", None)], [], None, [("z", {"a": None})]]
    batch = pa.record_batch({"l": pa.array(values, pa.map_(pa.string(), STRUCT))[kept]})

    read = _to_requested_schema(maps(LongType()), maps(IntegerType()), batch)

    assert read.column("l").to_pylist() == values[kept]
    assert read.column("l").type.item_type.field("a").type == pa.int64()
    read.validate(full=True)
