"""All formats have the same rules, except for the differences in the table."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any, Literal

import fastavro
import numpy as np
import pytest
from pyiceberg import types as t
from pyiceberg.schema import Schema
from pyiceberg.table.update.schema import UpdateSchema

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.schema_drift import MAX_NESTING, find_new_fields

FORMATS = ("json", "debezium", "csv", "avro", "protobuf", "string")
ID = t.NestedField(9, "id", t.LongType(), required=True)
"""The key of an envelope's row."""

Record = tuple[Mapping[str, Any] | str, bytes | None]
"""A format as it is declared, and a record's value."""


def of_json(text: str) -> Record:
    return "json", text.encode("utf-8", "surrogateescape")


def of_debezium(text: str) -> Record:
    """An event whose row has the fields of this object."""
    after = f'{{"id": 1, {text.strip().removeprefix("{")}'.replace(", }", "}")
    event = f'{{"op": "c", "after": {after}}}'
    return {"type": "json", "envelope": {}}, event.encode("utf-8", "surrogateescape")


def of_csv(line: bytes) -> Record:
    return {"type": "csv", "columns": ["x"]}, line


def of_string(value: bytes | None) -> Record:
    return {"type": "string", "column": "x"}, value


def of_avro(kind: Any, value: Any = None, *, raw: bytes | None = None) -> Record:
    """A record whose one field is a value, or these bytes."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    if raw is None:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), {"x": value})
        raw = out.getvalue()
    return {"type": "avro", "schema-text": json.dumps(schema)}, raw


def of_protobuf(kind: str, raw: bytes | None, more: str = "") -> Record:
    text = f'syntax = "proto3"; message R {{ {kind} x = 1; }} {more}'
    return {"type": "protobuf", "message": "R", "schema-text": text}, raw


def varint(number: int) -> bytes:
    found, number = [], number & 2**64 - 1
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return b"\x08" + bytes([*found, number])


def double(number: float) -> bytes:
    return b"\x09" + np.float64(number).tobytes()


def text(value: bytes) -> bytes:
    return b"\x0a" + bytes([len(value)]) + value


def in_json(value: str) -> dict[str, Record]:
    return {"json": of_json(f'{{"x": {value}}}'), "debezium": of_debezium(f'{{"x": {value}}}')}


def outcome(record: Record, column: t.NestedField, units: Mapping[int, str] | None = None) -> Any:
    """The column's value, or the class of the dead letter; `skipped` if the record is neither."""
    plain, value = record
    fields = [column] if isinstance(plain, str) or "envelope" not in plain else [ID, column]
    decoded = create_decoder(plain, Schema(*fields), units or {})(RecordChunk.of_values([value]))
    if decoded.rejections:
        return decoded.rejections[0].error_class
    found = decoded.rows.column(column.name).to_pylist()
    return found[0] if found else "skipped"


def optional(kind: t.IcebergType) -> t.NestedField:
    return t.NestedField(1, "x", kind, required=False)


def required(kind: t.IcebergType) -> t.NestedField:
    return t.NestedField(1, "x", kind, required=True)


STRING, INT, LONG = t.StringType(), t.IntegerType(), t.LongType()
MAP = t.MapType(10, STRING, 11, INT, value_required=False)
A_STRUCT = t.StructType(t.NestedField(20, "a", INT, required=True))
AN_A = [{"name": "a", "type": ["null", "int"]}]
NULLS = {"type": "array", "items": ["null", "int"]}
INTS = {"type": "map", "values": "int"}
ONE_THOUSANDTH = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 3}
OWN = {"type": "record", "name": "P", "fields": AN_A}

UPPER = {"type": "record", "name": "R", "fields": [{"name": "X", "type": "long"}]}

