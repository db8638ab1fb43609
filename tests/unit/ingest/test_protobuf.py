"""Protobuf behind schema ids and message indexes: a record's message type, and the error for invalid bytes."""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from pyiceberg import types as t
from pyiceberg.schema import Schema

from frazil.errors import SpecError
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import check_supported, create_decoder
from frazil.ingest.formats.protobuf.decoder import ProtobufDecoder
from frazil.ingest.formats.protobuf.schema import UnreadableSchema, message_of
from frazil.ingest.schema_drift import MIXED, ListOf, MapOf, StructOf
from frazil.registry.client import SchemaText, UnknownSchema
from frazil.spec.formats import ProtobufFormat, dump_portable_format

LONG = t.LongType()
COLUMNS = Schema(t.NestedField(1, "s", t.StringType(), required=True), t.NestedField(2, "l", t.LongType()))
TEXT = """
syntax = "proto3";
package a.b;  // a comment
import "other.proto";
option java_package = "x";
message First { string s = 1; reserved 5, 7 to max; map<string, int32> m = 3; message In { string s = 2; } }
message Second { oneof o { string s = 1; int64 l = 2; Other other = 3; } }
/* services are passed over */
service S { rpc Get (First) returns (stream Second) { option (x) = { a: "}" }; } }
"""
OTHER = 'syntax = "proto2"; package a.b; message Other { optional int32 x = 1 [default = 5, (opt) = "]"]; }'
SCHEMAS = {7: SchemaText("PROTOBUF", TEXT, (("other.proto", OTHER),)), 8: SchemaText("AVRO", '"string"')}


class Registered:
    def __init__(self, schemas: Mapping[int, SchemaText]) -> None:
        self._schemas = schemas

    def prefetch(self, schema_ids: Sequence[int]) -> None:
        assert all(abs(one) < 2**31 for one in schema_ids)

    def get(self, schema_id: int) -> SchemaText:
        if schema_id not in self._schemas:
            raise UnknownSchema(f"the registry has no schema with id {schema_id}")
        return self._schemas[schema_id]


def framed(schema_id: int, indexes: bytes, content: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + indexes + content


def outcomes(decoded: DecodedChunk) -> dict[int, Any]:
    rows = dict(zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True))
    return rows | {r.index: (r.error_class, r.error) for r in decoded.rejections}


def test_message_indexes_select_the_message_type_of_a_record() -> None:
    values = [
        framed(7, b"\0", b"\n\1a"),
        framed(7, b"\2\0", b"\n\1b"),
        framed(7, b"\2\2", b"\n\1c"),
        framed(7, b"\4\0\0", b"\x12\1d"),  # a map's entries do not count
    ]
    found = outcomes(ProtobufDecoder(COLUMNS, {}, Registered(SCHEMAS))(RecordChunk.of_values(values)))
    assert found[0] == found[1] | {"s": "a"} == {"s": "a", "l": None}
    assert (found[2], found[3]) == ({"s": "c", "l": None}, {"s": "d", "l": None})


def test_an_unreadable_record_is_a_dead_letter_with_the_reason_and_affects_no_neighbour() -> None:
    valid = framed(7, b"\0", b"\n\1a")
    expected: list[tuple[bytes | None, str, str]] = [
        (None, "Tombstone", "no value"),
        (b"", "Empty", "value is empty"),
        (b'{"s":"x"}', "NotFramed", "the value is plain JSON"),
        (b"\0\0\0\0\7", "NotFramed", "does not begin with a zero byte and a schema id"),
        (framed(9, b"\0", b""), "UnknownSchema", "no schema with id 9"),
        (framed(8, b"\0", b""), "UnreadableSchema", "the schema of id 8 is of type AVRO"),
        (framed(7, b"\2\4", b""), "UnreadableSchema", "not define a message at the indexes [2]"),
        (framed(7, b"\2\3", b""), "UnreadableSchema", "not define a message at the indexes [-2]"),
        (framed(7, b"\1", b""), "InvalidProtobuf", "no message indexes"),
        (framed(7, b"\xff\xff", b""), "InvalidProtobuf", "no message indexes"),
        (framed(7, b"\x0c" + b"\0" * 6, b""), "InvalidProtobuf", "more than three"),
        (framed(7, b"\2\2", b"\x10\1"), "MissingRequired", "s: required"),
        (valid[:-1], "InvalidProtobuf", "s: the message ends within this value"),
    ]
    values = [value for one in expected for value in (one[0], valid)]
    found = outcomes(ProtobufDecoder(COLUMNS, {}, Registered(SCHEMAS))(RecordChunk.of_values(values)))
    for i, (value, error_class, text) in enumerate(expected):
        assert found[2 * i][0] == error_class, value
        assert text in found[2 * i][1]
        assert found[2 * i + 1] == {"s": "a", "l": None}


