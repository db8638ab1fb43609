"""A `rest` column keeps the fields that have no column, in the record's order, as exact text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from frazil.ingest.changes import OMITTED_COLUMNS
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.decode import DecoderOptions
from frazil.ingest.formats.json.decoder import JsonDecoder
from frazil.spec import iceberg
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.spec.problems import describe
from tests.unit.ingest.test_json_texts import AVRO, INNER, INNER_TEXT, JSON, PROTO, avro, declared, decode, proto


def left(columns: dict[str, Any], values: Sequence[str], **more: Any) -> list[Any]:
    decoded = decode(
        [value.encode() for value in values], declared({**columns, "other": "string"}, rest="other", **more)
    )
    assert decoded.rejections == []
    return [*decoded.rows["other"].to_pylist()]


def test_rest_keeps_the_order_of_fields_and_the_text_of_their_values() -> None:
    found = left(
        {"x": "int"},
        [
            '{"b": 1.50, "x": 1, "a": [1, {"k": null}],"c":"\\u00e9"}',
            '{"x": 1}',
            "{}",
            '{ "b" : null , "x": 1, "b": 2, "other": true, "X": 7 }',
            '{"\\u0062":NaN}',
        ],
    )
    assert found == [
        '{"b": 1.50,"a": [1, {"k": null}],"c":"\\u00e9"}',
        None,
        None,
        '{"b" : null,"b": 2,"other": true,"X": 7}',
        '{"\\u0062":NaN}',
    ]


def test_undeclared_fields_of_a_nested_column_keep_their_path_in_rest() -> None:
    columns = {
        "s": "struct<x: int, in: struct<y: int>>",
        "l": "list<struct<x: int>>",
        "m": "map<string, struct<x: int>>",
        "plain": "map<string, int>",
    }
    found = left(
        columns,
        [
            '{"s": {"x": 1, "z": 2, "in": {"y": 1, "w": [3]}}}',
            '{"s": {"x": 1, "in": {"y": 1}}, "l": [{"x": 1}], "m": {"k": {"x": 1}}, "plain": {"k": 1}}',
            '{"l": [{"x": 1}, null, {"x": 2, "q": 1}], "m": {"k": {"x": 1}, "j": {"p": 2}}, "s": null, "z": 0}',
        ],
    )
    assert found == [
        '{"s": {"z": 2,"in": {"w": [3]}}}',
        None,
        '{"l": [null,null,{"q": 1}],"m": {"j": {"p": 2}},"z": 0}',
    ]


def test_the_loop_accepts_records_with_undeclared_fields() -> None:
    spec = StreamSpec.model_validate(
        declared({"x": "int", "s": "struct<a: int>", "r": "string"}, rest="r", coordinates=False)
    )
    schema = iceberg.table_schema(spec)
    units = {schema.find_field(name).field_id: unit for name, unit in spec.units.items()}
    value = json.dumps({"x": 1, "s": {"a": 1, "b": ["é"]}, "more": [{"deep": {}}], **{f"f{i}": i for i in range(900)}})
    for text in (value, json.dumps(json.loads(value), indent=1, ensure_ascii=False)):
        rows, flags, _ = JsonDecoder(schema, units).read_in_loop(BinaryColumn.of([text.encode()]))
        assert not (flags & 1).any()
        assert len(json.loads(rows["r"][0].as_py())) == 902


@pytest.mark.parametrize("ending", ["\n", ""])
def test_rest_omits_hidden_fields_however_their_names_are_written(ending: str) -> None:
    """The drift has the names as the record has them, decoded. A hidden name may be a column's, too."""
    members = [
        '"\\u0053ecret":1',
        '"SECRET":2',
        '"ÉTÉ":3',
        '"\\u00c9t\\u00e9":4',
        '"\\u0041":5',
        '"ẞ":6',
        '"é":7',
        '"K":8',
    ]
    text = f"{{{','.join(members)}}}".encode()
    schema = Schema(NestedField(1, "secret", LongType()), NestedField(2, "r", StringType()))
    decoder = JsonDecoder(schema, {2: "rest"}, DecoderOptions([("secret",), ("été",), ("ß",)], drift="full"))
    octets = np.frombuffer(text + ending.encode(), np.uint8)
    decoded = decoder(RecordChunk.of_column(BinaryColumn(octets, np.array([0]), np.array([len(text)]))))
    assert decoded.rows.to_pylist() == [{"secret": None, "r": '{"\\u0041":5,"é":7,"K":8}'}]
    assert [*decoded.drift.new] == [(name,) for name in ("Secret", "SECRET", "ÉTÉ", "Été", "A", "ẞ", "é", "K")]


