"""Columns with `as: json` keep any value as text: from JSON, Avro, Protobuf and Debezium's events."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from frazil.ingest.changes import change_schema
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.protobuf.schema import message_of
from frazil.spec import iceberg
from frazil.spec.formats import dump_format
from frazil.spec.model import StreamSpec
from frazil.spec.problems import describe

JSON = {"type": "string", "as": "json"}


def declared(schema: dict[str, Any], form: Any = "json", **more: Any) -> dict[str, Any]:
    source = {"topics": "t", "bootstrap-servers": "broker:9092", "format": form, **more.pop("source", {})}
    columns = {**schema, "at": "timestamptz"}
    return {"name": "s", "source": source, "table": "a.b", "schema": columns, "event-time": "at", **more}


def decode(values: Sequence[bytes | None], spec: dict[str, Any]) -> DecodedChunk:
    made = StreamSpec.model_validate(spec, by_alias=True, by_name=False)
    table = iceberg.table_schema(made)
    wanted = change_schema(table, made.key) if made.mode == "upsert" else table
    units = {table.find_field(name).field_id: unit for name, unit in made.units.items()}
    found = create_decoder(dump_format(made.value_format), record_schema(wanted, made.coordinates), units)
    return found(RecordChunk.of_values(values))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.tuples(values, st.sampled_from([None, 1]), st.booleans()), max_size=6))
def test_a_json_column_keeps_the_text_of_any_value(drawn: list[tuple[Any, int | None, bool]]) -> None:
    texts = [json.dumps(value, indent=indent, ensure_ascii=ascii) for value, indent, ascii in drawn]
    texts = [text if text.isascii() or text.encode("utf-8", "ignore").decode() == text else '"x"' for text in texts]
    records = [f'{{"x": {text} , "y": 1}}'.encode() for text in texts]
    decoded = decode(records, declared({"x": JSON, "y": "int"}))
    assert {r.error_class for r in decoded.rejections} <= {"InvalidJson"}  # half of a surrogate pair
    found = dict(zip(decoded.record_indexes.tolist(), decoded.rows["x"].to_pylist(), strict=True))
    for place, kept in found.items():
        assert kept == (None if texts[place] == "null" else texts[place])


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "y", "type": "int"},
        {
            "name": "x",
            "type": [
                "null",
                "string",
                {
                    "type": "record",
                    "name": "In",
                    "fields": [
                        {"name": "i", "type": "long"},
                        {"name": "n", "type": ["null", "int"]},
                        {"name": "f", "type": "float"},
                        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
                        {"name": "b", "type": "bytes"},
                        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
                        {"name": "m", "type": {"type": "map", "values": ["null", {"type": "array", "items": "int"}]}},
                        {"name": "rest", "type": {"type": "array", "items": ["null", "In"]}},
                        {"name": "ok", "type": "boolean"},
                    ],
                },
            ],
        },
        {"name": "z", "type": "string"},
    ],
}
INNER: dict[str, Any] = {
    "i": 2**40, "n": None, "f": 0.1, "d": Decimal("-1.50"), "t": 1_767_259_800_123, "day": 20_454, "b": b"\0\1\2",
    "e": "B", "m": {"é": [1, 2], "k": None}, "rest": [], "ok": True,
}  # fmt: skip
INNER_TEXT = (
    '{"i":1099511627776,"n":null,"f":0.1,"d":-1.50,"t":"2026-01-01T09:30:00.123Z","day":"2026-01-01","b":"AAEC",'
    '"e":"B","m":{"é":[1,2],"k":null},"rest":[],"ok":true}'
)


def avro(value: Any, schema: Any = AVRO) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, _force=True), value)
    return out.getvalue()


def test_avro_keeps_a_value_of_any_type_as_json() -> None:
    form = {"type": "avro", "schema-text": json.dumps(AVRO)}
    kept = [None, "é", INNER, {**INNER, "rest": [None, INNER]}]
    decoded = decode(
        [avro({"y": 1, "x": value, "z": "after"}) for value in kept], declared({"x": JSON, "z": "string"}, form)
    )
    assert decoded.rejections == []
    nested = INNER_TEXT.replace('"rest":[]', f'"rest":[null,{INNER_TEXT}]')
    assert decoded.rows["x"].to_pylist() == [None, '"é"', INNER_TEXT, nested]
    assert decoded.rows["z"].to_pylist() == ["after"] * 4


def test_avro_keeps_values_in_lists_and_structs_as_json() -> None:
    items = {"type": "record", "name": "I", "fields": [{"name": "v", "type": ["null", "int", "string"]}]}
    schema = {**AVRO, "fields": [{"name": "x", "type": {"type": "array", "items": items}}]}
    column = {"type": "list<struct<v: string>>", "as": {"element.v": "json"}}
    form = {"type": "avro", "schema-text": json.dumps(schema)}
    value = [{"v": 1}, {"v": None}, {"v": "a"}]
    decoded = decode([avro({"x": value}, schema), avro({"x": []}, schema)], declared({"x": column}, form))
    assert decoded.rows["x"].to_pylist() == [[{"v": "1"}, {"v": None}, {"v": '"a"'}], []]


def test_an_avro_value_that_cannot_be_read_is_a_dead_letter_next_to_rows() -> None:
    schema = {**AVRO, "fields": [{"name": "x", "type": ["null", "string", {"type": "array", "items": "boolean"}]}]}
    form = {"type": "avro", "schema-text": json.dumps(schema)}
    sound = avro({"x": "a"}, schema)
    not_utf8 = b"\x02\x02\xff"
    sized = b"\x04\x03\x02\x07\x00"  # a block of two booleans in one byte
    many = b"\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02\x00\x00"
    decoded = decode([sound, not_utf8, sized, many, sound], declared({"x": JSON}, form))
    assert decoded.rows["x"].to_pylist() == ['"a"', '"a"']
    assert [(r.index, r.error_class) for r in decoded.rejections] == [(i, "InvalidAvro") for i in (1, 2, 3)]


@pytest.mark.parametrize("as_json", [True, False])
def test_debeziums_json_stays_the_text_that_it_is_already(as_json: bool) -> None:
    column: Any = JSON if as_json else "string"
    text = '{"a": [1, "é\\n"]}'
    spec = declared(
        {"id": "long not null", "x": column}, {"type": "json", "envelope": "debezium"}, mode="upsert", key="id"
    )
    spec |= {"event-time": "kafka_timestamp"}
    after = {"id": 1, "x": text, "at": None}
    event = {"op": "c", "after": after, "before": None, "source": {}}
    decoded = decode([json.dumps(one).encode() for one in (event, {"schema": {}, "payload": event})], spec)
    assert decoded.rejections == []
    assert decoded.rows["x"].to_pylist() == [text, text]


def test_debeziums_json_in_avro_stays_the_text_that_it_is_already() -> None:
    of_json = {"type": "string", "connect.name": "io.debezium.data.Json"}
    schema = {**AVRO, "fields": [{"name": "x", "type": ["null", of_json]}]}
    form = {"type": "avro", "schema-text": json.dumps(schema)}
    decoded = decode([avro({"x": '{"a": 1}'}, schema), avro({"x": None}, schema)], declared({"x": JSON}, form))
    assert decoded.rows["x"].to_pylist() == ['{"a": 1}', None]


PROTO = """
syntax = "proto3";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
message R {
  In x = 1; repeated int64 many = 2; map<int32, In> by = 3; int64 plain = 4; optional int32 maybe = 5;
  google.protobuf.Struct any = 6; repeated In list = 7; map<string, In> named = 8; Holder holder = 9;
}
message In { int64 big_one = 1; repeated string s = 2; bytes b = 3; google.protobuf.Timestamp t = 4; In in = 5; }
message Holder { In kept = 1; int32 n = 2; }
"""


def proto(value: dict[str, Any], schema: str | None = None) -> bytes:
    return bytes(ParseDict(value, GetMessageClass(message_of(schema or PROTO, (), "R"))()).SerializeToString())


def test_protobuf_keeps_a_value_of_any_type_as_its_json_mapping() -> None:
    columns = dict.fromkeys(("x", "many", "by", "plain", "maybe", "any"), JSON)
    columns |= {
        "list": {"type": "list<string>", "as": {"element": "json"}},
        "named": {"type": "map<string, string>", "as": {"value": "json"}},
        "holder": {"type": "struct<kept: string, n: int>", "as": {"kept": "json"}},
    }
    form = {"type": "protobuf", "schema-text": PROTO, "message": "R"}
    inner = {"big_one": "5", "s": ["é"], "b": "AAEC", "t": "2026-01-01T09:30:00Z", "in": {}}
    value = {
        "x": inner, "many": ["1", "2"], "by": {"7": inner}, "plain": "3", "maybe": 0, "any": {"a": [1.5, None]},
        "list": [inner, {}], "named": {"b": inner, "a": {}}, "holder": {"kept": inner, "n": 1},
    }  # fmt: skip
    decoded = decode([proto(value), proto({}), proto({"holder": {}})], declared(columns, form))
    assert decoded.rejections == []
    text = json.dumps(inner, ensure_ascii=False, separators=(",", ":"))
    full, empty, held = decoded.rows.to_pylist()
    assert {name: full[name] for name in columns} == {
        "x": text, "many": '["1","2"]', "by": f'{{"7":{text}}}', "plain": '"3"', "maybe": "0",
        "any": '{"a":[1.5,null]}', "list": [text, "{}"], "named": full["named"], "holder": {"kept": text, "n": 1},
    }  # fmt: skip
    assert dict(full["named"]) == {"b": text, "a": "{}"}
    assert {name: empty[name] for name in columns} == {
        "x": None, "many": "[]", "by": "{}", "plain": '"0"', "maybe": None, "any": None,
        "list": [], "named": [], "holder": None,
    }  # fmt: skip
    assert held["holder"] == {"kept": None, "n": 0}


def test_an_any_with_a_message_of_the_schema_is_kept_as_json() -> None:
    schema = """syntax = "proto3"; import "google/protobuf/any.proto";
    message R { google.protobuf.Any x = 1; repeated google.protobuf.Any left = 2; int32 n = 3; }
    message Paid { int32 cents = 1; google.protobuf.Any why = 2; }"""
    record, paid, inner = (GetMessageClass(message_of(schema, (), name))() for name in ("R", "Paid", "Paid"))
    inner.cents = 7  # type: ignore[attr-defined]
    paid.why.Pack(inner)  # type: ignore[attr-defined]
    record.x.Pack(paid)  # type: ignore[attr-defined]
    record.left.add().Pack(inner)  # type: ignore[attr-defined]
    columns = {"x": JSON, "n": "int", "more": "string"}
    spec = declared(columns, {"type": "protobuf", "schema-text": schema, "message": "R"}, rest="more")
    decoded = decode([record.SerializeToString()], spec)
    assert decoded.rejections == []
    (row,) = decoded.rows.to_pylist()
    seven = {"@type": "type.googleapis.com/Paid", "cents": 7}
    assert json.loads(row["x"]) == {"@type": "type.googleapis.com/Paid", "why": seven}
    assert json.loads(row["more"]) == {"left": [seven]}


def test_a_protobuf_message_without_a_required_value_is_a_dead_letter() -> None:
    form = {"type": "protobuf", "schema-text": PROTO, "message": "R"}
    spec = declared({"x": {**JSON, "required": True}}, form)
    decoded = decode([proto({"x": {}}), proto({})], spec)
    assert decoded.rows["x"].to_pylist() == ["{}"]
    assert [(r.index, r.error_class, r.error[:3]) for r in decoded.rejections] == [(1, "MissingRequired", "x: ")]


@pytest.mark.parametrize("form", ["json", "avro", "protobuf"])
def test_a_variant_is_decoded_to_the_same_json_text_as_a_json_string_column(form: str) -> None:
    made: dict[str, tuple[Any, bytes]] = {
        "json": ("json", b'{"x": {"b": [1, 2.50]}, "left": 7}'),
        "avro": ({"type": "avro", "schema-text": json.dumps(AVRO)}, avro({"y": 1, "x": INNER, "z": "a"})),
        "protobuf": ({"type": "protobuf", "schema-text": PROTO, "message": "R"}, proto({"x": {}})),
    }
    source, record = made[form]
    table = {"identifier": "a.b", "properties": {"format-version": 3}}
    (text,), (variant,) = (
        decode([record], declared({"x": x, "more": more}, source, rest="more", table=table)).rows.to_pylist()
        for x, more in ((JSON, "string"), ("variant", "variant"))
    )
    assert variant == text
    assert isinstance(text["x"], str)


@pytest.mark.parametrize(
    ("schema", "more", "message"),
    [
        ({"x": {"type": "int", "as": "json"}}, {}, "schema.x.as: 'json' needs a string, but x is of type int"),
        (
            {"x": {"type": "string", "as": {"y": "json"}}},
            {},
            "schema.x.as: 'x.y' does not exist in the column, which is",
        ),
        (
            {"x": {"type": "map<string, string>", "as": {"key": "json"}}},
            {},
            "schema.x.as: 'json' cannot be used for x.key, which is the key of a map",
        ),
        (
            {"x": JSON},
            {"source": {"key": {"column": "x"}}},
            "schema.x.as: 'json' cannot be used for a column",
        ),
        ({"x": JSON}, {"form": "csv"}, "schema.x.as: 'json' needs fields with types, but source.format is csv"),
        ({"x": "variant"}, {}, "schema.x: 'variant' needs format version 3; set table.properties.format-version: 3"),
        ({"x": {"type": "variant", "as": "json"}}, {}, "schema.x.as: 'json' is not needed for a variant"),
        ({"x": "variant"}, {"form": "csv"}, "schema.x: 'variant' needs fields with types, but source.format is csv"),
        (
            {"x": "variant not null"},
            {"dedupe": {"key": "x", "within": "1h"}},
            "dedupe.key.0: 'x' is a column of type variant, which cannot identify rows",
        ),
        ({"x": "variant"}, {"partition-by": ["x"]}, "x is variant, but identity takes any type but struct"),
        ({"x": "variant"}, {"sort-by": ["x"]}, "x is variant, but identity takes any type but struct"),
        ({"x": "variant"}, {"sensitive": {"fields": {"x": "mask"}}}, "needs a string, but the column is variant"),
    ],
)
def test_columns_that_cannot_be_stored_as_json_text_are_refused(
    schema: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    spec = declared(schema, **more)
    with pytest.raises(ValidationError) as refused:
        StreamSpec.model_validate(spec, by_alias=True, by_name=False)
    assert message in describe(refused.value, spec, Path("s.yaml"), lambda _: Path("s.yaml"))


@pytest.mark.parametrize("field", ["string x", "repeated string x", "map<string, string> x", "map<int32, R> x"])
@pytest.mark.parametrize("column", ["struct<v: string>", "list<struct<v: string>>", "map<string, struct<v: string>>"])
def test_a_protobuf_field_that_cannot_fill_a_column_with_json_inside_affects_no_other_record(
    field: str, column: str
) -> None:
    form = {"type": "protobuf", "schema-text": f'syntax = "proto3"; message R {{ {field} = 1; int32 y = 2; }}'}
    path = {"s": "", "l": "element.", "m": "value."}[column[0]]
    decoded = decode(
        [b"\x10\1", b"\x0a\1a\x10\2"], declared({"x": {"type": column, "as": {f"{path}v": "json"}}, "y": "int"}, form)
    )
    assert {r.index for r in decoded.rejections} <= {1}
    assert decoded.rows["y"].to_pylist()[0] == 1


def test_protobuf_keeps_values_of_a_map_as_json_in_a_list_of_its_entries() -> None:
    form = {"type": "protobuf", "schema-text": PROTO, "message": "R"}
    records = [proto({"by": {"7": {"s": ["a"]}, "-1": {}, "5": {"big_one": "3"}}}), proto({})]

    def by(column: str, path: str) -> list[Any]:
        decoded = decode(records, declared({"by": {"type": column, "as": {path: "json"}}}, form))
        return [decoded.rows["by"].to_pylist(), [(r.index, r.error_class) for r in decoded.rejections]]

    rows, rejections = by("list<struct<key: int, value: string>>", "element.value")
    assert (sorted((one["key"], one["value"]) for one in rows[0]), rows[1], rejections) == (
        [(-1, "{}"), (5, '{"big_one":"3"}'), (7, '{"s":["a"]}')],
        [],
        [],
    )
    rows, rejections = by("list<struct<value: string>>", "element.value")
    assert (rows, [index for index, _ in rejections]) == ([[]], [0])
