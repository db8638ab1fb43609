"""Which encodings a file's columns get, and that what is written is read again."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.ingest.encodings import choose

RANDOM = np.random.default_rng(7)
ROWS = 10_000
NUMBERS = np.arange(ROWS)


def times(values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(1_767_225_600_000_000 + values, pa.timestamp("us", "UTC"))


def written(rows: pa.Table, *, modern: bool = True) -> pq.ParquetFile:
    chosen = choose(rows, modern=modern)
    out = io.BytesIO()
    with pq.ParquetWriter(
        out,
        rows.schema,
        use_dictionary=chosen.use_dictionary,
        column_encoding=chosen.column_encoding or None,
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
def test_the_encoding_suits_the_values(values: pa.Array, encoding: set[str]) -> None:
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
def test_what_was_written_is_read_again(integers: list[int | None], doubles: list[float | None], modern: bool) -> None:
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