keys = st.sampled_from(["s", "l", "x", "y", "", "é", "\n", 'a"b']) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=4
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(keys, values, max_size=4)
records = st.builds(
    lambda record, s, many: record | ({} if s is None else {"s": s}) | ({} if many is None else {"l": many}),
    st.dictionaries(keys.filter(lambda key: key not in {"s", "l"}), values, max_size=6),
    st.none() | objects,
    st.none() | st.lists(st.none() | objects, max_size=3),
)
COLUMNS = {
    "x": JSON,
    "s": {"type": "struct<x: string, y: string>", "as": {"x": "json", "y": "json"}},
    "l": {"type": "list<struct<x: string>>", "as": {"element.x": "json"}},
}


@given(st.lists(st.tuples(records, st.sampled_from([None, 1]), st.booleans()), max_size=5))
def test_columns_and_the_rest_together_are_the_record(drawn: list[tuple[dict[str, Any], int | None, bool]]) -> None:
    texts = [json.dumps(record, indent=indent, ensure_ascii=ascii) for record, indent, ascii in drawn]
    spec = declared({**COLUMNS, "other": "string"}, rest="other")
    del spec["schema"]["at"]
    decoded = decode([text.encode() for text in texts], spec | {"event-time": "kafka_timestamp"})
    assert decoded.rejections == []
    for place, row in zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True):
        columns = {
            "x": exact(row["x"]),
            "s": None if row["s"] is None else {name: exact(text) for name, text in row["s"].items()},
            "l": None if row["l"] is None else [one and {"x": exact(one["x"])} for one in row["l"]],
        }
        assert without_nulls(together(columns, exact(row["other"]) or {})) == without_nulls(exact(texts[place]))


def exact(text: str | None) -> Any:
    """Parsed JSON with the texts of its numbers."""
    return None if text is None else json.loads(text, parse_float=Number, parse_int=Number, parse_constant=Number)


class Number(str):
    __slots__ = ()


