"""Avro behind schema ids: the schema that reads a record, and the error if none can."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg import types as t
from pyiceberg.schema import Schema

from frazil.errors import RegistryUnavailable, SpecError
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, DecoderOptions
from frazil.ingest.formats import check_supported, create_decoder
from frazil.ingest.formats.avro import program
from frazil.ingest.formats.avro.decoder import AvroDecoder
from frazil.ingest.formats.avro.schema import UnreadableSchema, parse_schema
from frazil.registry.client import SchemaText, UnknownSchema
from frazil.spec.formats import AvroFormat, dump_portable_format

COLUMNS = Schema(
    t.NestedField(1, "s", t.StringType(), required=True),
    t.NestedField(2, "l", t.LongType()),
    t.NestedField(3, "in", t.StructType(t.NestedField(4, "x", t.IntegerType(), required=True))),
)

COLUMNS_OF_ONE = Schema(t.NestedField(1, "s", t.StringType()))


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields], **more}


class Registered:
    """Schemas by id; an error is raised."""

    def __init__(self, schemas: Mapping[int, Any]) -> None:
        self._schemas = schemas
        self.requested: list[int] = []

    def prefetch(self, schema_ids: Sequence[int]) -> None:
        pass

    def get(self, schema_id: int) -> SchemaText:
        self.requested.append(schema_id)
        found = self._schemas.get(schema_id, UnknownSchema(f"the registry has no schema with id {schema_id}"))
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, SchemaText) else SchemaText("AVRO", json.dumps(found))


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, _force=True), value)
    return out.getvalue()


def framed(schema_id: int, content: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + content


def outcomes(decoded: DecodedChunk) -> dict[int, Any]:
    rows = dict(zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True))
    return rows | {r.index: (r.error_class, r.error) for r in decoded.rejections}


FIRST = record(("s", "string"), ("l", "int"))
SECOND = record(
    ("more", {"type": "array", "items": "string"}), ("s", ["null", "string"]), ("in", record(("x", "int"), name="I"))
)


def test_each_record_is_read_by_the_schema_of_its_id() -> None:
    registered = Registered({7: FIRST, 70_000: SECOND})
    values = [
        framed(7, encoded(FIRST, {"s": "a", "l": -1})),
        framed(70_000, encoded(SECOND, {"more": ["x"] * 3, "s": "b", "in": {"x": 5}})),
        framed(7, encoded(FIRST, {"s": "ä", "l": 2**31 - 1})),
    ]
    decoded = AvroDecoder(COLUMNS, {}, registered)(RecordChunk.of_values(values))
    assert outcomes(decoded) == {
        0: {"s": "a", "l": -1, "in": None},
        1: {"s": "b", "l": None, "in": {"x": 5}},
        2: {"s": "ä", "l": 2**31 - 1, "in": None},
    }
    assert sorted(registered.requested) == [7, 70_000]


def test_an_unreadable_record_is_a_dead_letter_with_the_reason_and_affects_no_neighbour() -> None:
    lacking = record(("l", "long"))
    schemas = {
        1: FIRST,
        2: SchemaText("PROTOBUF", "x"),
        3: SchemaText("AVRO", '{"type": "nonsense"}'),
        4: lacking,
        5: record(("s", "int")),
        6: record(("s", "string"), ("in", record(name="I"))),
        7: "string",
    }
    valid = framed(1, encoded(FIRST, {"s": "a", "l": 1}))
    expected: list[tuple[bytes | None, tuple[str, str]]] = [
        (None, ("Tombstone", "no value")),
        (b"", ("Empty", "value is empty")),
        (b'{"s":"x"}', ("NotFramed", "the value is plain JSON")),
        (b"\0\0\0\0", ("NotFramed", "does not begin with a zero byte and a schema id")),
        (framed(9, b"\2a\2"), ("UnknownSchema", "the registry has no schema with id 9")),
        (framed(2**31, b"\2a\2"), ("UnknownSchema", "the registry has no schema with id -2147483648")),
        (framed(2, b""), ("UnreadableSchema", "the schema of id 2 is of type PROTOBUF")),
        (framed(3, b""), ("UnreadableSchema", "the schema of id 3 is not a valid Avro schema: ")),
        (framed(4, b"\2"), ("MissingRequired", "s: required, and the writer schema's R has no such field")),
        (framed(5, b"\2"), ("TypeMismatch", "s: Avro's int cannot fill a column of type string")),
        (framed(6, b"\2a"), ("MissingRequired", "in.x: required, and the writer schema's I has no such field")),
        (framed(7, b"\2a"), ("TypeMismatch", "Avro's string cannot fill the record")),
        (valid + b"\0", ("InvalidAvro", "the record: the record has bytes after its last field (byte 3")),
        (valid[:-1], ("InvalidAvro", "l: the record ends within this value (byte 2")),
        (framed(1, b"\2\xff\2"), ("InvalidUtf8", "s: a string is not UTF-8 (byte 0")),
        (framed(1, b"\2a" + b"\xff" * 9 + b"\1"), ("InvalidAvro", "l: an int has more than 32 bits")),
        (framed(1, b"\2a" + b"\xff" * 11), ("InvalidAvro", "l: a number has more than 64 bits")),
    ]
    values = [value for pair in expected for value in (pair[0], valid)]
    found = outcomes(AvroDecoder(COLUMNS, {}, Registered(schemas))(RecordChunk.of_values(values)))
    for i, (value, (error_class, text)) in enumerate(expected):
        assert found[2 * i][0] == error_class, value
        assert text in found[2 * i][1]
        assert found[2 * i + 1] == {"s": "a", "l": 1, "in": None}


def test_an_unavailable_registry_rejects_no_record() -> None:
    decode = AvroDecoder(COLUMNS, {}, Registered({1: RegistryUnavailable("away")}))
    with pytest.raises(RegistryUnavailable):
        decode(RecordChunk.of_values([framed(1, b"\2a\2")]))


def test_a_null_in_a_required_column_or_a_wrong_union_branch_rejects_only_its_record() -> None:
    schema = record(("s", ["null", "string"]), ("l", ["null", "int", "string", "long"]))
    values = [{"s": "a", "l": None}, {"s": None, "l": 1}, {"s": "b", "l": 5}, {"s": "c", "l": "x"}]
    decode = AvroDecoder(COLUMNS, {}, SchemaText("AVRO", json.dumps(schema)))
    found = outcomes(decode(RecordChunk.of_values([encoded(schema, value) for value in values])))
    assert found == {
        0: {"s": "a", "l": None, "in": None},
        1: ("MissingRequired", "s: required, and the record has null"),
        2: {"s": "b", "l": 5, "in": None},
        3: ("TypeMismatch", "l: Avro's string cannot fill a column of type long"),
    }


def test_an_avro_alias_fills_a_column_without_a_field_of_its_name() -> None:
    schema = record(("title", "string"), ("l", "long"))
    schema["fields"][0]["aliases"] = ["l", "s"]
    decode = AvroDecoder(COLUMNS, {}, SchemaText("AVRO", json.dumps(schema)))
    assert outcomes(decode(RecordChunk.of_values([b"\2a\4"]))) == {0: {"s": "a", "l": 2, "in": None}}


def test_types_are_found_by_full_name_across_references_and_inside_themselves() -> None:
    inner = json.dumps(record(("x", "int"), name="I", namespace="a.b"))
    tree = record(("next", ["null", "T"]), name="T", namespace="a")
    schema = record(("s", "string"), ("tree", tree), ("in", "b.I"), namespace="a")
    with pytest.raises(UnreadableSchema):
        parse_schema(json.dumps(schema))
    schema["fields"][2]["type"] = "a.b.I"
    decode = AvroDecoder(COLUMNS, {}, SchemaText("AVRO", json.dumps(schema), (("I", inner),)))
    data = b"\2a" + b"\2" * 300 + b"\0" + b"\6"
    assert outcomes(decode(RecordChunk.of_values([data]))) == {0: {"s": "a", "l": None, "in": {"x": 3}}}
    deep = outcomes(decode(RecordChunk.of_values([b"\2a" + b"\2" * 10_000 + b"\0" + b"\6"])))
    assert deep[0][0] == "TooDeep"


def test_an_invalid_schema_is_reported() -> None:
    for text in (
        "",
        "[]",
        "5",
        '["null", ["int"]]',
        '{"type": "record"}',
        '{"type": "fixed", "name": "f", "size": -1}',
    ):
        with pytest.raises(UnreadableSchema):
            parse_schema(text)


LISTS = Schema(
    t.NestedField(1, "n", t.ListType(2, t.StructType(t.NestedField(3, "x", t.LongType())), element_required=False)),
    t.NestedField(4, "m", t.MapType(5, t.StringType(), 6, t.LongType(), value_required=False)),
)
NULLS = record(
    ("n", {"type": "array", "items": record(("y", "null"), name="E")}), ("m", {"type": "map", "values": "long"})
)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1",  # -2**63 elements
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1",  # 2**63 - 1 elements
        b"\x80\x80\x80\x80\x10" + b"\0" * 100_000,  # 2**31 elements without bytes
        b"\x80\x40" * 50_000,  # 4096 elements without bytes, again and again
        b"\0\x80\x80\x80\x80\x10" + b"\0" * 100,  # a map of 2**31 entries
        b"\0\2\x80\x80\x80\x80\x10" + b"a" * 100,  # a key of 2**31 bytes
    ],
)
def test_impossible_lengths_in_an_avro_record_allocate_little_memory(content: bytes) -> None:
    decode = AvroDecoder(LISTS, {}, SchemaText("AVRO", json.dumps(NULLS)))
    decode(RecordChunk.of_values([b"\0\0"]))
    tracemalloc.start()
    try:
        found = outcomes(decode(RecordChunk.of_values([content])))
        _, limit = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found[0][0] == "InvalidAvro"
    assert limit < 2**20


def test_elements_that_take_no_bytes_cost_little() -> None:
    columns = Schema(t.NestedField(1, "l", t.ListType(2, t.StringType(), element_required=False), required=False))
    written = record(("l", {"type": "array", "items": "null"}))
    decode = AvroDecoder(columns, {}, SchemaText("AVRO", json.dumps(written)))
    few, many = encoded(written, {"l": [None] * 64}), encoded(written, {"l": [None] * 65})
    found = outcomes(decode(RecordChunk.of_values([few, many])))
    assert found[0] == {"l": [None] * 64}
    assert found[1][0] == "InvalidAvro"


def test_many_keys_are_compared_and_a_repeated_one_is_reported() -> None:
    schema = record(("m", {"type": "map", "values": "long"}))
    decode = AvroDecoder(LISTS, {}, SchemaText("AVRO", json.dumps(schema)))
    many = {f"key {i}": i for i in range(20_000)}
    data = encoded(schema, {"m": many})
    found = outcomes(decode(RecordChunk.of_values([data, b"\4\2a\2\2a\4\0", data])))
    assert found[0]["m"] == found[2]["m"] == [*many.items()]
    assert found[1][0] == "TypeMismatch"
    assert "m: the map has a key twice" in found[1][1]


def test_types_that_unfold_to_exponentially_many_are_read_or_refused_at_once() -> None:
    inner: Any = record(name="R0")
    for i in range(60):
        inner = record(("a", inner), ("b", f"R{i}"), name=f"R{i + 1}")
    schema = record(("new", {"type": "array", "items": inner}))
    decode = AvroDecoder(COLUMNS_OF_ONE, {}, SchemaText("AVRO", json.dumps(schema)), DecoderOptions(drift="full"))
    assert outcomes(decode(RecordChunk.of_values([b"\0"]))) == {0: {"s": None}}


def test_a_schema_with_too_many_operations_is_refused_and_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_OPERATIONS", 5)
    wide = record(*((f"f{i}", "int" if i % 2 else "string") for i in range(8)))
    decode = AvroDecoder(COLUMNS_OF_ONE, {}, Registered({1: wide, 2: record(("s", "string"))}))
    found = outcomes(decode(RecordChunk.of_values([framed(1, b""), framed(2, b"\2a")])))
    assert found[0][0] == "UnreadableSchema"
    assert "the schema of id 1 is too large: reading its types" in found[0][1]
    assert found[1] == {"s": "a"}


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ('{"type":"array","items":', "}"),
        ("[", "]"),
        ('{"type":[', "]}"),
        ('{"type":"record","name":"R","fields":[{"name":"x","type":', "}]}"),
        ('{"type":"int","doc":', "}"),
    ],
)
def test_a_schema_whose_json_is_nested_beyond_a_limit_is_refused_by_that_limit(start: str, end: str) -> None:
    """The same on all versions of Python, because a schema within the limit does not reach Python's own."""

    def nested(levels: int) -> str:
        times = levels // (start.count("{") + start.count("["))
        return start * times + '"int"' + end * times

    refusal = r"its JSON is nested more than 250 levels deep"
    for levels in (260, 5000, 100_000):
        with pytest.raises(UnreadableSchema, match=refusal):
            parse_schema(nested(levels))
        with pytest.raises(UnreadableSchema, match=refusal):
            parse_schema('"int"', [nested(levels)])
    with suppress(UnreadableSchema):  # "[[" and records of one name are invalid
        parse_schema(nested(250))