def test_the_last_field_of_a_protobuf_oneof_wins_even_if_no_column_reads_it() -> None:
    columns = Schema(t.NestedField(1, "s", t.StringType()), t.NestedField(2, "l", t.LongType()))
    values = [b"\n\1a\x10\5", b"\x10\5\n\1a", b"\x10\5\x1a\0"]
    schemas = SchemaText("PROTOBUF", TEXT, (("other.proto", OTHER),))
    found = outcomes(
        ProtobufDecoder(columns, {}, schemas, message="a.b.Second", framed=False)(RecordChunk.of_values(values))
    )
    assert found == {0: {"s": None, "l": 5}, 1: {"s": "a", "l": None}, 2: {"s": None, "l": None}}


WIDE = Schema(
    t.NestedField(
        1,
        "n",
        t.ListType(2, t.StructType(*(t.NestedField(i, f"c{i}", t.LongType()) for i in range(3, 300)))),
    )
)


@pytest.mark.parametrize("kind", ["repeated string", "repeated In", "map<int32, int64>"])
@pytest.mark.parametrize("evolution", ["off", "additive", "full"])
def test_a_field_that_does_not_fit_a_map_column_is_a_type_mismatch(kind: str, evolution: Any) -> None:
    columns = Schema(t.NestedField(1, "m", t.MapType(2, t.StringType(), 3, t.LongType())), t.NestedField(4, "n", LONG))
    text = f'syntax = "proto3"; message In {{ int64 x = 1; }} message R {{ {kind} m = 1; int64 n = 2; }}'
    plain = {"type": "protobuf", "schema-text": text, "message": "R"}
    decode = create_decoder(plain, columns, {}, evolution)
    found = outcomes(decode(RecordChunk.of_values([b"\x10\5", b"\n\0\x10\5"])))
    assert found[0] == {"m": None, "n": 5}
    assert found[1][0] == "TypeMismatch"


DEEP = 'syntax = "proto3"; message R { repeated In n = 1; } message In { R r = 1; int64 c3 = 3; }'


