"""Lenient casts, values that mean null, and defaults: the accepted values, and the count of casts."""

# ruff: noqa: E501 - a table is read by its rows

from __future__ import annotations

import base64
import json
from datetime import date, time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from frazil.errors import SpecError
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.fields import FieldsDecoder, RecordShape, create_fields_decoder
from frazil.ingest.formats.json.decoder import JsonDecoder
from frazil.ingest.formats.protobuf.schema import message_of
from frazil.spec.formats import dump_format
from frazil.spec.iceberg import iceberg_type, table_schema
from frazil.spec.load import validate_stream
from tests.unit.ingest.test_json_texts import avro, declared, decode


def loaded(value: str, column: dict[str, Any], **more: Any) -> Any:
    """Load the JSON text of the field x; empty means no field. Return the column's value, or a dead letter's error."""
    record = f'{{"x": {value}, "y": 1}}' if value else '{"y": 1}'
    decoded = decode([record.encode()], declared({"x": column, "y": "int"}, **more))
    if decoded.rejections:
        return decoded.rejections[0].error
    return decoded.rows["x"].to_pylist()[0], dict(decoded.drift.cast)


def test_casts_are_counted_by_column() -> None:
    columns = {"a": "int", "b": {"type": "boolean", "cast": "strict"}, "c": {"type": "string"}, "d": "list<int>"}
    records = [
        {"a": "7", "b": True, "c": 1, "d": [1]}, {"a": 7, "b": False, "c": "x"}, {"a": "x", "c": 1}, {"a": 7.0, "b": "true"},
        {"a": "8"},
    ]  # fmt: skip
    decoded = decode([json.dumps(record).encode() for record in records], declared(columns, cast="lenient"))
    rows = dict(zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True))
    assert {place: (row["a"], row["b"], row["c"], row["d"]) for place, row in rows.items()} == {
        0: (7, True, "1", [1]), 1: (7, False, "x", None), 4: (8, None, None, None),
    }  # fmt: skip
    assert decoded.drift.cast == {"a": 2, "c": 1}
    assert {r.index: r.error for r in decoded.rejections} == {
        3: "b: expected true or false (boolean), got the string 'true'",
        2: "a: expected a whole number (int), got the string 'x'",
    }


TOKENS = st.sampled_from(
    [
        "7", "-0", "7.0", "1.5", "1e3", "1e400", "-1.5E-3", "007", "2147483648", "9223372036854775808", "true", "false", "1",
        "0", "10", "null", "NaN", "-Infinity", "Inf", "[1]", "{}", "01", "1.", "-", "True", "", " 7 ", "+7", "7e", "x", "7,7",
        "1767259800123", "2026-01-01T09:30:00.5Z", "2026-02-30", "3.5e38", "-9223372036854775808", r"\u0037", r"7\n", r"\"",
    ]
)  # fmt: skip
KINDS = st.sampled_from(
    [
        ("int", None), ("long", None), ("double", None), ("float", None), ("boolean", None), ("string", None),
        ("date", None), ("decimal(5, 2)", None), ("timestamptz", None), ("timestamptz", "s"), ("timestamptz", "ms"),
        ("timestamp", "us"), ("timestamptz", "ns"),
    ]
)  # fmt: skip


