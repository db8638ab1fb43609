"""`from`: columns that are read from fields with other names and at other paths."""

# ruff: noqa: E501 - a table is read by its rows

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from frazil.errors import SpecError
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.formats import create_decoder, create_quoter
from frazil.ingest.formats.fields import record_path
from frazil.ingest.formats.json import decoder as json_decoder
from frazil.spec import iceberg
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.spec.values import parse_path
from tests.unit.ingest.test_json_texts import PROTO, avro, declared, decode, proto
from tests.unit.ingest.test_unwrap import drift

COLUMNS: dict[str, Any] = {
    "id": {"type": "long", "from": "payload.user.id", "required": True},
    "sku": {"type": "string", "from": "items[0].sku"},
    "price": {"type": "decimal(9, 2)", "from": "row[2]"},
    "side": {"type": "string", "from": "row[1]"},
    "dotted": {"type": "int", "from": r"a\.b"},
    "spaced": {"type": "int", "from": "My Field.Ä b"},
}


def row(record: dict[str, Any], columns: dict[str, Any] = COLUMNS, **more: Any) -> dict[str, Any] | tuple[str, str]:
    decoded = decode([json.dumps(record).encode()], declared(columns, **more))
    if decoded.rejections:
        ((_, error_class, error),) = decoded.rejections
        return error_class, error
    (found,) = decoded.rows.to_pylist()
    assert found.pop("at") is None
    return found


def test_a_column_takes_the_field_at_its_path() -> None:
    record = {
        "payload": {"user": {"id": 7, "name": "x"}, "more": 1},
        "items": [{"sku": "a", "n": 1}, {"sku": 5}],
        "row": [1, "buy", "9.50", {"x": []}],
        "a.b": 3,
        "a": {"b": 4},
        "My Field": {"Ä b": 5},
        "id": "not this one",
    }
    found = row(record)
    assert {name: str(value) for name, value in found.items()} == {  # type: ignore[union-attr]
        "id": "7", "sku": "a", "price": "9.50", "side": "buy", "dotted": "3", "spaced": "5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        ({}, ("MissingRequired", "payload: required, and missing or null")),
        ({"payload": {"user": {}}}, ("MissingRequired", "id: required, and missing or null")),
        ({"payload": {"user": 1}}, ("TypeMismatch", "payload.user: expected an object, got the number 1")),
        (
            {"payload": {"user": {"id": "x"}}},
            ("TypeMismatch", "id: expected a whole number (long), got the string 'x'"),
        ),
        (
            {"payload": {"user": {"id": 1}}, "row": [0, 5]},
            ("TypeMismatch", "side: expected a string, got the number 5"),
        ),
        ({"payload": {"user": {"id": 1}}, "items": [{"sku": 5}]}, ("TypeMismatch", "sku: expected a string, got the number 5")),
        ({"payload": {"user": {"id": 1}}, "items": {"sku": "x"}}, ("TypeMismatch", "items: expected an array, got an object")),
        ({"payload": {"user": {"id": 1}}, "row": [0, "b", "1.234"]}, ("TypeMismatch", "price: 1.234 does not fit decimal(9, 2)")),
    ],
)  # fmt: skip
def test_an_error_names_the_column_or_the_object_around_its_field(
    record: dict[str, Any], outcome: tuple[str, str]
) -> None:
    assert row(record) == outcome


@pytest.mark.parametrize("items", [None, [], [None], [{}], [{"other": 1}]])
def test_a_missing_list_element_is_null(items: Any) -> None:
    found = row({"payload": {"user": {"id": 1}}, "items": items, "row": [1]})
    assert (found["sku"], found["side"]) == (None, None)  # type: ignore[index]


def test_a_missing_required_list_element_is_a_dead_letter() -> None:
    columns = {"x": {"type": "int", "from": "row[1]", "required": True}}
    assert row({"row": [1]}, columns) == ("MissingRequired", "x: required, and missing or null")
    assert row({}, columns) == ("MissingRequired", "x: required, and missing or null")
    assert row({"row": [1, 2]}, columns) == {"x": 2}


def test_a_duplicate_key_on_the_path_to_a_field_is_a_dead_letter() -> None:
    columns = {"x": {"type": "int", "from": "a[1].b"}}
    (found,) = decode([b'{"a": [0, {"b": 1, "b": 2}]}'], declared(columns)).rejections
    assert found.error == "x: given twice"


elements = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('ab\\"', max_size=2) | st.just({"b": 1}) | st.just([1])
)