RULES: list[tuple[str, t.NestedField, dict[str, Record], Any, dict[str, Any]]] = [
    (
        "no value at all",
        optional(STRING),
        {
            "json": ("json", None),
            "debezium": (of_debezium("{}")[0], None),
            "csv": of_csv(None),  # type: ignore[arg-type]
            "avro": (of_avro("string", "a")[0], None),
            "protobuf": of_protobuf("string", None),
            "string": of_string(None),
        },
        "Tombstone",
        {"debezium": "skipped", "string": None},  # its delete came before it; the whole value is the column
    ),
    (
        "an empty value",
        optional(STRING),
        {
            "json": of_json(""),
            "debezium": (of_debezium("{}")[0], b""),
            "csv": of_csv(b""),
            "avro": (of_avro("string", "a")[0], b""),
            "protobuf": of_protobuf("string", b""),
            "string": of_string(b""),
        },
        "Empty",
        {"protobuf": "", "string": ""},  # a message without fields has no bytes, and an empty text is one
    ),
    (
        "invalid UTF-8",
        optional(STRING),
        {
            **in_json('"\udcff"'),
            "csv": of_csv(b"\xff"),
            "avro": of_avro("string", raw=b"\x02\xff"),
            "protobuf": of_protobuf("string", text(b"\xff")),
            "string": of_string(b"\xff"),
        },
        "InvalidUtf8",
        {},
    ),
    (
        "half of a surrogate pair in UTF-8",
        optional(STRING),
        {
            **in_json('"\udced\udca0\udc80"'),
            "csv": of_csv(b"\xed\xa0\x80"),
            "avro": of_avro("string", raw=b"\x06\xed\xa0\x80"),
            "protobuf": of_protobuf("string", text(b"\xed\xa0\x80")),
            "string": of_string(b"\xed\xa0\x80"),
        },
        "InvalidUtf8",
        {},
    ),
    (
        "the character of code 0",
        optional(STRING),
        {
            **in_json('"\\u0000"'),
            "csv": of_csv(b"\0"),
            "avro": of_avro("string", "\0"),
            "protobuf": of_protobuf("string", text(b"\0")),
            "string": of_string(b"\0"),
        },
        "\0",
        {},
    ),
    (
        "a whole number beyond int",
        optional(INT),
        {
            **in_json("2147483648"),
            "csv": of_csv(b"2147483648"),
            "avro": of_avro("long", 2**31),
            "protobuf": of_protobuf("int64", varint(2**31)),
        },
        "OutOfRange",
        {},
    ),
    (
        "a whole number beyond long",
        optional(LONG),
        {
            **in_json("9223372036854775808"),
            "csv": of_csv(b"9223372036854775808"),
            "protobuf": of_protobuf("uint64", varint(2**63)),
        },
        "OutOfRange",
        {},
    ),
    (
        "a number beyond float",
        optional(t.FloatType()),
        {
            **in_json("3.5e38"),
            "csv": of_csv(b"3.5e38"),
            "avro": of_avro("double", 3.5e38),
            "protobuf": of_protobuf("double", double(3.5e38)),
        },
        "OutOfRange",
        {},
    ),
    (
        "a number beyond double",
        optional(t.DoubleType()),
        {**in_json("1e400"), "csv": of_csv(b"1e400")},
        "OutOfRange",
        {},
    ),
    (
        "an infinite number in float",
        optional(t.FloatType()),
        {
            **in_json("-Infinity"),
            "csv": of_csv(b"-Infinity"),
            "avro": of_avro("double", float("-inf")),
            "protobuf": of_protobuf("double", double(float("-inf"))),
        },
        float("-inf"),
        {},
    ),
    (
        "a number with a fraction for a whole one",
        optional(INT),
        {
            **in_json("1.0"),
            "csv": of_csv(b"1.0"),
            "avro": of_avro("double", 1.0),
            "protobuf": of_protobuf("double", double(1.0)),
        },
        "TypeMismatch",
        {},
    ),
    (
        "a decimal with too many digits",
        optional(t.DecimalType(5, 2)),
        {
            **in_json("1000"),
            "csv": of_csv(b"1000"),
            "avro": of_avro("long", 1000),
            "protobuf": of_protobuf("int64", varint(1000)),
        },
        "OutOfRange",
        {},
    ),
    (
        "a decimal that would be rounded",
        optional(t.DecimalType(5, 2)),
        {**in_json("1.234"), "csv": of_csv(b"1.234"), "avro": of_avro(ONE_THOUSANDTH, raw=b"\x04\x04\xd2")},
        "TypeMismatch",
        {},
    ),
    (
        "a required value that is missing",
        required(STRING),
        {
            "json": of_json("{}"),
            "csv": ({"type": "csv", "columns": ["x", "other"]}, b",1"),
            "avro": of_avro(["null", "string"], None),
            "protobuf": of_protobuf("optional string", b""),
            "string": of_string(None),
        },
        "MissingRequired",
        {},
    ),
    (
        "a required value that is missing within a struct",
        optional(A_STRUCT),
        {
            **in_json("{}"),
            "avro": of_avro(OWN, {"a": None}),
            "protobuf": of_protobuf("P", text(b""), "message P { optional int32 a = 1; }"),
        },
        "MissingRequired",
        {},
    ),
    (
        "null in a list that has none",
        optional(t.ListType(10, INT, element_required=True)),
        {**in_json("[null]"), "avro": of_avro(NULLS, [None])},
        "MissingRequired",
        {},
    ),
    (
        "null in a map",
        optional(MAP),
        {**in_json('{"a": null}'), "avro": of_avro({"type": "map", "values": ["null", "int"]}, {"a": None})},
        [("a", None)],
        {},
    ),
    (
        "an empty key in a map",
        optional(MAP),
        {
            **in_json('{"": 1}'),
            "avro": of_avro(INTS, {"": 1}),
            "protobuf": of_protobuf("map<string, int32>", text(b"\x10\x01")),
        },
        [("", 1)],
        {},
    ),
    (
        "a field that is given twice",
        optional(LONG),
        {
            "json": of_json('{"x": 1, "x": 2}'),
            "debezium": of_debezium('{"x": 1, "x": 2}'),
            "protobuf": of_protobuf("int64", b"\x08\x01\x08\x02"),
        },
        "TypeMismatch",
        {"protobuf": 2},  # its specification says that the last one counts
    ),
    (
        "a key that a map has twice",
        optional(MAP),
        {
            **in_json('{"a": 1, "a": 2}'),
            "avro": of_avro(INTS, raw=b"\x04\x02a\x02\x02a\x04\x00"),
            "protobuf": of_protobuf("map<string, int32>", text(b"\x0a\x01a") * 2),
        },
        "TypeMismatch",
        {},
    ),
    (
        "a field that is no column",
        optional(LONG),
        {
            "json": of_json('{"x": 1, "other": [{"x": "a"}]}'),
            "debezium": of_debezium('{"x": 1, "other": [{"x": "a"}]}'),
            "csv": of_csv(b"1,2"),
            "avro": (
                {"type": "avro", "schema-text": json.dumps({"type": "record", "name": "R", "fields": [
                    {"name": "other", "type": "string"}, {"name": "x", "type": "long"}]})},
                b"\x02a\x02",
            ),
            "protobuf": of_protobuf("int64", b"\x08\x01" + b"\x12\x01a"),
        },
        1,
        {"csv": "WrongFieldCount"},  # which of its fields is which, only their count says
    ),
    (
        "a name in other case",
        optional(LONG),
        {
            "json": of_json('{"X": 1}'),
            "debezium": of_debezium('{"X": 1}'),
            "avro": ({"type": "avro", "schema-text": json.dumps(UPPER)}, b"\x02"),
            "protobuf": (
                {"type": "protobuf", "schema-text": 'syntax = "proto3"; message R { int64 X = 1; }'},
                b"\x08\x01",
            ),
        },
        None,
        {},
    ),
    (
        "bytes of another length than the column's",
        optional(t.FixedType(2)),
        {
            **in_json('"AA=="'),
            "csv": of_csv(b"AA=="),
            "avro": of_avro("bytes", b"a"),
            "protobuf": of_protobuf("bytes", text(b"a")),
        },
        "TypeMismatch",
        {},
    ),
    (
        "a text that is no UUID",
        optional(t.UUIDType()),
        {
            **in_json('"a"'),
            "csv": of_csv(b"a"),
            "avro": of_avro("string", "a"),
            "protobuf": of_protobuf("string", text(b"a")),
        },
        "TypeMismatch",
        {},
    ),
    (
        "a number for a boolean",
        optional(t.BooleanType()),
        {
            **in_json("1"),
            "csv": of_csv(b"1"),
            "avro": of_avro("int", 1),
            "protobuf": of_protobuf("int32", b"\x08\x01"),
        },
        "TypeMismatch",
        {"csv": True},  # whose fields have no types: 1 is one of the words for true
    ),
    (
        "a text that is a day",
        optional(t.DateType()),
        {
            **in_json('"2026-02-28"'),
            "csv": of_csv(b"2026-02-28"),
            "avro": of_avro("string", "2026-02-28"),
            "protobuf": of_protobuf("string", text(b"2026-02-28")),
        },
        date(2026, 2, 28),
        {"debezium": "TypeMismatch"},  # its connectors write days as numbers, but with times: iso
    ),
    (
        "a text that is a moment of another zone",
        optional(t.TimestamptzType()),
        {
            **in_json('"2026-02-28T01:02:03.000004+01:00"'),
            "csv": of_csv(b"2026-02-28T01:02:03.000004+01:00"),
            "avro": of_avro("string", "2026-02-28T01:02:03.000004+01:00"),
            "protobuf": of_protobuf("string", text(b"2026-02-28T01:02:03.000004+01:00")),
        },
        datetime(2026, 2, 28, 0, 2, 3, 4, tzinfo=UTC),
        {},
    ),
    (
        "a day that no month has",
        optional(t.DateType()),
        {**in_json('"2026-02-30"'), "csv": of_csv(b"2026-02-30"), "avro": of_avro("string", "2026-02-30"),
         "protobuf": of_protobuf("string", text(b"2026-02-30"))},
        "TypeMismatch",
        {},
    ),
]  # fmt: skip
"""What is ruled on, the column, a record of each format that can have it, and what it becomes: in all, or in some."""


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("column", "records", "becomes", "but"), [rule[1:] for rule in RULES], ids=[r[0] for r in RULES]
)
def test_a_column_rule_gives_the_same_result_in_each_format(
    form: str, column: t.NestedField, records: Mapping[str, Record], becomes: Any, but: Mapping[str, Any]
) -> None:
    if form not in records:
        assert form in {"csv", "avro", "protobuf", "string", "debezium"}, "which cannot have it"
        return
    assert outcome(records[form], column) == but.get(form, becomes)
    assert set(but) <= set(records)
    assert but.get(form, becomes) == becomes or form in but