def test_a_schema_that_is_nested_too_deep_is_refused_and_others_are_read() -> None:
    deep: Any = "long"
    for _ in range(260):
        deep = {"type": "array", "items": deep}
    decode = AvroDecoder(COLUMNS_OF_ONE, {}, Registered({1: record(("new", deep)), 2: record(("s", "string"))}))
    found = outcomes(decode(RecordChunk.of_values([framed(1, b"\0"), framed(2, b"\2a")])))
    assert found[0][0] == "UnreadableSchema"
    assert "the schema of id 1 is not a valid Avro schema: its JSON is nested" in found[0][1]
    assert found[1] == {"s": "a"}


def test_named_types_may_refer_to_each_other_in_a_long_chain() -> None:
    """Their JSON is flat; only the types are nested."""
    chain = [record(("x", "long"), name="R0")]
    chain += [record(("x", f"R{i}"), name=f"R{i + 1}") for i in range(3000)]
    schema = json.dumps(record(("new", ["null", "R3000"]), ("s", "string")))
    decode = AvroDecoder(COLUMNS_OF_ONE, {}, SchemaText("AVRO", schema, (("chain", json.dumps(chain)),)))
    found = outcomes(decode(RecordChunk.of_values([b"\0\2a", b"\2\6\2a"])))
    assert found[0] == {"s": "a"}
    assert found[1][0] == "TooDeep"


