"""A record's key and headers as columns of its row."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, LongType, NestedField, StringType

from frazil.ingest.chunk import BinaryColumn, RecordChunk, pack_headers, unpack_headers
from frazil.ingest.formats import create_decoder
from frazil.ingest.key_header_columns import KeyHeaderReader, value_schema

SCHEMA = Schema(
    NestedField(1, "user", StringType(), required=True),
    NestedField(2, "id", LongType(), required=True),
    NestedField(3, "trace", StringType()),
    NestedField(4, "raw", BinaryType()),
)
BESIDE = {"user": None, "trace": "trace-id", "raw": "raw"}
DECODE = create_decoder("json", value_schema(SCHEMA, BESIDE), {})

BYTES = st.none() | st.binary(max_size=6) | st.text(max_size=6).map(str.encode)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from([b'{"id":1}', b'{"id":2,"user":"not from here"}', b"{", None]),
        BYTES,
        st.lists(st.tuples(st.sampled_from(["trace-id", "raw", "other"]), BYTES), max_size=4),
    ),
    max_size=12,
)


def chunk_of(records: list[Any], *, with_headers: bool = True) -> RecordChunk:
    values, keys, headers = zip(*records, strict=True) if records else ((), (), ())
    column = BinaryColumn.of([pack_headers(found) for found in headers]) if with_headers else None
    return dataclasses.replace(RecordChunk.of_values(values), keys=BinaryColumn.of(keys), headers=column)


def is_text(value: bytes | None) -> bool:
    return value is None or value.decode(errors="ignore").encode() == value


@given(RECORDS)
def test_each_record_is_a_row_with_its_own_key_and_headers_or_one_rejection(records: list[Any]) -> None:
    chunk = chunk_of(records)
    found = KeyHeaderReader(SCHEMA, BESIDE)(DECODE(chunk), chunk)
    rejected = {r.index: r.error_class for r in found.rejections}
    assert len(rejected) == len(found.rejections)
    assert sorted([*rejected, *found.record_indexes.tolist()]) == [*range(len(records))]
    rows = dict(zip(found.record_indexes.tolist(), found.rows.to_pylist(), strict=True))
    for i, (value, key, sent) in enumerate(records):
        headers = dict(sent)
        valid = key is not None and is_text(key) and is_text(headers.get("trace-id"))
        assert (i in rows) == (valid and value not in {b"{", None})
        if i in rows:
            assert rows[i]["user"].encode() == key
            assert rows[i]["raw"] == headers.get("raw")
            assert (rows[i]["trace"] or "").encode() == (headers.get("trace-id") or b"")
            assert (rows[i]["trace"] is None) == (headers.get("trace-id") is None)


def test_the_row_has_the_schemas_order_and_field_ids() -> None:
    chunk = chunk_of([(b'{"id":1}', b"k", [])], with_headers=False)
    rows = KeyHeaderReader(SCHEMA, BESIDE)(DECODE(chunk), chunk).rows
    assert rows.to_pylist() == [{"user": "k", "id": 1, "trace": None, "raw": None}]
    assert [int(field.metadata[b"PARQUET:field_id"]) for field in rows.schema] == [1, 2, 3, 4]


def test_an_invalid_key_or_header_is_reported() -> None:
    chunk = chunk_of([(b'{"id":1}', None, []), (b'{"id":1}', b"a", [("trace-id", b"ab\xff")])])
    found = KeyHeaderReader(SCHEMA, BESIDE)(DECODE(chunk), chunk)
    assert [(r.error_class, r.error) for r in found.rejections] == [
        ("MissingRequired", "user: required, and the record has no key"),
        (
            "InvalidUtf8",
            "trace: the header trace-id is not UTF-8 (byte 2): write UTF-8, or make the column binary",
        ),
    ]


@given(st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=5))
def test_packed_headers_are_unpacked(headers: list[tuple[str, bytes | None]]) -> None:
    assert unpack_headers(pack_headers(headers)) == headers


def test_a_slice_of_a_chunk_has_its_headers() -> None:
    chunk = chunk_of([(b"{}", None, [("a", b"%d" % i)]) for i in range(5)])
    piece = chunk.slice(3, 5)
    assert piece.headers is not None
    assert [unpack_headers(found) for found in piece.headers] == [[("a", b"3")], [("a", b"4")]]
    assert chunk_of([(b"{}", None, [])], with_headers=False).slice(0, 1).headers is None
    assert np.array_equal(piece.offsets, [3, 4])
