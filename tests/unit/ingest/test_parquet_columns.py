"""The Parquet types that a table's column can have: those whose values the table's type can hold."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestamptzType,
)

from frazil.errors import SpecError
from frazil.ingest.arrow_values import fill_hidden_nulls
from frazil.ingest.record_files import FileColumns, can_cast, cast_columns, check_columns
from frazil.pyiceberg_fixes import VariantType

UTC_US = pa.timestamp("us", "UTC")
TEXT = pa.large_string()


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pa.int8(), pa.int32()),
        (pa.float32(), pa.float64()),
        (pa.dictionary(pa.int8(), pa.string()), TEXT),
        (pa.timestamp("ns", "Europe/Paris"), UTC_US),
        (pa.decimal128(5, 2), pa.decimal128(9, 2)),
        (pa.list_(pa.int32()), pa.large_list(pa.int64())),
        (pa.map_(pa.string(), pa.int32()), pa.map_(TEXT, pa.int64())),
        (pa.struct({"a": pa.int8(), "b": pa.string()}), pa.struct({"a": pa.int32(), "b": TEXT})),
    ],
)
def test_a_type_fits_one_that_holds_all_its_values(found: pa.DataType, wanted: pa.DataType):
    assert can_cast(found, wanted)
    assert not can_cast(pa.null(), wanted)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float64(), pa.float32()),
        (pa.int32(), pa.float64()),
        (pa.int32(), TEXT),
        (pa.timestamp("us"), UTC_US),
        (UTC_US, pa.timestamp("us")),
        (pa.date32(), UTC_US),
        (pa.decimal128(9, 3), pa.decimal128(9, 2)),
        (pa.binary(15), pa.binary(16)),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
        (pa.struct({"b": pa.int8()}), pa.struct({"a": pa.int8()})),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.int8(), "b": pa.int8()})),
    ],
)
def test_a_type_that_may_lose_a_value_does_not_fit(found: pa.DataType, wanted: pa.DataType):
    assert not can_cast(found, wanted)


@pytest.mark.parametrize(("kind", "instead"), [(VariantType(), "JSON text"), (StringType(), "that type")])
def test_a_file_with_an_unsuitable_column_is_refused_with_the_fix(
    tmp_path: Path, kind: PrimitiveType, instead: str
) -> None:
    path = f"{tmp_path}/one.parquet"
    pq.write_table(pa.table({"v": [{"metadata": b"\x01\x00\x00", "value": b"\x00"}]}), path)
    file = ds.ParquetFileFormat().make_fragment(path, pa.fs.LocalFileSystem())
    with pytest.raises(
        SpecError, match=f"column v has type struct.* cannot become .* Write the file again with {instead}"
    ):
        check_columns(path, file, FileColumns.of(Schema(NestedField(1, "v", kind)), {}))


def test_a_null_struct_does_not_violate_its_required_fields() -> None:
    struct = StructType(NestedField(3, "a", LongType(), required=True))
    schema = Schema(NestedField(1, "one", struct), NestedField(4, "many", ListType(5, struct, element_required=False)))
    optional = pa.struct({"a": pa.int32()})
    written, file = pa.schema({"one": optional, "many": pa.list_(optional)}), pa.BufferOutputStream()
    rows = [{"one": None, "many": None}, {"one": {"a": 1}, "many": [None, {"a": 2}]}]
    pq.write_table(pa.Table.from_pylist(rows, written), file)
    columns = FileColumns.of(schema, {})
    assert cast_columns("f", pq.read_table(pa.BufferReader(file.getvalue())), columns).to_pylist() == rows
    missing = pa.Table.from_pylist([{"one": {"a": None}, "many": None}], written)
    with pytest.raises(pa.ArrowInvalid, match="a: required, and missing or null"):  # as when its record is written
        fill_hidden_nulls(cast_columns("f", missing, columns))


def test_a_column_missing_from_a_backfill_file_gets_the_default_of_the_table(tmp_path: Path) -> None:
    path = f"{tmp_path}/one.parquet"
    pq.write_table(pa.table({"n": [1, 2]}), path)
    added = NestedField(2, "v", StringType(), required=True, initial_default="old", write_default="new")
    schema = Schema(NestedField(1, "n", LongType()), added, NestedField(3, "w", LongType()))
    columns = FileColumns.of(schema, {})
    check_columns(path, ds.ParquetFileFormat().make_fragment(path, pyarrow.fs.LocalFileSystem()), columns)
    found = cast_columns(path, pq.read_table(path), columns)
    assert found.to_pylist() == [{"n": 1, "v": "new", "w": None}, {"n": 2, "v": "new", "w": None}]


def test_a_declared_default_fills_missing_columns_and_nulls_as_in_records() -> None:
    schema = Schema(
        NestedField(1, "n", LongType(), required=True),
        NestedField(2, "at", TimestamptzType(), write_default="1970-01-01T00:00:00+00:00"),
    )
    units = {"n": {"default": 7}, "at": {"unit": "ms", "default": 1, "null-if": [5]}}
    columns = FileColumns.of(schema, units)
    nulls = pa.table({"n": pa.array([None, 1, 5], pa.int32())})
    assert cast_columns("f", nulls, columns)["n"].to_pylist() == [7, 1, 5]
    assert cast_columns("f", nulls, columns)["at"].cast(pa.int64()).to_pylist() == [1000] * 3
    missing = pa.table({"other": [1]})
    assert cast_columns("f", missing, columns)["n"].to_pylist() == [7]
    assert columns.needed == []


def test_nanoseconds_before_1970_are_rounded_down() -> None:
    schema = Schema(NestedField(1, "x", TimestamptzType()))
    found = cast_columns(
        "a.parquet", pa.table({"x": pa.array([-1, -1000, 1999], pa.timestamp("ns", "UTC"))}), FileColumns.of(schema, {})
    )
    assert found["x"].cast(pa.int64()).to_pylist() == [-1, -1, 1]


def test_nested_nanoseconds_before_1970_are_rounded_down() -> None:
    times, nanos = ListType(2, TimestamptzType(), element_required=False), pa.timestamp("ns", "UTC")
    schema = Schema(NestedField(1, "x", StructType(NestedField(3, "many", times))))
    arrays = pa.array([{"many": [-1, None, 1999]}, None, {"many": [-1000]}], pa.struct({"many": pa.list_(nanos)}))
    found = cast_columns(
        "a.parquet", pa.table({"x": pa.chunked_array([arrays, arrays[1:]])}), FileColumns.of(schema, {})
    )
    micros = found["x"].cast(pa.struct({"many": pa.list_(pa.int64())})).to_pylist()
    assert micros == [{"many": [-1, None, 1]}, None, {"many": [-1]}, None, {"many": [-1]}]