@given(st.lists(st.tuples(TOKENS, st.booleans()), max_size=6), KINDS, st.booleans())
@example([("7", True), ("7", False), ("x", True)], ("int", None), False)
@example([("2", True), ("1", False), ("0", True), ("true", True)], ("boolean", None), False)
def test_the_loop_casts_values_as_casting_their_text_does(
    values: list[tuple[str, bool]], kind: tuple[str, str | None], required: bool
) -> None:
    schema = Schema(NestedField(1, "x", iceberg_type(kind[0]), required=required))
    unit = {"cast": "lenient", **({"unit": kind[1]} if kind[1] else {})}
    chunk = RecordChunk.of_values([b'{"x":%s,"y":1}' % (f'"{v}"' if quoted else v).encode() for v, quoted in values])
    (rows, count, errors), by_texts = (
        (
            {place: repr(x) for place, x in zip(found.record_indexes.tolist(), plain(found.rows["x"]), strict=True)},
            dict(found.drift.cast),
            {r.index: r[1:] for r in found.rejections},
        )
        for how in (create_fields_decoder, FieldsDecoder)
        if (found := how(JsonDecoder, schema, {1: unit}, RecordShape(lists=False))(chunk))
    )
    assert (rows, count, errors) == by_texts


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Times as numbers: Python has no time after the year 9999."""
    return (column.cast("int64") if pa.types.is_timestamp(column.type) else column).to_pylist()


def test_a_cast_value_is_counted_once_although_another_value_of_its_record_is_cast_from_text() -> None:
    columns = {
        "a": "int",
        "d": {"type": "double", "null-if": ["-"]},
        "n": {"type": "int", "from": "l[1]", "required": True},
    }
    records = [
        {"a": "7", "d": "1.5", "l": [0, 1]}, {"a": "8", "d": 1, "l": [0, 1]}, {"a": "9", "d": "x", "l": [0, 1]},
        {"a": "9", "d": "-", "l": [0, "1"]}, {"a": "9", "d": 1, "l": []}, {"a": 9, "l": [0, 1]},
    ]  # fmt: skip
    decoded = decode([json.dumps(record).encode() for record in records], declared(columns, cast="lenient"))
    assert (sorted(decoded.record_indexes.tolist()), decoded.drift.cast) == ([0, 1, 3, 5], {"a": 3, "d": 1, "n": 1})


def test_a_new_field_is_found_although_a_record_of_its_chunk_is_not_an_object(tmp_path: Path) -> None:
    schema = {"a": {"type": "long", "cast": "lenient"}, "b": {"type": "long", "null-if": [-1]}, "at": "timestamptz"}
    source = {"topics": ["t"], "bootstrap-servers": "b:1", "format": "json"}
    stream = {"name": "s", "source": source, "table": "a.b", "schema": schema, "event-time": "at"}
    spec = validate_stream(stream, tmp_path / "s.yaml")
    table = table_schema(spec)
    units = {table.find_field(name).field_id: unit for name, unit in spec.units.items()}
    columns = record_schema(table, spec.coordinates)
    decode = create_decoder(dump_format(spec.value_format), columns, units, evolution="additive")
    found = decode(RecordChunk.of_values([b'{"a": 1, "b": 2, "new": "x"}'] * 300 + [b"oops"]))
    assert (list(found.drift.new), found.drift.records, len(found.rejections)) == ([("new",)], 300, 1)


@pytest.mark.parametrize("kind", ["decimal(9, 2)", "long", "double"])
def test_numbers_that_mean_null_are_null_as_strings_too(kind: str) -> None:
    column = {"type": kind, "cast": "lenient", "null-if": [-999]}
    decoded = decode([b'{"x": "-999"}', b'{"x": -999}', b'{"x": " -999 "}', b'{"x": "7"}'], declared({"x": column}))
    assert plain(decoded.rows["x"]) == [None, None, None, 7]


def test_a_stream_with_strict_casts_counts_no_casts() -> None:
    decoded = decode([b'{"x": 1}', b'{"x": "1"}'], declared({"x": "int"}))
    assert (dict(decoded.drift.cast), len(decoded.rejections)) == ({}, 1)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ('"N/A"', None),
        ('"\\u004e/A"', None),
        ('""', None),
        ("-999", None),
        ("-999.0", None),
        ("-9.99e2", None),
        ("1.5", 1.5),
    ],
)
def test_values_that_mean_null_are_null_whatever_their_text(value: str, found: float | None) -> None:
    column = {"type": "double", "null-if": ["N/A", "", -999]}
    assert loaded(value, column) == (found, {})
    assert loaded(value, {**column, "default": 2.5}) == (2.5 if found is None else found, {})
    if found is None:
        assert loaded(value, {**column, "required": True}) == "x: required, and missing or null"


@pytest.mark.parametrize(
    ("kind", "default", "found"),
    [
        ("int", 5, 5), ("string", "none", "none"), ("boolean", False, False), ("decimal(5, 2)", "1.50", "1.50"),
        ("date", "2026-01-01", "2026-01-01"), ("timestamptz", "2026-01-01T00:00:00Z", "2026-01-01 00:00:00+00:00"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("required", [True, False])
def test_a_missing_field_takes_the_default(kind: str, default: Any, found: Any, required: bool) -> None:
    column = {"type": kind, "default": default, "required": required}
    for value in ("", "null"):
        ((got, cast), said) = loaded(value, column), found
        assert (str(got), cast) == (str(said), {})


def test_the_default_of_a_json_column_is_json_text() -> None:
    for default in ("{}", "[1, 2.50]", '"x"', "0", "true"):
        column = {"type": "string", "as": "json", "default": default}
        assert loaded("", column) == (default, {})
        assert loaded("null", column) == (default, {})
        assert loaded('{"a": 1}', column) == ('{"a": 1}', {})


@pytest.mark.parametrize("default", ["abc", "{", "1, 2", ""])
def test_a_default_of_a_json_column_that_is_not_json_is_refused(default: str) -> None:
    with pytest.raises(SpecError, match="is not JSON; write JSON, such as"):
        loaded("1", {"type": "string", "as": "json", "default": default})


def test_a_default_that_is_nested_too_deeply_is_refused_with_a_sentence() -> None:
    with pytest.raises(SpecError, match=r"^schema.x.default: objects and arrays are nested more than 500 deep$"):
        loaded("1", {"type": "string", "as": "json", "default": "[" * 2_000 + "]" * 2_000})


def test_a_default_fills_a_field_at_a_path_whose_objects_are_missing() -> None:
    columns = {"x": {"type": "int", "from": "a.b[1].c", "default": 3, "required": True, "cast": "lenient"}}
    values = [b"{}", b'{"a": {"b": [1, {"c": "4"}]}}', b'{"a": {"b": [1, {"c": "x"}]}}']
    decoded = decode(values, declared(columns))
    assert decoded.rows["x"].to_pylist() == [3, 4]
    assert [r.error for r in decoded.rejections] == ["x: expected a whole number (int), got the string 'x'"]


@pytest.mark.parametrize(
    ("column", "value", "found", "count"),
    [
        ({"type": "timestamptz", "unit": "ms"}, '"007"', "1970-01-01 00:00:00.007000+00:00", 1),
        ({"type": "timestamptz", "unit": "us"}, '" +5 "', "1970-01-01 00:00:00.000005+00:00", 1),
        ({"type": "timestamptz", "unit": "ms"}, '"1.5"', "x: expected a whole number (time in ms), got the string '1.5'", 0),
        ({"type": "timestamptz", "unit": "s"}, '"5.25"', "1970-01-01 00:00:05.250000+00:00", 0),
        ({"type": "timestamptz", "unit": "s"}, "5.0", "1970-01-01 00:00:05+00:00", 0),
        ({"type": "timestamptz", "unit": "s"}, '"007.5"', "1970-01-01 00:00:07.500000+00:00", 1),
        ({"type": "timestamptz", "unit": "s"}, '" 5 "', "1970-01-01 00:00:05+00:00", 1),
        ({"type": "decimal(5, 2)", "rounding": "half-up"}, "1.2345E+1", "12.35", 1),
        ({"type": "decimal(5, 2)", "rounding": "half-up"}, "-1e-70", "0.00", 1),
        ({"type": "decimal(5, 2)", "rounding": "half-up"}, "9.99995E2", "x: 1000.00 does not fit decimal(5, 2)", 0),
        ({"type": "decimal(5, 2)", "rounding": "half-up"}, "1e400", "x: 1e400 does not fit decimal(5, 2)", 0),
        ({"type": "long"}, "9007199254740993.0", "9007199254740993", 1),
        ({"type": "long"}, '"9223372036854775808"', "x: the number 9223372036854775808 is too big for long", 0),
        ({"type": "long"}, '"0x10"', "x: expected a whole number (long), got the string '0x10'", 0),
        ({"type": "double"}, '"1e400"', "x: the number 1e400 is too big for double", 0),
    ],
)  # fmt: skip
def test_a_value_at_the_limit_of_its_format_is_exact_or_a_dead_letter(
    column: dict[str, Any], value: str, found: str, count: int
) -> None:
    outcome = loaded(value, {**column, "cast": "lenient"})
    assert outcome == found if isinstance(outcome, str) else (str(outcome[0]), outcome[1].get("x", 0)) == (found, count)


def test_avro_values_are_cast() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "n", "type": ["null", "string"]}, {"name": "l", "type": "long"}],
    }
    columns = {
        "n": {"type": "int", "cast": "lenient", "null-if": ["-"]}, "l": {"type": "string", "cast": "lenient"},
    }  # fmt: skip
    form = {"type": "avro", "schema-text": json.dumps(schema)}
    records = [avro({"n": n, "l": 5}, schema) for n in ("7", None, "-", "x")]
    decoded = decode(records, declared(columns, form))
    assert [(row["n"], row["l"]) for row in decoded.rows.to_pylist()] == [(7, "5"), (None, "5"), (None, "5")]
    assert decoded.drift.cast == {"n": 1, "l": 3}
    schema = {**schema, "fields": [{"name": "d", "type": ["null", "double"]}, {"name": "f", "type": "float"}]}
    columns = {"d": {"type": "double", "cast": "lenient"}, "f": {"type": "float", "null-if": [0.5]}}
    values = [{"d": float("-inf"), "f": float("inf")}, {"d": None, "f": 0.5}, {"d": 0.1, "f": 0.25}]
    form = {"type": "avro", "schema-text": json.dumps(schema)}
    decoded = decode([avro(value, schema) for value in values], declared(columns, form))
    assert decoded.rows.select(["d", "f"]).to_pylist() == [values[0], {"d": None, "f": None}, values[2]]
    assert decoded.drift.cast == {}


def test_protobufs_numbers_are_numbers_although_its_json_mapping_writes_some_as_text() -> None:
    text = """syntax = "proto3"; import "google/protobuf/wrappers.proto"; enum E {A = 0; B = 1;}
    message R {double d = 1; float f = 2; google.protobuf.Int64Value w = 3; E e = 4; bool b = 5; bytes y = 6; int64 n = 7;}
    """
    kinds = {"d": "double", "f": "float", "w": "long", "e": "string", "b": "boolean", "y": "binary", "n": "long"}
    form = {"type": "protobuf", "schema-text": text, "message": "R"}
    message = GetMessageClass(message_of(text, (), "R"))(d=float("inf"), f=0.1, e=1, b=True, y=b"ab", n=2**60)
    message.w.value = 3
    value = message.SerializeToString()
    (usual,) = decode([value], declared(kinds, form)).rows.to_pylist()
    for how in ({"cast": "lenient"}, {"null-if": ["-"]}):
        decoded = decode([value], declared({name: {"type": kind, **how} for name, kind in kinds.items()}, form))
        assert (decoded.rows.to_pylist(), decoded.drift.cast) == ([usual], {})
    columns = {"w": {"type": "boolean", "cast": "lenient"}, "n": {"type": "long", "null-if": [2**60], "default": 5}}
    decoded = decode([value], declared(columns, form))
    assert [r.error for r in decoded.rejections] == ["w: expected true or false (boolean), got the number 3"]
    message.w.value = 1
    decoded = decode([message.SerializeToString()], declared(columns, form))
    assert decoded.rows.select(["w", "n"]).to_pylist() == [{"w": True, "n": 5}]
    assert decoded.drift.cast == {"w": 1}


def test_captured_changes_support_null_if_and_defaults() -> None:
    """PostgreSQL's infinity arrives as a number or a text that no timestamp can hold."""
    until = {"type": "timestamptz", "unit": "us", "null-if": [9223372036825200000], "default": "9999-12-31T00:00:00Z"}
    columns = {"id": "long not null", "until": {**until, "default": 253402214400000000}}
    spec = declared(columns, {"type": "json", "envelope": "debezium"}, mode="upsert", key="id")
    spec["event-time"] = "kafka_timestamp"
    events = [{"op": "c", "after": {"id": 1, "until": value}, "source": {}} for value in (9223372036825200000, 5, None)]
    decoded = decode([json.dumps(one).encode() for one in events], spec)
    assert decoded.rejections == []
    assert [str(value) for value in decoded.rows["until"].to_pylist()] == [
        "9999-12-31 00:00:00+00:00", "1970-01-01 00:00:00.000005+00:00", "9999-12-31 00:00:00+00:00",
    ]  # fmt: skip