@given(st.lists(st.lists(elements, max_size=4), max_size=5), st.booleans())
def test_elements_of_arrays_of_any_values_fill_columns_or_reject_their_record(
    arrays: list[list[Any]], spaced: bool
) -> None:
    """Given: arrays of any values. Two of their elements are columns."""
    columns = {"x": {"type": "int", "from": "a[1]"}, "y": {"type": "struct<b: int>", "from": "a[2]"}}
    separators = (" , ", " : ") if spaced else (",", ":")
    records = [json.dumps({"z": 1, "a": array}, separators=separators).encode() for array in arrays]
    decoded = decode(records, declared(columns))
    found = dict(zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True))
    expected = {}
    for index, array in enumerate(arrays):
        x, y = [*array, None, None, None][1:3]
        if (x is None or type(x) is int) and (y is None or isinstance(y, dict)):
            expected[index] = {"x": x, "y": y}
    assert {index: {name: row[name] for name in columns} for index, row in found.items()} == expected
    assert sorted({*found, *(r.index for r in decoded.rejections)}) == [*range(len(arrays))]


def test_rest_keeps_fields_that_no_path_reads() -> None:
    columns = {"id": {"type": "long", "from": "payload.id"}, "first": {"type": "int", "from": "list[0]"}, "r": "string"}
    record = {"payload": {"id": 1, "a": 2}, "list": [1, 2], "b": 3}
    assert row(record, columns, rest="r") == {"id": 1, "first": 1, "r": '{"payload": {"a": 2},"b": 3}'}


def test_new_fields_become_columns_but_not_those_within_the_object_of_a_path() -> None:
    columns = {"id": {"type": "long", "from": "payload.id"}, "place": {"type": "struct<a: int>", "from": "where"}}
    records = [b'{"payload": {"id": 1, "other": 2}, "where": {"a": 1, "b": 2}, "new": 3}']
    assert drift(records, columns, "json", "additive").new == {("place", "b"): "long", ("new",): "long"}
    assert drift([b'{"payload": {"id": 1, "other": 2}}'], columns, "json", "additive").records == 0


def test_paths_start_at_the_object_that_unwrap_names() -> None:
    columns = {"id": {"type": "long", "from": "user.id"}, "n": "int"}
    form = {"type": "json", "unwrap": r"out\.er", "lines": True, "framing": "confluent"}
    lines = b"\0\0\0\0\7" + b'{"out.er": {"user": {"id": 1}, "n": 2}}\n{"out.er": {"user": {"id": "x"}}}'
    decoded = decode([lines, lines.partition(b"\n")[0]], declared(columns, form))
    assert decoded.rows.select(["id", "n"]).to_pylist() == [{"id": 1, "n": 2}]
    assert decoded.rejections[0].error.startswith("line 2: id: expected a whole number")


def test_a_value_out_of_range_is_quoted_from_its_path() -> None:
    units = {"at": {"unit": "ms", "from": ["a", 1, "b.c"]}}
    path = record_path(("at",), units)
    assert create_quoter("json")(b'{"a": [0, {"b.c": 5}]}', path) == "the number 5"


def test_avro_and_protobuf_columns_can_use_paths() -> None:
    item = {"type": "record", "name": "I", "fields": [{"name": "v", "type": "int"}, {"name": "t", "type": "string"}]}
    within = {"type": "record", "name": "W", "fields": [{"name": "items", "type": {"type": "array", "items": item}}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "w", "type": ["null", within]}]}
    columns = {
        "one": {"type": "int", "from": "w.items[0].v"}, "t": {"type": "string", "from": "w.items[1].t"},
        "two": {"type": "int", "from": "w.items[1].v"},
    }  # fmt: skip
    records = [avro({"w": {"items": [{"v": n, "t": str(n)} for n in range(count)]}}, schema) for count in (0, 1, 3)]
    decoded = decode(
        [*records, avro({"w": None}, schema)], declared(columns, {"type": "avro", "schema-text": json.dumps(schema)})
    )
    assert decoded.rejections == []
    found = [(row["one"], row["two"], row["t"]) for row in decoded.rows.to_pylist()]
    assert found == [(None, None, None), (0, None, None), (0, 1, "1"), (None, None, None)]

    columns = {
        "deep": {"type": "long", "from": "holder.kept.big_one"}, "first": {"type": "string", "from": "x.s[0]"},
        "many": {"type": "long", "from": "many[1]", "required": True},
    }  # fmt: skip
    form = {"type": "protobuf", "schema-text": PROTO, "message": "R"}
    values = [{"holder": {"kept": {"big_one": "5"}}, "x": {"s": ["é", "z"]}, "many": ["1", "2"]}, {"many": ["1"]}]
    decoded = decode([proto(value) for value in values], declared(columns, form))
    assert decoded.rows.select([*columns]).to_pylist() == [{"deep": 5, "first": "é", "many": 2}]
    assert [(r.index, r.error) for r in decoded.rejections] == [(1, "many: required, and missing or null")]


