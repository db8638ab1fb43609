"""The encodings of a file's columns, and that written files can be read."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.ingest.parquet import choose_encodings

RANDOM = np.random.default_rng(7)
ROWS = 10_000
NUMBERS = np.arange(ROWS)


def times(values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(1_767_225_600_000_000 + values, pa.timestamp("us", "UTC"))


def written(rows: pa.Table, *, modern: bool = True) -> pq.ParquetFile:
    chosen = choose_encodings(rows, allows_v2=modern)
    out = io.BytesIO()
    with pq.ParquetWriter(
        out,
        rows.schema,
        use_dictionary=chosen.use_dictionary,
        column_encoding=chosen.column_encoding or None,
        write_batch_size=chosen.batch_values,
    ) as writer:
        writer.write_table(rows)
    return pq.ParquetFile(io.BytesIO(out.getvalue()))


def encoding_of(values: pa.Array, *, modern: bool = True) -> set[str]:
    """The encodings of the one column with values, lengths and levels apart."""
    file = written(pa.table({"c": values}), modern=modern)
    found = {e for i in range(file.metadata.num_columns) for e in file.metadata.row_group(0).column(i).encodings}
    return found - {"RLE"}


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        (pa.array(NUMBERS), {"DELTA_BINARY_PACKED"}),
        (pa.array(NUMBERS, pa.int32()), {"DELTA_BINARY_PACKED"}),
        (times(NUMBERS * 1000), {"DELTA_BINARY_PACKED"}),
        (pa.array(RANDOM.random(ROWS)), {"BYTE_STREAM_SPLIT"}),
        (pa.array(RANDOM.random(ROWS), pa.float32()), {"BYTE_STREAM_SPLIT"}),
        (pa.array(RANDOM.integers(0, 5, ROWS) * 10**15), {"PLAIN", "RLE_DICTIONARY"}),
        (pa.array(np.repeat(RANDOM.integers(0, 10**9, ROWS // 100), 100)), {"PLAIN", "RLE_DICTIONARY"}),
        (pa.array(RANDOM.integers(0, 9, ROWS) / 8), {"PLAIN", "RLE_DICTIONARY"}),
        (pa.array(RANDOM.integers(0, 9, ROWS).astype(str)), {"PLAIN", "RLE_DICTIONARY"}),
        (pa.nulls(ROWS, pa.int64()), {"PLAIN", "RLE_DICTIONARY"}),
    ],
    ids=[
        "numbers that count up",
        "ints that count up",
        "times",
        "doubles",
        "floats",
        "few numbers far apart",
        "runs",
        "few doubles",
        "text",
        "nulls",
    ],
)
def test_a_columns_encoding_is_chosen_by_its_values(values: pa.Array, encoding: set[str]) -> None:
    assert encoding_of(values) == encoding


@pytest.mark.parametrize("values", [NUMBERS, RANDOM.random(ROWS)])
def test_old_readers_get_plain_values(values: np.ndarray[Any, Any]) -> None:
    assert encoding_of(pa.array(values), modern=False) == {"PLAIN"}


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([pa.field("inner", pa.struct([pa.field("number", pa.int64())]))]),
        pa.list_(pa.field("element", pa.int64())),
        pa.large_list(pa.field("element", pa.int64())),
        pa.map_(pa.int64(), pa.int64()),
    ],
    ids=str,
)
def test_columns_inside_others_are_found(kind: pa.DataType) -> None:
    def value(number: int) -> Any:
        if pa.types.is_struct(kind):
            return {"inner": {"number": number}}
        return [(number, 2 * number)] if pa.types.is_map(kind) else [number, number + 1]

    values = pa.array([value(n) if n % 7 else None for n in range(ROWS)], kind)
    assert encoding_of(values) == {"DELTA_BINARY_PACKED"}


INTEGERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))


@given(
    st.lists(st.one_of(st.none(), INTEGERS)),
    st.lists(st.one_of(st.none(), st.floats())),
    st.booleans(),
)
def test_written_values_are_read_back_unchanged(
    integers: list[int | None], doubles: list[float | None], modern: bool
) -> None:
    rows = max(len(integers), len(doubles))
    table = pa.table(
        {
            "integer": pa.array(integers + [None] * (rows - len(integers)), pa.int64()),
            "double": pa.array(doubles + [None] * (rows - len(doubles)), pa.float64()),
        }
    )
    read = written(table, modern=modern).read()
    assert read["integer"] == table["integer"]
    bits = [column["double"].combine_chunks().view(pa.int64()) for column in (read, table)]
    assert bits[0] == bits[1]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.list_(pa.string())])
def test_a_parquet_write_batch_of_large_values_holds_about_one_page(kind: pa.DataType) -> None:
    text = "frazil " * 14_000
    values = pa.array([[text] if pa.types.is_list(kind) else text] * 50, kind)
    assert choose_encodings(pa.table({"c": values}), allows_v2=True).batch_values == 2**20 // (len(text) + 4)


LARGE = """
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import NestedField, StringType
from frazil.ingest.contract import TargetTable
from frazil.ingest.parquet import choose_encodings
from frazil.ingest.parquet import FileLayout, ParquetFile

parts = (Schema(NestedField(1, "c", StringType())), PartitionSpec(), SortOrder())
layout = FileLayout.of(TargetTable(*(part.model_dump_json() for part in parts), {}, "nowhere", 2**27), "main")
texts = [f"{number:08}" + "frazil " * 14_000 for number in range(200)]
rows = pa.table([pa.array(texts, layout.arrow_schema.field("c").type)], schema=layout.arrow_schema)
file = ParquetFile(None, "nowhere", layout, (), encodings=choose_encodings(rows, allows_v2=True))
file.write(rows)
print(pa.default_memory_pool().max_memory() - rows.nbytes)
"""


def test_large_values_are_encoded_in_little_memory() -> None:
    shown = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True).stdout
    assert int(shown) < 16 * 2**20


def test_small_values_are_encoded_in_batches_of_the_usual_length() -> None:
    assert choose_encodings(pa.table({"c": ["a"] * 10, "n": range(10)}), allows_v2=True).batch_values == 1_024
    assert choose_encodings(pa.table({"c": pa.array([], pa.string())}), allows_v2=True).batch_values == 1_024


def test_encodings_are_chosen_for_a_file_whose_uuid_lists_are_all_null() -> None:
    kind = pa.large_list(pa.struct([pa.field("id", pa.uuid())]))

    found = choose_encodings(pa.table({"ids": pa.nulls(2, kind)}), allows_v2=True)

    assert found.use_dictionary == ["ids.list.item.id"]