def test_a_declared_schema_is_sent_to_executors_as_text(tmp_path: Path) -> None:
    (tmp_path / "s.avsc").write_text(json.dumps(FIRST))
    carried = dump_portable_format(AvroFormat(schema_file=str(tmp_path / "s.avsc")))
    decode = create_decoder(carried, COLUMNS, {})
    (tmp_path / "s.avsc").unlink()
    assert outcomes(decode(RecordChunk.of_values([b"\2a\2"]))) == {0: {"s": "a", "l": 1, "in": None}}
    with pytest.raises(SpecError, match=r"schema-file: .*s\.avsc cannot be read"):
        dump_portable_format(AvroFormat(schema_file=str(tmp_path / "s.avsc")))


def test_a_column_that_avro_cannot_fill_is_refused_beforehand() -> None:
    columns = Schema(t.NestedField(1, "m", t.MapType(2, t.LongType(), 3, t.LongType())))
    with pytest.raises(SpecError, match="keys of format avro are strings"):
        check_supported(columns, AvroFormat(schema_text="{}"))


def test_a_missing_or_unreadable_declared_schema_is_an_error_of_the_declaration() -> None:
    with pytest.raises(SpecError, match="the declared schema is not a valid Avro schema: KeyError: 'type'"):
        check_supported(COLUMNS, AvroFormat(schema_text="{}"))
    with pytest.raises(SpecError, match=r"source\.format\.schema-file: nowhere\.avsc cannot be read"):
        check_supported(COLUMNS, AvroFormat(schema_file="nowhere.avsc"))
    check_supported(COLUMNS, AvroFormat(schema_text=json.dumps(FIRST)))