def test_elements_of_one_list_may_be_read_in_several_ways() -> None:
    """All elements of an Avro list have one type. A column may still have another type, or values that mean null."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "l", "type": {"type": "array", "items": "long"}}]}
    form = {"type": "avro", "schema-text": json.dumps(schema)}
    columns = {
        "a": {"type": "int", "from": "l[0]"}, "b": {"type": "long", "from": "l[1]", "null-if": [2]},
        "c": {"type": "string", "as": "json", "from": "l[2]"},
    }  # fmt: skip
    decoded = decode([avro({"l": one}, schema) for one in ([1, 2, 3], [1, 2**40], [2**40, 1])], declared(columns, form))
    assert decoded.rows.select([*columns]).to_pylist() == [
        {"a": 1, "b": None, "c": "3"}, {"a": 1, "b": 2**40, "c": None},
    ]  # fmt: skip
    assert [r.error for r in decoded.rejections] == ["a: the number 1099511627776 is too big for int"]
    one = {"b": {"type": "long", "from": "l[1]", "null-if": [2]}}
    assert decode([avro({"l": [1, 2]}, schema)], declared(one, form)).rows["b"].to_pylist() == [None]
    said = problem(
        {"a": {"type": "string", "as": "json", "from": "l[0]"}, "b": {"type": "int", "from": "l[1].x"}}, form
    )
    assert "is also read by the column a" in said


def test_a_missing_parent_object_makes_required_columns_optional_and_other_cases_are_not_new() -> None:
    columns = {"id": {"type": "int", "from": "p.id", "required": True}, "Name": {"type": "string", "from": "q.x"}}
    spec = StreamSpec.model_validate(declared(columns), by_alias=True, by_name=False)
    table = iceberg.table_schema(spec)
    units = {table.find_field(name).field_id: unit for name, unit in spec.units.items()}
    values = [b'{"z": 1}', b'{"p": {"id": 1}, "P": {"id": 1}, "Q": {"x": "y"}, "name": "n"}']
    found = create_decoder("json", record_schema(table, spec.coordinates), units, "full")(
        RecordChunk.of_values(values)
    ).drift
    assert (found.optional, found.new) == ({("id",)}, {("z",): "long"})


def test_columns_are_read_from_within_a_column_of_json_text_too() -> None:
    columns = {
        "payload": {"type": "string", "as": "json"}, "id": {"type": "long", "from": "payload.id"},
        "kind": {"type": "string", "from": "payload.a.kind", "default": "none"},
        "n": {"type": "int", "from": "payload.n[1]", "cast": "lenient"},
        "data": {"type": "string", "as": "json", "from": "payload.data"},
        "deep": {"type": "int", "from": "payload.data.x"}, "r": "string",
    }  # fmt: skip
    texts = [
        '{"id": 1, "a": {"kind": "k"}, "n": [0, "7"], "b": 1.50}', "null", '"text"', '{"id": "x"}',
        '{"id" : 2, "q": {"s": 1, "s": 2}, "data": {"x": 3} }', '{"id": 1, "id": 2}',
    ]  # fmt: skip
    decoded = decode([f'{{"payload": {text}, "y": 1}}'.encode() for text in texts], declared(columns, rest="r"))
    rows = zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True)
    assert {place: tuple(row.values())[:-1] for place, row in rows} == {
        0: (texts[0], 1, "k", 7, None, None, '{"y": 1}'), 1: (None, None, "none", None, None, None, '{"y": 1}'),
        4: (texts[4], 2, "none", None, '{"x": 3}', 3, '{"y": 1}'),
    }  # fmt: skip
    assert decoded.drift.cast == {"n": 1}
    assert [(r.index, r.error) for r in decoded.rejections] == [
        (2, "payload: expected an object, got the string 'text'"),
        (3, "id: expected a whole number (long), got the string 'x'"),
        (5, "id: given twice"),
    ]
    assert "is also read by the column payload" in problem({**columns, "r": {"type": "string", "from": "payload"}})


def test_fields_of_a_captured_row_may_have_other_names() -> None:
    columns = {
        "id": {"type": "long", "from": "ID", "required": True}, "name": {"type": "string", "from": "Full Name"},
    }  # fmt: skip
    spec = declared(columns, {"type": "json", "envelope": "debezium"}, mode="upsert", key="id")
    spec["event-time"] = "kafka_timestamp"
    kept = "__debezium_unavailable_value"
    events = [
        {"op": "c", "after": {"ID": 1, "Full Name": "a"}, "source": {}},
        {"op": "u", "after": {"ID": 1, "Full Name": kept}, "source": {}},
        {"op": "d", "before": {"ID": 1}, "source": {}},
        {"op": "c", "after": {"id": 1}, "source": {}},
    ]
    decoded = decode([json.dumps(one).encode() for one in events], spec)
    found = [(row["id"], row["name"], row["_frazil_change"], row["_frazil_kept"]) for row in decoded.rows.to_pylist()]
    assert found == [(1, "a", 0, None), (1, None, 0, [2]), (1, None, 1, None)]
    ((_, _, error),) = decoded.rejections
    assert error == "after.ID: required, and missing or null"


@pytest.mark.parametrize(
    ("text", "path"),
    [("a", ("a",)), ("a.b[0][12].c", ("a", "b", 0, 12, "c")), (r"a\.b.\[c\]", ("a.b", "[c]")), ("a b.C", ("a b", "C"))],
)
def test_a_path_consists_of_names_and_indexes(text: str, path: tuple[str | int, ...]) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", ".a", "a.", "a..b", "a[", "a[x]", "a[0]b", "[0]", "a. .b", 'a"b', "a\\b"])
def test_a_text_that_is_not_a_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has a name|does not begin"):
        parse_path(text)


@pytest.mark.parametrize("text", ["a[-1]", "a[10000]"])
def test_an_index_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(ValueError, match="has an index that is not between 0, the first element, and 9,999"):
        parse_path(text)


def problem(columns: dict[str, Any], form: Any = "json", **more: Any) -> str:
    with pytest.raises(SpecError) as error:
        validate_stream(declared(columns, form, **more), Path("s.yaml"))
    return str(error.value)


@pytest.mark.parametrize(
    ("columns", "form", "more", "said"),
    [
        ({"x": {"type": "int", "from": "a.b"}, "y": {"type": "int", "from": "a"}}, "json", {}, "is also read by the column x"),
        ({"x": {"type": "int", "from": "y"}, "y": "int"}, "json", {}, "is also read by the column y"),
        ({"x": {"type": "int", "from": "y"}}, "csv", {}, "list the column at its position in source.format.columns"),
        ({"x": {"type": "string", "from": "y"}}, "string", {}, "source.format is string"),
        ({"x": {"type": "string", "from": "y"}}, "json", {"source": {"key": {"column": "x"}}}, "stores a key or header"),
        ({"x": {"type": "string", "from": "y"}}, "json", {"rest": "x"}, "but this column stores all other fields"),
        ({"x": {"type": "string", "from": "a..b"}}, "json", {}, "empty part"),
        ({"x": {"type": "string", "from": "card.no"}}, "json", {"sensitive": {"fields": {"Card": "drop"}}}, "is dropped"),
        (
            {"x": {"type": "int", "from": "a.b"}, "k": "int not null"},
            {"type": "json", "envelope": "debezium"},
            {"mode": "upsert", "key": "k"},
            "use a top-level field of `after`",
        ),
        (
            {"k": {"type": "int", "from": "a", "required": True}},
            "json",
            {"mode": "upsert", "key": "k", "delete": "tombstones"},
            "give the column the field's name",
        ),
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_read_is_refused_with_the_reason(
    columns: dict[str, Any], form: Any, more: dict[str, Any], said: str
) -> None:
    assert said in problem(columns, form, **more)


def test_a_stream_without_field_paths_uses_the_plain_decoder() -> None:
    spec = StreamSpec.model_validate(declared({"x": "int"}), by_alias=True, by_name=False)
    made = create_decoder("json", iceberg.table_schema(spec), {})
    assert type(made) is json_decoder.JsonDecoder
    assert made(RecordChunk.of_values([])).rows.num_rows == 0


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (LongType(), 7),
        (StringType(), "seven"),
        (DateType(), date(2013, 1, 2)),
        (TimestamptzType(), datetime(2013, 1, 2, 3, tzinfo=UTC)),
        (DecimalType(9, 2), Decimal("-1.25")),
        (BinaryType(), b"\xff\x00"),
    ],
    ids=lambda value: str(value) if isinstance(value, PrimitiveType) else "",
)
@pytest.mark.parametrize("required", [True, False])
def test_a_column_gets_the_default_that_another_engine_set(kind: PrimitiveType, default: Any, required: bool) -> None:
    added = NestedField(2, "added", kind, required=required, initial_default=default, write_default=default)
    table = Schema(NestedField(1, "id", LongType(), required=True), added)
    made = create_decoder("json", Schema.model_validate_json(table.model_dump_json()), {})
    decoded = made(RecordChunk.of_values([b'{"id": 1}', b'{"id": 2, "added": null}', b"{}"]))
    assert decoded.rows.to_pylist() == [{"id": 1, "added": default}, {"id": 2, "added": default}]
    assert len(decoded.rejections) == 1
