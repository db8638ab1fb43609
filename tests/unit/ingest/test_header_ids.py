"""Schema ids and GUIDs in the header `__value_schema_id`, next to frames before the value."""

from __future__ import annotations

import dataclasses
import json
from typing import Any
from uuid import UUID

import pytest

from frazil.ingest.chunk import BinaryColumn, RecordChunk, pack_headers
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import create_decoder
from frazil.spec import iceberg
from frazil.spec.formats import dump_format
from frazil.spec.model import StreamSpec
from tests.made_registry import MadeRegistry, made_registry
from tests.unit.ingest.test_json_texts import PROTO, avro, declared, proto

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}


def decode(records: list[tuple[bytes | None, bytes | None]], columns: dict[str, Any], form: Any) -> DecodedChunk:
    """Given: each record's value, and its header with the schema's id; None without one."""
    spec = StreamSpec.model_validate(declared(columns, form), by_alias=True, by_name=False)
    headers = [
        pack_headers([("other", b"a"), ("__value_schema_id", header)]) if header else None for _, header in records
    ]
    chunk = dataclasses.replace(
        RecordChunk.of_values([value for value, _ in records]), headers=BinaryColumn.of(headers)
    )
    return create_decoder(
        dump_format(spec.value_format), record_schema(iceberg.table_schema(spec), spec.coordinates), {}
    )(chunk)


@pytest.fixture
def registry() -> Any:
    with made_registry() as made:
        made.answers["/schemas/ids/7"] = [(200, {"schema": json.dumps(SCHEMA)})]
        made.answers[f"/schemas/guids/{GUID}"] = [(200, {"schema": json.dumps(SCHEMA)})]
        yield made


def test_a_schema_id_or_guid_is_read_from_a_header_or_before_the_value(registry: MadeRegistry) -> None:
    value, by_id, by_guid = avro({"x": 5}, SCHEMA), b"\0\0\0\0\7", b"\1" + GUID.bytes
    records = [(value, by_id), (by_id + value, None), (value, by_guid), (None, by_id), (value, b"\2ab"), (value, None)]
    decoded = decode(records, {"x": "int"}, {"type": "avro", "registry": {"url": registry.url}})
    assert (decoded.rows["x"].to_pylist(), decoded.record_indexes.tolist()) == ([5, 5, 5], [0, 1, 2])
    found = {r.index: (r.error_class, r.error) for r in decoded.rejections}
    assert {place: error_class for place, (error_class, _) in found.items()} == {
        3: "Tombstone",
        4: "NotFramed",
        5: "NotFramed",
    }
    assert found[4][1] == "the header __value_schema_id has neither an id nor a GUID: 02 61 62"
    assert sorted(registry.requested) == [f"/schemas/guids/{GUID}", "/schemas/ids/7"]


def test_a_guid_that_the_registry_does_not_have_is_a_dead_letter(registry: MadeRegistry) -> None:
    other = UUID(int=5)
    decoded = decode([(b"\0", b"\1" + other.bytes)], {"x": "int"}, {"type": "avro", "registry": {"url": registry.url}})
    assert [(r.error_class, r.error) for r in decoded.rejections] == [
        ("UnknownSchema", f"the registry has no schema with GUID {other}")
    ]


def test_protobufs_header_has_the_indexes_of_the_message(registry: MadeRegistry) -> None:
    registry.answers[f"/schemas/guids/{GUID}"] = [(200, {"schema": PROTO, "schemaType": "PROTOBUF"})]
    records = [(proto({"plain": "3"}), b"\1" + GUID.bytes + b"\0")]
    decoded = decode(records, {"plain": "long"}, {"type": "protobuf", "registry": {"url": registry.url}})
    assert (decoded.rejections, decoded.rows["plain"].to_pylist()) == ([], [3])


def test_json_with_a_schema_guid_in_the_header_needs_no_registry() -> None:
    records = [(b'{"x": 1}', b"\1" + GUID.bytes), (b'\0\0\0\0\7{"x": 2}', None), (b'{"x": 3}', None)]
    decoded = decode(records, {"x": "int"}, {"type": "json", "framing": "confluent"})
    assert decoded.rows["x"].to_pylist() == [1, 2]
    assert [r.error_class for r in decoded.rejections] == ["NotFramed"]