def together(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: together(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [together(a, b) for a, b in zip(one, other, strict=True)]
    assert one is None or other is None
    return other if one is None else one


def without_nulls(value: Any) -> Any:
    """A missing field and null are the same for a column."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def test_rest_of_a_debezium_event_keeps_the_remaining_fields_of_the_row() -> None:
    form = {"type": "json", "envelope": {"metadata": {"lsn": "source.lsn"}}}
    spec = declared({"id": "long not null", "lsn": "long", "r": "string"}, form, mode="upsert", key="id", rest="r")
    spec |= {"event-time": "kafka_timestamp"}
    row = {"id": 1, "new": [1], "at": None, "r": 2}
    event = {"op": "u", "before": {"id": 1, "new": 0}, "after": row, "source": {"lsn": 5, "db": "x"}, "extra": 1}
    gone = {"op": "d", "before": {"id": 1, "new": 0}, "after": None, "source": {"lsn": 6}}
    events = (event, {"schema": {"a": 1}, "payload": event}, gone)
    decoded = decode([json.dumps(one, separators=(",", ":")).encode() for one in events], spec)
    assert decoded.rejections == []
    assert decoded.rows["r"].to_pylist() == ['{"new":[1],"r":2}'] * 2 + [None]
    assert decoded.rows[OMITTED_COLUMNS].null_count == 3


def test_avro_keeps_the_fields_without_a_column_that_are_not_null() -> None:
    form = {"type": "avro", "schema-text": json.dumps(AVRO)}
    spec = declared({"y": "int", "r": "string"}, form, rest="r")
    kept = [avro({"y": 1, "x": value, "z": "a"}) for value in (INNER, None)]
    assert decode(kept, spec).rows["r"].to_pylist() == [f'{{"x":{INNER_TEXT},"z":"a"}}', '{"z":"a"}']
    nested = declared({"x": "struct<i: long>", "y": "int", "z": "string", "r": "string"}, form, rest="r")
    without = [kept[1], avro({"y": 1, "x": INNER, "z": "a"})]
    spec = {**nested, "schema": {**nested["schema"], "x": "struct<i: long, n: int, f: float, e: string, ok: boolean>"}}
    form["schema-text"] = json.dumps(AVRO).replace('"string", {"type": "record"', '{"type": "record"')
    without = [avro({"y": 1, "x": value, "z": "a"}, json.loads(form["schema-text"])) for value in (None, INNER)]
    found = decode(without, {**spec, "source": {**spec["source"], "format": form}})
    expected = json.loads(INNER_TEXT)
    assert found.rejections == []
    assert found.rows["r"][0].as_py() is None
    assert json.loads(found.rows["r"][1].as_py()) == {
        "x": {name: expected[name] for name in ("d", "t", "day", "b", "m", "rest")}
    }


def test_protobuf_keeps_the_fields_without_a_column_that_have_a_value() -> None:
    form = {"type": "protobuf", "schema-text": PROTO, "message": "R"}
    spec = declared({"plain": "long", "holder": "struct<n: int>", "r": "string"}, form, rest="r")
    full = {"x": {"big_one": "5"}, "plain": "3", "holder": {"n": 1, "kept": {}}, "many": ["1"]}
    decoded = decode([proto(full), proto({"plain": "1"})], spec)
    assert decoded.rejections == []
    assert [one and json.loads(one) for one in decoded.rows["r"].to_pylist()] == [
        {"x": {"big_one": "5"}, "many": ["1"], "holder": {"kept": {}}},
        None,
    ]


TAKEN_PROTO = """syntax = "proto3";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message In { int32 n = 1; string z = 2; google.protobuf.Timestamp t = 3; }
message R {
  google.protobuf.Timestamp t = 1; google.protobuf.Int32Value w = 2; google.protobuf.Struct st = 3;
  map<int32, In> m = 4; map<string, int32> n = 5; repeated In l = 6;
}"""


@pytest.mark.parametrize(
    ("value", "kind", "kept"),
    [
        ({"t": "1970-01-01T00:00:05Z"}, "struct<seconds: long, nanos: int>", None),
        ({"t": "1970-01-01T00:00:05Z"}, "struct<seconds: long>", {"t": "1970-01-01T00:00:05Z"}),
        ({"w": 3}, "struct<value: int>", None),
        ({"st": {"a": 1}}, "struct<a: double>", {"st": {"a": 1}}),
        ({"m": {"4": {"n": 1, "z": "q"}}}, "list<struct<key: int, value: struct<n: int>>>", {"m": {"4": {"z": "q"}}}),
        ({"m": {"4": {"n": 1, "z": "q"}}}, "list<struct<key: int>>", {"m": {"4": {"n": 1, "z": "q"}}}),
        ({"n": {"a": 1}}, "list<struct<key: string, value: int>>", None),
        ({"n": {"a": 1}}, "list<struct<key: string>>", {"n": {"a": 1}}),
        (
            {"l": [{"n": 1, "t": "1970-01-01T00:00:05Z"}]},
            "list<struct<n: int, t: struct<nanos: int>>>",
            {"l": [{"t": "1970-01-01T00:00:05Z"}]},
        ),
    ],
)
def test_rest_keeps_what_columns_leave_of_protobuf_values_whose_json_has_another_shape(
    value: dict[str, Any], kind: str, kept: Any
) -> None:
    form = {"type": "protobuf", "schema-text": TAKEN_PROTO, "message": "R"}
    spec = declared({next(iter(value)): kind, "r": "string"}, form, rest="r")
    decoded = decode([proto(value, TAKEN_PROTO)], spec)
    assert decoded.rejections == []
    assert [text and json.loads(text) for text in decoded.rows["r"].to_pylist()] == [kept]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rest": "y"}, "rest: 'y' is not a column of the schema"),
        ({"rest": "x"}, "rest: 'x' is a column of type int; make it string"),
        ({"rest": "s"}, "rest: 's' is declared not null, but a record may have no other fields"),
        ({"rest": "j"}, "schema.j.as: 'json' cannot be used for the column of rest"),
        ({"rest": "r", "form": "csv"}, "rest: 'r' needs records whose fields have names, but source.format is csv"),
        ({"rest": "r", "source": {"key": {"column": "r"}}}, "rest: 'r' is already filled by a key or header"),
        ({"rest": "r", "sensitive": {"fields": {"r": "mask"}}}, "rest: 'r' is listed in sensitive.fields"),
    ],
)
def test_an_invalid_rest_column_is_refused(more: dict[str, Any], message: str) -> None:
    spec = declared({"x": "int", "s": "string not null", "j": JSON, "r": "string"}, **more)
    with pytest.raises(ValidationError) as refused:
        StreamSpec.model_validate(spec, by_alias=True, by_name=False)
    assert message in describe(refused.value, spec, Path("s.yaml"), lambda _: Path("s.yaml"))


def test_a_stream_without_a_rest_column_keeps_its_fingerprint() -> None:
    spec = validate_stream(declared({"x": "int"}), Path("s.yaml"))
    assert spec.fingerprint() == FINGERPRINT


FINGERPRINT = "7283d2ed9d919ece"
