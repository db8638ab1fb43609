"""Columns from a nested object, and records without a field of any column."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.formats import create_decoder, create_quoter
from frazil.ingest.schema_drift import SchemaDrift
from frazil.spec import iceberg
from frazil.spec.formats import dump_format
from frazil.spec.model import StreamSpec
from tests.unit.ingest.test_json_texts import AVRO, INNER, PROTO, avro, declared, decode, proto

UNWRAP = {"type": "json", "unwrap": "payload"}


def wrapped(payload: Any) -> bytes:
    return json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode()


def test_the_columns_are_taken_from_the_payload_and_each_error_names_its_column() -> None:
    columns = {"id": "long not null", "s": "struct<a: int>", "j": {"type": "string", "as": "json"}, "r": "string"}
    values = [
        wrapped({"id": 1, "s": {"a": 1, "b": 2}, "j": [1], "more": 1.5}),
        wrapped({"id": 2}),
        wrapped({"id": "x"}),
        wrapped({}),
        wrapped(None),
        b'{"id": 1}',
    ]
    decoded = decode(values, declared(columns, UNWRAP, rest="r"))
    assert [{**row, "at": None} for row in decoded.rows.to_pylist()] == [
        {"id": 1, "s": {"a": 1}, "j": "[1]", "r": '{"s": {"b": 2},"more": 1.5}', "at": None},
        {"id": 2, "s": None, "j": None, "r": None, "at": None},
    ]
    assert [(r.index, r.error_class, r.error) for r in decoded.rejections] == [
        (2, "TypeMismatch", "id: expected a whole number (long), got the string 'x'"),
        (3, "MissingRequired", "id: required, and missing or null"),
        (4, "MissingRequired", "payload: required, and missing or null"),
        (5, "MissingRequired", "payload: required, and missing or null"),
    ]
    assert create_quoter(UNWRAP)(values[0], ["id"]) == "the number 1"


def test_a_record_without_the_payload_is_a_dead_letter_although_no_column_is_required() -> None:
    values = [b'{"id": 1}', wrapped(None), wrapped({})]
    for form, where in ((UNWRAP, "payload"), ({"type": "json", "unwrap": "payload.inner"}, "payload")):
        decoded = decode(values[: 3 - ("inner" in form["unwrap"])], declared({"id": "long"}, form))
        error = f"{where}: required, and missing or null"
        assert [(r.index, r.error_class, r.error) for r in decoded.rejections] == [
            (0, "MissingRequired", error), (1, "MissingRequired", error),
        ]  # fmt: skip


def test_a_payload_within_lines_frames_and_fields_is_found() -> None:
    inner = {"a": {"b": {"id": 1}}}
    spec = declared({"id": "long"}, {"type": "json", "unwrap": "a.b", "lines": True, "framing": "confluent"})
    lines = b"\0\0\0\0\7" + b"\n".join([json.dumps(inner).encode()] * 2)
    assert decode([lines], spec).rows["id"].to_pylist() == [1, 1]


def test_new_fields_of_the_payload_are_found_as_columns() -> None:
    assert drift([wrapped({"id": 1, "new": 1})], {"id": "long"}, UNWRAP, "additive") == SchemaDrift(
        {("new",): "long"}, records=1
    )


@pytest.mark.parametrize("unwrap", ["", "a..b"])
def test_a_path_with_an_empty_name_is_refused(unwrap: str) -> None:
    with pytest.raises(ValidationError, match=r"empty part|at least 1"):
        StreamSpec.model_validate(declared({"id": "long"}, {"type": "json", "unwrap": unwrap}))


def test_unwrap_next_to_an_envelope_is_refused() -> None:
    with pytest.raises(ValidationError, match="both unwrap and envelope"):
        StreamSpec.model_validate(declared({"id": "long"}, {**UNWRAP, "envelope": "debezium"}))


def drift(
    values: list[bytes | None], columns: dict[str, Any], form: Any, evolution: Literal["off", "additive"] = "off",
    **more: Any,
) -> SchemaDrift:  # fmt: skip
    spec = StreamSpec.model_validate(declared(columns, form, **more), by_alias=True, by_name=False)
    table = iceberg.table_schema(spec)
    units = {table.find_field(name).field_id: unit for name, unit in spec.units.items()}
    filled = record_schema(table, spec.coordinates)
    return create_decoder(dump_format(spec.value_format), filled, units, evolution)(RecordChunk.of_values(values)).drift


def test_records_without_any_column_are_counted_with_some_names_of_their_fields() -> None:
    sound = b'{"x": null}'
    values = [wrapped({"x": 1}), sound, b"{}", b'{"X": 1}', b"[1]", None, b'{"\\u0058\\u0058": NaN, "z": ']
    found = drift(values, {"x": "int"}, "json")
    assert (found.unknown, found.names, found.is_change) == (3, ("X", "payload", "schema"), False)
    required = drift(values, {"x": "int not null"}, "json")
    assert (required.unknown, required.names) == (3, ("X", "payload", "schema"))
    with_rest = drift(values, {"x": "int", "r": "string"}, "json", rest="r")
    assert (with_rest.unknown, with_rest.names) == (3, ("X", "payload", "schema"))
    assert SchemaDrift.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_sample_of_many_unknown_field_names_is_bounded() -> None:
    found = drift([json.dumps({f"{i:03}{'x' * 99}": i for i in range(99)}).encode()] * 50, {"x": "int"}, "json")
    assert found.unknown == 50
    assert len(found.names) == 8
    assert max(map(len, found.names)) == 64


def test_records_of_a_schema_without_any_column_are_counted_too() -> None:
    form: Any = {"type": "avro", "schema-text": json.dumps(AVRO)}
    found = drift([avro({"y": 1, "x": INNER, "z": "a"})] * 3, {"other": "int"}, form)
    assert (found.unknown, found.names) == (3, ("x", "y", "z"))
    assert not drift([avro({"y": 1, "x": INNER, "z": "a"})], {"y": "int"}, form)
    form = {"type": "protobuf", "schema-text": PROTO, "message": "R"}
    found = drift([proto({})], {"other": "int"}, form)
    assert found.unknown == 1
    assert "plain" in found.names


def test_heartbeats_of_a_captured_database_are_not_counted_as_records_without_columns() -> None:
    form = {"type": "json", "envelope": "debezium"}
    spec = declared({"id": "long not null"}, form, mode="upsert", key="id") | {"event-time": "kafka_timestamp"}
    decoded = decode([b'{"ts_ms": 1767225600000}'] * 3, spec)
    assert decoded.rejections == []
    assert not decoded.drift
