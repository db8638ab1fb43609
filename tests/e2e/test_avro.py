"""Avro streams by writers as users run them, without a JVM."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import fastavro
from confluent_kafka import Producer

from tests.made_registry import made_registry

Frazil = Callable[..., Any]

RIDE = {
    "type": "record",
    "name": "Ride",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "driver", "type": ["null", "string"]},
        {"name": "stops", "type": {"type": "array", "items": "city.Stop"}},
    ],
}
STOP = {"type": "record", "name": "Stop", "namespace": "city", "fields": [{"name": "street", "type": "string"}]}
LATER = {**RIDE, "fields": [{"name": "tip", "type": "double"}, *RIDE["fields"][:2]]}


def framed(schema_id: int, schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    named: dict[str, Any] = {}
    fastavro.parse_schema(STOP, named_schemas=named)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=named, _force=True), record)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def test_a_batch_waits_for_its_registry_and_records_of_two_schemas_land(stream: Any, frazil: Frazil) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    values = [
        framed(1, RIDE, {"at": at, "driver": "Ann", "stops": [{"street": "A"}, {"street": "B"}]}),
        framed(2, LATER, {"tip": 1.5, "at": at, "driver": None}),
        framed(3, RIDE, {"at": at, "driver": "Bob", "stops": []}),
        framed(1, RIDE, {"at": at, "driver": "Cid", "stops": []})[:-1],
    ]
    reference = {"name": "city.Stop", "subject": "stop", "version": 1}
    with made_registry() as registry:
        ride = (200, {"schema": json.dumps(RIDE), "references": [reference]})
        # Longer than one request's patience: the whole batch is tried again.
        registry.answers = {
            "/schemas/ids/1": [*[(503, b"")] * 6, ride],
            "/subjects/stop/versions/1?deleted=true": [(200, {"schema": json.dumps(STOP)})],
            "/schemas/ids/2": [(200, {"schema": json.dumps(LATER)})],
        }
        (stream.streams / f"{stream.name}.yaml").write_text(
            f"name: {stream.name}\n"
            f"source: {{topics: [{stream.topic}], bootstrap-servers: '{stream.bootstrap}', "
            f"format: {{type: avro, registry: {{url: '{registry.url}', timeout: 1s}}}}}}\n"
            f"table: test.{stream.name}\ncommit: {{interval: 1s}}\n"
            "schema:\n"
            "  at: timestamptz not null\n"
            "  driver: string\n"
            "  stops: 'list<struct<street: string>>'\n"
            "event-time: at\npartition-by: [day(at)]\n"
        )
        producer = Producer({"bootstrap.servers": stream.bootstrap})
        for value in values:
            producer.produce(stream.topic, value, partition=0)
        assert producer.flush(30) == 0
        stream.catch_up()
    rows = sorted(stream.table().scan().to_arrow().to_pylist(), key=lambda row: row["kafka_offset"])
    assert [(row["at"], row["driver"], row["stops"] or None) for row in rows] == [
        (at, "Ann", [{"street": "A"}, {"street": "B"}]),
        (at, None, None),
    ]
    letters = sorted(stream.table("_dead_letters").scan().to_arrow().to_pylist(), key=lambda row: row["kafka_offset"])
    assert [(row["error_class"], row["value"]) for row in letters] == [
        ("UnknownSchema", values[2]),
        ("InvalidAvro", values[3]),
    ]
    audited = frazil("audit", stream.name, "--source")
    assert audited.returncode == 0, audited.stdout + audited.stderr