KEPT = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    ("column", "value", "found"),
    [
        ({"type": "string", "null-if": ["-"]}, KEPT, (None, [2])),
        ({"type": "string", "null-if": ["-"]}, "-", (None, None)),
        ({"type": "binary", "null-if": ["AA=="]}, base64.b64encode(KEPT.encode()).decode(), (None, [2])),
        ({"type": "date", "null-if": [2147483647]}, 2147483647, (None, None)),
        ({"type": "date", "null-if": [2147483647]}, 20454, (date(2026, 1, 1), None)),
        ({"type": "date", "null-if": [2147483647]}, -(2**31), "x: '-2147483648 days since 1970' is not a valid date"),
        ({"type": "date", "null-if": [2147483647], "default": "9999-12-31"}, 2147483647, (date(9999, 12, 31), None)),
        ({"type": "time", "null-if": [-1]}, 3_723_000_001, (time(1, 2, 3, 1), None)),
        ({"type": "time", "null-if": [-1]}, 86_400_000_000, "x: '86400000000 microseconds' is not a valid time"),
    ],
)  # fmt: skip
def test_values_that_mean_null_leave_the_other_values_of_captured_changes_as_they_are(
    column: dict[str, Any], value: Any, found: Any
) -> None:
    """Omitted values have a placeholder, and dates arrive as numbers, whether or not a column has `null-if`."""
    columns = {"id": "long not null", "x": column}
    spec = declared(columns, {"type": "json", "envelope": "debezium"}, mode="upsert", key="id")
    spec["event-time"] = "kafka_timestamp"
    event = {"op": "u", "after": {"id": 1, "x": value}, "source": {}}
    decoded = decode([json.dumps(event).encode()], spec)
    rows = [(row["x"], row["_frazil_kept"]) for row in decoded.rows.to_pylist()]
    assert [*rows, *(r.error for r in decoded.rejections)] == [found]