def nested(depth: int) -> str:
    return '{"x": ' * depth + "1" + "}" * depth


MALFORMED: dict[str, tuple[Record, Record]] = {
    "InvalidJson": (of_json('{"x": 1'), of_json('{"x": 1} 2')),
    "InvalidCsv": (of_csv(b'"1'), of_csv(b"1\n2")),
    "InvalidAvro": (of_avro("long", raw=b"\x80"), of_avro("long", raw=b"\x02\x02")),
    "InvalidProtobuf": (of_protobuf("int64", b"\x08\x80"), of_protobuf("int64", b"\x08\x01\x00")),
}


@pytest.mark.parametrize(("error_class", "records"), MALFORMED.items(), ids=MALFORMED)
def test_a_truncated_record_or_one_with_trailing_bytes_is_rejected(error_class: str, records: Sequence[Record]) -> None:
    assert [outcome(record, optional(LONG)) for record in records] == [error_class] * 2


NODE = {"type": "record", "name": "Node", "fields": [{"name": "x", "type": ["null", "Node"]}]}
DEPTHS: dict[str, tuple[int, Callable[[int], Record]]] = {
    "json": (500, lambda depth: of_json(nested(depth))),
    "debezium": (500, lambda depth: of_debezium(f'{{"other": {nested(depth - 2)}}}')),
    "avro": (500, lambda depth: ({"type": "avro", "schema-text": json.dumps(NODE)}, b"\x02" * (depth - 1) + b"\x00")),
}
"""Formats but Protobuf, which passes over what no column wants by its length, unread."""


