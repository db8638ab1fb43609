"""Columns from the fields of record keys, or from a whole key that has a type."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyiceberg.schema import Schema

from frazil.errors import SpecError
from frazil.ingest.changes import change_schema
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.contract import OffsetRange, StageContext
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.shaper import RecordDecoder, Shaper
from frazil.ingest.target_decoders import open_decoder
from frazil.spec import iceberg
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.stream.stage_context import change_rules, key_columns
from tests.made_registry import made_registry
from tests.unit.ingest.test_transform import context_of

COLUMNS = {"user": {"type": "long", "required": True, "from": {"key": "id"}}, "n": "int"}


def stream(columns: Any, source: Any = None, folder: Path = Path(), **other: Any) -> StreamSpec:
    source = {"topics": ["t"], "bootstrap-servers": "broker:9092", **(source or {})}
    declared = {"name": "s", "source": source, "table": "a.b", "schema": columns, "event-time": "kafka_timestamp"}
    return validate_stream({**declared, **other}, folder / "s.yaml")


def stage_context(spec: StreamSpec) -> StageContext:
    schema, context = iceberg.table_schema(spec), context_of(spec)
    if changes := change_rules(spec, schema, {}):
        text = change_schema(schema, changes.key).model_dump_json()
        main = dataclasses.replace(context.main, schema_json=text)
        context = dataclasses.replace(context, changes=changes, targets={**context.targets, "main": main})
    return dataclasses.replace(context, key_columns=key_columns(spec))


def shaped(spec: StreamSpec, records: Sequence[tuple[Any, Any]]) -> DecodedChunk:
    context = stage_context(spec)
    schema = Schema.model_validate_json(context.main.schema_json)
    keys, values = (
        [v if isinstance(v, bytes | None) else json.dumps(v).encode() for v in c] for c in zip(*records, strict=True)
    )
    chunk = dataclasses.replace(RecordChunk.of_values(values), keys=BinaryColumn.of(keys))
    ranges = [OffsetRange("t", 0, 0, len(records))]
    decode = RecordDecoder(context, schema, open_decoder(context, schema))
    return Shaper(context, schema, ranges, decode=decode)(chunk)


def rows(found: DecodedChunk) -> dict[int, dict[str, Any]]:
    made = ({k: v for k, v in row.items() if not k.startswith(("kafka_", "_"))} for row in found.rows.to_pylist())
    return dict(zip(found.record_indexes.tolist(), made, strict=True))


def errors(found: DecodedChunk) -> dict[int, str]:
    return {r.index: r.error for r in found.rejections}


def refusals(columns: Any, source: Any = None, **other: Any) -> str:
    with pytest.raises(SpecError) as error:
        stream(columns, source, **other)
    return str(error.value)


def avro(schema: Any, value: Any) -> bytes:
    to = io.BytesIO()
    fastavro.schemaless_writer(to, fastavro.parse_schema(schema), value)
    return to.getvalue()


def test_fields_of_a_json_key_fill_columns_with_casts_and_defaults() -> None:
    columns = {
        "user": {"type": "long", "required": True, "from": {"key": "id"}},
        "city": {"type": "string", "from": {"key": "address.city"}, "default": "none"},
        "first": {"type": "int", "from": {"key": "items[0].n"}, "cast": "lenient"},
        "n": "int",
    }
    found = shaped(
        stream(columns),
        [
            ({"id": 7, "address": {"city": "Ur"}, "items": [{"n": "3"}]}, {"n": 1, "user": 99}),
            ({"id": 8}, {"n": 2}),
            ({"address": {}}, {"n": 3}),
            (b"{", {"n": 4}),
            (None, {"n": 5}),
            ({"id": 9}, b"{"),
        ],
    )
    assert rows(found) == {
        0: {"user": 7, "city": "Ur", "first": 3, "n": 1},
        1: {"user": 8, "city": "none", "first": None, "n": 2},
    }
    assert errors(found)[2] == "the record's key: user: required, and missing or null"
    assert errors(found)[3].startswith("the record's key: ")
    assert errors(found)[4] == "user: required, and the record has no key"
    assert sorted(errors(found)) == [2, 3, 4, 5]
    assert found.drift.cast == {"first": 1}


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("long", b" 42 ", 42),
        ("string", b'"a\\"b"', 'a"b'),
        ("boolean", b"true", True),
        ("double", b"1e3", 1000.0),
        ("long", b"null", None),
        ("long", None, None),
    ],
)
def test_a_whole_json_key_of_a_primitive_type_fills_a_column(kind: str, key: bytes | None, value: Any) -> None:
    found = shaped(stream({"user": kind, "n": "int"}, {"key": {"column": "user", "format": "json"}}), [(key, {"n": 1})])
    assert rows(found) == {0: {"user": value, "n": 1}}


@pytest.mark.parametrize(
    "key", [b"", b"{}", b"[1]", b"1,2", b'1,"key":2', b"1}", b"x", b'"a', b'"a"b', b"1 2", b"\xff"]
)
def test_a_key_that_is_not_one_json_value_is_a_dead_letter(key: bytes) -> None:
    spec = stream({"user": "long", "n": "int"}, {"key": {"column": "user", "format": "json"}})
    found = shaped(spec, [(key, {"n": 1}), (b"5", {"n": 2})])
    assert rows(found) == {1: {"user": 5, "n": 2}}
    assert errors(found)[0].startswith("the record's key: ")


def test_the_raw_key_and_its_fields_fill_columns_side_by_side() -> None:
    spec = stream({**COLUMNS, "raw": "string"}, {"key": {"column": "raw"}})
    assert rows(shaped(spec, [({"id": 7}, {"n": 1})])) == {0: {"user": 7, "n": 1, "raw": '{"id": 7}'}}


KEY = {"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize(("schema", "column", "key"), [(KEY, None, {"id": 7}), ("long", "user", 7)])
def test_an_avro_key_with_its_own_schema_is_read(tmp_path: Path, schema: Any, column: str | None, key: Any) -> None:
    (tmp_path / "key.avsc").write_text(json.dumps(schema))
    declared = {"format": "avro", "schema-file": "key.avsc"} | ({"column": column} if column else {})
    columns = {"user": "long", "n": "int"} if column else COLUMNS
    spec = stream(columns, {"key": declared}, tmp_path)
    found = shaped(spec, [(avro(schema, key), {"n": 1}), (b"\xff" * 12, {"n": 2})])
    assert rows(found) == {0: {"user": 7, "n": 1}}
    assert errors(found)[1].startswith("the record's key: ")


@pytest.mark.parametrize(("schema", "key"), [(KEY, {"id": 7}), ("long", 7)])
def test_avro_keys_are_read_with_the_registry_of_values(schema: Any, key: Any) -> None:
    value = {"type": "record", "name": "V", "fields": [{"name": "n", "type": "int"}]}
    with made_registry() as registry:
        for schema_id, of in ((1, schema), (2, value)):
            registry.answers[f"/schemas/ids/{schema_id}"] = [(200, {"schema": json.dumps(of)})]
        source: dict[str, Any] = {"format": {"type": "avro", "registry": {"url": registry.url}}}
        if schema == "long":
            source["key"] = {"column": "user", "format": "value"}
        spec = stream({"user": "long", "n": "int"} if schema == "long" else COLUMNS, source)
        sent = b"\0\0\0\0\2" + avro(value, {"n": 1})
        found = shaped(spec, [(b"\0\0\0\0\1" + avro(schema, key), sent), (b"plain", sent)])
    assert rows(found) == {0: {"user": 7, "n": 1}}
    assert errors(found)[1].startswith("the record's key: ")


def test_a_protobuf_key_with_its_own_schema_is_read(tmp_path: Path) -> None:
    (tmp_path / "key.proto").write_text('syntax = "proto3"; message K { int64 id = 1; }')
    spec = stream(COLUMNS, {"key": {"format": "protobuf", "schema-file": "key.proto"}}, tmp_path)
    assert rows(shaped(spec, [(b"\x08\x07", {"n": 1})])) == {0: {"user": 7, "n": 1}}


def test_a_tombstone_deletes_the_row_of_a_composite_key() -> None:
    columns = {
        "user": {"type": "long", "required": True, "from": {"key": "id"}},
        "place": {"type": "string", "required": True, "from": {"key": "at.place"}},
        "n": "int",
    }
    spec = stream(columns, mode="upsert", key=["user", "place"], delete="tombstones")
    key = {"id": 7, "at": {"place": "Ur"}}
    found = shaped(spec, [(key, {"n": 1}), (key, None), ({"id": 7}, None)])
    assert rows(found) == {0: {"user": 7, "place": "Ur", "n": 1}, 1: {"user": 7, "place": "Ur", "n": None}}
    assert found.rows.column("_frazil_change").to_pylist() == [0, 1]
    assert errors(found) == {2: "the record's key: at: required, and missing or null"}


def test_a_transform_reads_fields_of_the_key() -> None:
    fields = {"user": {"type": "long", "from": {"key": "id"}}, "n": "int"}
    spec = stream({"a": "long"}, {"schema": fields}, transform="SELECT user * 10 + n AS a FROM records")
    assert rows(shaped(spec, [({"id": 7}, {"n": 1})])) == {0: {"a": 71}}


@pytest.mark.parametrize(
    ("columns", "source", "other", "message"),
    [
        (COLUMNS, {"format": "csv"}, {}, "schema.user.from: needs keys with fields, but source.format is csv"),
        (
            {**COLUMNS, "x": {"type": "long", "from": {"key": "id"}}},
            {},
            {},
            "schema.x.from: is also read by the column",
        ),
        ({"n": "int"}, {"key": {"format": "json"}}, {}, "source.key.column: is missing"),
        ({"n": "int"}, {"key": {"column": "n", "format": "avro"}}, {}, "which needs schema-file"),
        (COLUMNS, {"key": {"column": "n", "format": "json"}}, {}, "whole key, and the column user stores a field"),
        ({"n": "list<int>"}, {"key": {"column": "n", "format": "json"}}, {}, "stores the whole key in a nested type"),
        (COLUMNS, {"format": {"type": "avro", "schema-text": '"long"'}}, {}, "needs the schema of keys"),
        (
            {"n": "int"},
            {"key": {"column": "n", "format": "protobuf", "schema-file": "k.proto"}},
            {},
            "cannot store the whole key, which is a message",
        ),
        (
            {**COLUMNS, "v": "int"},
            {"format": {"type": "json", "envelope": "debezium"}},
            {"mode": "upsert", "key": ["user"]},
            "cannot be used for a column that `key` lists: the row in the envelope fills such a column",
        ),
        (COLUMNS, {}, {"rest": "user"}, "is a field of the key, but a header or rest also fills the column"),
        ({"n": {"type": "int", "from": {"kay": "id"}}}, {}, {}, "schema.n.from"),
    ],
)
def test_columns_that_keys_cannot_fill_are_refused(columns: Any, source: Any, other: Any, message: str) -> None:
    assert message in refusals(columns, source, **other)