@pytest.mark.parametrize("kind", [t.DateType(), t.TimestamptzType(), t.TimestampType(), t.TimeType()], ids=str)
@pytest.mark.parametrize(
    "text",
    [
        *("", "é", "2026", "2026-01-02", "2026-01-02Z", "2026-01-02ZZ", "2026-02-29", " 2026-01-02"),
        *(
            "2026-01-02T",
            "2026-01-02T03",
            "2026-01-02T03:04:05",
            "2026-01-02 03:04:05.1234567Z",
            "2026-01-02T03:04:05+1",
        ),
        *(
            "2026-01-02T03:04:05-08:30",
            "2026-01-02T24:00:00Z",
            "2026-01-02T03:04:05,5Z",
            "2026-01-02T03:04:05." + 60 * "1",
        ),
        *("04:05", "04:05:06Z", "04:05:06.", "04:05:06+00:00", "04:05:06.789", '04:05"', "2026-01-02\0"),
    ],
)
def test_a_date_or_time_as_text_is_decoded_in_avro_as_in_json(kind: t.IcebergType, text: str) -> None:
    columns = Schema(t.NestedField(1, "x", kind, required=False))
    record = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(record), {"x": text})
    avro = create_decoder({"type": "avro", "schema-text": json.dumps(record)}, columns, {})
    in_json = create_decoder("json", columns, {})(
        RecordChunk.of_values([json.dumps({"x": text}, ensure_ascii=False).encode()])
    )
    decoded = avro(RecordChunk.of_values([out.getvalue()]))
    as_numbers = [found.rows["x"].combine_chunks().cast(pa.string()).to_pylist() for found in (decoded, in_json)]
    assert as_numbers[0] == as_numbers[1] or len(text) > 64
    assert len(decoded.rejections) == 1 - len(as_numbers[0])


@pytest.mark.parametrize(
    ("kind", "text"), [(t.DateType(), "%s-01-01"), (t.TimestamptzType(), "%s-01-01T00:00:00Z")], ids=str
)
def test_a_date_as_text_is_in_the_years_1_to_9999(kind: t.IcebergType, text: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}
    decode = create_decoder(
        {"type": "avro", "schema-text": json.dumps(schema)}, Schema(t.NestedField(1, "x", kind, required=False)), {}
    )
    values = [bytes([2 * len(text % year)]) + (text % year).encode() for year in ("0000", "0001", "9999")]
    decoded = decode(RecordChunk.of_values(values))
    assert [r.index for r in decoded.rejections] == [0]
    assert decoded.record_indexes.tolist() == [1, 2]