def _messages(depth: int) -> bytes:
    found = b""
    for _ in range(depth):
        size, rest = len(found), []
        while size > 127:
            rest.append(size & 127 | 128)
            size >>= 7
        found = b"\x0a" + bytes([*rest, size]) + found
    return found


@pytest.mark.parametrize("form", DEPTHS)
def test_a_too_deeply_nested_record_is_a_dead_letter_even_if_no_column_reads_it(form: str) -> None:
    limit, made = DEPTHS[form]
    column = t.NestedField(1, "y", LONG, required=False)
    assert [outcome(made(depth), column) for depth in (limit, limit + 1)] == [None, "TooDeep"]


NODES: dict[str, Record] = {
    "avro": (
        {"type": "avro", "schema-text": json.dumps(
            {"type": "record", "name": "Node", "fields": [
                {"name": "name", "type": "string"}, {"name": "next", "type": ["null", "Node"]},
                {"name": "all", "type": {"type": "array", "items": "Node"}},
                {"name": "by", "type": {"type": "map", "values": "Node"}}, {"name": "size", "type": "long"},
                {"name": "pair", "type": ["null", {"type": "record", "name": "Pair", "fields": [
                    {"name": "first", "type": ["null", "Node"]}, {"name": "size", "type": "long"}]}]}]})},
        b"\x02a\x02\x02b\x00\x00\x00\x02\x00\x00\x00\x02\x00",
    ),
    "protobuf": (
        {"type": "protobuf", "schema-text": 'syntax = "proto3"; message Node { string name = 1; Node next = 2; '
         'repeated Node all = 3; map<string, Node> by = 4; int64 size = 5; Pair pair = 6; } '
         'message Pair { Node first = 1; int64 size = 2; }', "message": "Node"},
        b"\x0a\x01a\x12\x05\x0a\x01b\x28\x01",
    ),
}  # fmt: skip


