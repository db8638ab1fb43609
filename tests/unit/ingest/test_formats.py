"""Formats without a schema registry, and framed JSON."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats import create_decoder
from frazil.spec.formats import dump_format, parse_format

SCHEMA = Schema(NestedField(1, "s", StringType()), NestedField(2, "l", LongType()))
FRAMED = {"type": "json", "framing": "confluent"}


@pytest.mark.parametrize(
    "plain",
    [
        "json",
        FRAMED,
        "string",
        {"type": "csv", "delimiter": ";", "quote": None},
        {"type": "avro", "registry": {"url": "http://r", "timeout": "3s"}},
        {"type": "protobuf", "schema-text": "message M {}", "message": "M", "framing": "confluent"},
    ],
)
def test_a_format_is_sent_to_executors_as_plain_values(plain: object) -> None:
    assert dump_format(parse_format(plain)) == plain  # type: ignore[arg-type]


def test_json_after_a_schema_id_is_decoded_and_unframed_values_are_dead_letters() -> None:
    values = [b'\0\0\0\0\7{"s":"x","l":1}', None, b'{"l":2}', b"\0\0\0\0\7", b"\0\0", b'\0\0\0\0\10{"l":3}']
    decoded = create_decoder(FRAMED, SCHEMA, {})(RecordChunk.of_values(values))
    rows = dict(zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True))
    assert rows == {0: {"s": "x", "l": 1}, 5: {"s": None, "l": 3}}
    assert {r.index: r.error_class for r in decoded.rejections} == {
        1: "Tombstone",
        2: "NotFramed",
        3: "Empty",
        4: "NotFramed",
    }
    assert "declare framing: none" in next(r.error for r in decoded.rejections if r.index == 2)