@pytest.mark.parametrize(
    ("column", "form", "more", "said"),
    [
        ({"type": "struct<a: int>", "cast": "lenient"}, "json", {}, "needs a column of a primitive type, but this one is struct<a: int>"),
        ({"type": "int", "rounding": "half-up"}, "json", {}, "needs a decimal"),
        ({"type": "decimal(5, 2)", "rounding": "half-up"}, "json", {}, "needs cast: lenient"),
        ({"type": "list<int>", "null-if": [1]}, "json", {}, "needs a column of a primitive type"),
        ({"type": "int", "cast": "lenient"}, "csv", {}, "cannot be used with source.format csv"),
        ({"type": "int", "null-if": ["-"]}, "csv", {}, "source.format.null"),
        ({"type": "string", "default": "x"}, "string", {}, "source.format is string"),
        ({"type": "int", "default": "x"}, "json", {}, "is not a valid value for a column of type int"),
        ({"type": "string", "default": 1}, "json", {}, "is not a valid value for a column of type string"),
        ({"type": "string", "default": "x"}, "json", {"rest": "x"}, "but this column stores all other fields"),
        (
            {"type": "int", "cast": "lenient"},
            {"type": "json", "envelope": "debezium"},
            {"mode": "upsert", "key": "y"},
            "whose types are those of the source's table",
        ),
    ],
)  # fmt: skip
def test_an_invalid_column_setting_is_refused_with_the_reason(
    column: dict[str, Any], form: Any, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError) as error:
        validate_stream(
            declared({"x": column, "y": "int not null"} if form != "string" else {"x": column}, form, **more),
            Path("s.yaml"),
        )
    assert said in str(error.value)