def evolved(record: Record, schema: Schema, batches: int, mode: Literal["additive", "full"] = "additive") -> Schema:
    """The table's schema after that many batches with the record."""
    plain, value = record
    for _ in range(batches):
        decoded = create_decoder(plain, schema, {}, mode)(RecordChunk.of_values([value]))
        assert not decoded.rejections
        unpartitioned: Any = SimpleNamespace(table_metadata=SimpleNamespace(partition_specs=(), schemas=(schema,)))
        update = UpdateSchema(unpartitioned, schema=schema)
        for new in find_new_fields(decoded.drift):
            if new.type:
                update.add_column(new.path, new.type)
        schema = update._apply()
    return schema


@pytest.mark.parametrize("record", NODES.values(), ids=NODES)
def test_a_recursive_type_does_not_become_a_column(record: Record) -> None:
    schema = Schema(t.NestedField(1, "name", STRING, required=False))
    assert {*evolved(record, schema, 3).column_names} == {"name", "size", "pair", "pair.size"}


@pytest.mark.parametrize("record", NODES.values(), ids=NODES)
def test_a_declared_column_of_a_recursive_type_evolves_like_any_other(record: Record) -> None:
    size = t.NestedField(1, "size", INT, required=False)
    within = t.StructType(size.model_copy(update={"field_id": 3}))
    schema = Schema(size, t.NestedField(2, "next", within, required=False))
    nested = {"next.name", "next.size", "next.pair", "next.pair.size", "pair.size"}
    assert {*evolved(record, schema, 3).column_names} == {"name", "size", "next", "pair", *nested}
    plain, value = record
    decoded = create_decoder(plain, schema, {}, "full")(RecordChunk.of_values([value]))
    assert decoded.drift.wider == {("size",): "long", ("next", "size"): "long"}


def _deep_avro(depth: int) -> Any:
    kind: Any = "long"
    for number in range(depth, 0, -1):
        fields = [{"name": "v", "type": "long"}, {"name": "x", "type": kind}]
        kind = {"type": "record", "name": f"R{number}", "fields": fields}
    return kind


def _deep_protobuf(depth: int) -> str:
    inner = "".join(f"message M{n} {{ int64 v = 2; M{n + 1} x = 1; }} " for n in range(1, depth))
    return f"{inner}message M{depth} {{ int64 x = 1; }}"


DEEP: dict[str, Record] = {
    "json": of_json('{"v": 1, "x": ' * 60 + "1" + "}" * 60),
    "debezium": of_debezium('{"v": 1, "x": ' * 60 + "1" + "}" * 60),
    "avro": of_avro(_deep_avro(60), raw=b"\x02" * 61),
    "protobuf": of_protobuf("M1", _messages(59), _deep_protobuf(60)),
}


@pytest.mark.parametrize("form", DEEP)
def test_columns_of_records_are_never_nested_deeper_than_engines_take(form: str) -> None:
    fields = [ID] if form == "debezium" else [t.NestedField(1, "y", LONG, required=False)]
    schema = evolved(DEEP[form], Schema(*fields), 5)
    assert MAX_NESTING - 1 <= max(name.count(".") for name in schema.column_names) <= MAX_NESTING


@pytest.mark.parametrize(
    ("record", "unit"),
    [
        *((record, "iso") for record in in_json('"1969-12-31T23:59:59.999999999Z"').values()),
        (of_csv(b"1969-12-31T23:59:59.999999999Z"), "iso"),
        (of_avro("string", "1969-12-31T23:59:59.999999999Z"), "iso"),
        (of_avro({"type": "long", "logicalType": "timestamp-nanos"}, raw=b"\x01"), "iso"),
        (of_protobuf("string", text(b"1969-12-31T23:59:59.999999999Z")), "iso"),
        *((record, "ns") for record in in_json("-1").values()),
        (of_csv(b"-1"), "ns"),
        (of_avro("long", -1), "ns"),
        (of_protobuf("int64", varint(-1)), "ns"),
        (of_json('{"x": -0.000000001}'), "s"),
        (of_json('{"x": "-0.0000010"}'), "s"),
        (of_json('{"x": -1e-9}'), "s"),
    ],
)
def test_a_time_before_1970_is_rounded_down_in_all_formats(record: Record, unit: str) -> None:
    """See apache/iceberg#18115: rounded toward zero, it would be in another year than the same time as text."""
    found = outcome(record, optional(t.TimestamptzType()), {} if unit == "iso" else {1: unit})
    assert found == datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