@pytest.mark.parametrize(
    ("content", "error_class"),
    [
        (b"\n\xff\xff\xff\xff\x0f", "InvalidProtobuf"),  # 4 GB
        (b"\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "InvalidProtobuf"),
        (b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", "InvalidProtobuf"),  # -1
        (b"\n\0" * 100_000, "TooLarge"),
        (b"\x13" * 100_000, "TooDeep"),
        (b"\x13\x1c", "InvalidProtobuf"),
        (b"\x14", "InvalidProtobuf"),
        (b"\0\0", "InvalidProtobuf"),
        (b"\x0e", "InvalidProtobuf"),
    ],
)
def test_impossible_lengths_in_a_protobuf_record_allocate_little_memory(content: bytes, error_class: str) -> None:
    decode = ProtobufDecoder(WIDE, {}, SchemaText("PROTOBUF", DEEP), message="R", framed=False)
    decode(RecordChunk.of_values([b""]))
    tracemalloc.start()
    try:
        found = outcomes(decode(RecordChunk.of_values([content])))
        _, limit = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found[0][0] == error_class
    assert limit < 64 * 2**20


def test_a_descriptor_is_read_from_a_file_and_from_base64_and_travels_as_text(tmp_path: Path) -> None:
    made = message_of(OTHER).file
    file = descriptor_pb2.FileDescriptorProto.FromString(made.serialized_pb)
    (tmp_path / "x.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    columns = Schema(t.NestedField(1, "x", t.LongType()))
    carried = dump_portable_format(ProtobufFormat(schema_file=str(tmp_path / "x.desc"), message="a.b.Other"))
    single = {"type": "protobuf", "schema-text": base64.b64encode(made.serialized_pb).decode()}
    (tmp_path / "x.desc").unlink()
    for plain in (carried, single):
        assert outcomes(create_decoder(plain, columns, {})(RecordChunk.of_values([b"\x08\2", b""]))) == {
            0: {"x": 2},
            1: {"x": None},
        }
    framing = {**single, "framing": "confluent"}
    found = outcomes(
        create_decoder(framing, columns, {})(RecordChunk.of_values([framed(5, b"\0", b"\x08\2"), b"\x08\2"]))
    )
    assert (found[0], found[1][0]) == ({"x": 2}, "NotFramed")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("message {", "ends within"),
        ('syntax = "proto9";', "not a known syntax"),
        ('import "nowhere.proto"; message R {}', "imports nowhere.proto"),
        ("message R { Nothing x = 1; }", "Nothing"),
        ("message R { int32 a = 1; int32 b = 1; }", "."),
        ("message R {} message Q {}", "set source.format.message to one of them"),
        ("AAAA", "."),
        ("message R { " * 100, "nested too deep"),
    ],
)
def test_an_invalid_schema_is_reported(text: str, why: str) -> None:
    with pytest.raises(UnreadableSchema, match=why):
        message_of(text)
    with pytest.raises(SpecError, match="the declared schema cannot be read"):
        check_supported(COLUMNS, ProtobufFormat(schema_text=text))


def test_new_fields_and_wider_columns_are_seen() -> None:
    text = 'syntax = "proto3"; message R { int64 l = 1; In in = 2; repeated string more = 3; } '
    text += "message In { double x = 1; int32 y = 2; }"
    table = Schema(
        t.NestedField(1, "l", t.IntegerType()),
        t.NestedField(2, "in", t.StructType(t.NestedField(3, "x", t.FloatType()))),
    )
    decode = create_decoder({"type": "protobuf", "schema-text": text, "message": "R"}, table, {}, "full")
    drift = decode(RecordChunk.of_values([b"\x08\1"])).drift
    assert set(drift.new) == {("in", "y"), ("more",)}
    assert drift.wider == {("l",): "long", ("in", "x"): "double"}


def test_each_protobuf_type_has_the_column_type_that_can_hold_it() -> None:
    text = """
    syntax = "proto2";
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    message R {
      optional fixed64 u = 1; optional google.protobuf.Timestamp at = 2; optional google.protobuf.Int64Value w = 3;
      map<string, R> by_name = 4; map<int32, bytes> by_number = 5; repeated E e = 6; optional Empty none = 7;
      optional group G = 8 { optional int32 x = 1; } map<string, int64> known = 9;
    }
    enum E { A = 0; } message Empty { }
    """
    entry = t.StructType(t.NestedField(3, "key", t.StringType()), t.NestedField(4, "value", t.IntegerType()))
    table = Schema(t.NestedField(1, "known", t.ListType(2, entry, False)), t.NestedField(5, "w", t.IntegerType()))
    decode = create_decoder({"type": "protobuf", "schema-text": text, "message": "R"}, table, {}, "full")
    drift = decode(RecordChunk.of_values([b"\x2a\0"])).drift
    assert drift.new == {
        ("u",): "decimal(20, 0)",
        ("at",): "timestamptz",
        ("by_name",): MapOf(MIXED),
        ("by_number",): ListOf(StructOf({"key": "int", "value": "binary"})),
        ("e",): ListOf("string"),
        ("none",): MIXED,
        ("g",): MIXED,
    }
    assert drift.wider == {("known", "element", "value"): "long", ("w",): "long"}


def test_new_and_wider_fields_of_a_wrapper_in_a_struct_are_seen() -> None:
    text = """
    syntax = "proto3";
    import "google/protobuf/wrappers.proto";
    message R { google.protobuf.Int64Value w = 1; repeated google.protobuf.StringValue l = 2; }
    """
    wrapped = t.StructType(t.NestedField(2, "value", t.IntegerType()))
    other = t.StructType(t.NestedField(5, "other", t.IntegerType()))
    table = Schema(t.NestedField(1, "w", wrapped), t.NestedField(3, "l", t.ListType(4, other, False)))
    decode = create_decoder({"type": "protobuf", "schema-text": text}, table, {}, "full")
    decoded = decode(RecordChunk.of_values([b"\x0a\x02\x08\x07"]))
    assert decoded.rows.to_pylist() == [{"w": {"value": 7}, "l": []}]
    assert (decoded.drift.new, decoded.drift.wider) == ({("l", "element", "value"): "string"}, {("w", "value"): "long"})


def test_a_schema_that_cannot_fill_the_table_does_not_affect_other_schemas() -> None:
    lacking = 'syntax = "proto3"; message R { map<string, In> l = 1; } message In { int64 x = 1; }'
    valid = 'syntax = "proto3"; message R { string s = 1; int64 l = 2; }'
    schemas = Registered({1: SchemaText("PROTOBUF", lacking), 2: SchemaText("PROTOBUF", valid)})
    values = [framed(1, b"\0", b""), framed(2, b"\0", b"\n\1a\x10\5")]
    found = outcomes(ProtobufDecoder(COLUMNS, {}, schemas)(RecordChunk.of_values(values)))
    assert found == {
        0: ("MissingRequired", "s: required, and the writer schema's R has no such field"),
        1: {"s": "a", "l": 5},
    }
