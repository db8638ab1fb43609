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
    dead_letters = sorted(
        stream.table("_dead_letters").scan().to_arrow().to_pylist(), key=lambda row: row["kafka_offset"]
    )
    assert [(row["error_class"], row["value"]) for row in dead_letters] == [
        ("UnknownSchema", values[2]),
        ("InvalidAvro", values[3]),
    ]
    audited = frazil("audit", stream.name, "--source")
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_a_table_follows_the_schemas_of_its_records_and_unsuitable_records_are_dead_letters(
    stream: Any, frazil: Frazil
) -> None:
    at, bags = datetime(2026, 1, 1, tzinfo=UTC), {"name": "bags", "type": "int"}
    first = {**RIDE, "fields": [*RIDE["fields"][:2], bags]}
    load = {"type": "record", "name": "Load", "fields": [{"name": "kg", "type": "double"}]}
    wider = {**bags, "type": "long"}
    second = {**first, "fields": [{"name": "load", "type": ["null", load]}, *first["fields"][:2], wider]}
    deeper = {**load, "fields": [*load["fields"], {"name": "seals", "type": {"type": "array", "items": "string"}}]}
    third = {**second, "fields": [{"name": "load", "type": deeper}, *second["fields"][1:3], {**bags, "type": "string"}]}
    with made_registry() as registry:
        known = {1: first, 2: second, 3: third}
        registry.answers = {f"/schemas/ids/{n}": [(200, {"schema": json.dumps(of)})] for n, of in known.items()}
        (stream.streams / f"{stream.name}.yaml").write_text(
            f"name: {stream.name}\n"
            f"source: {{topics: [{stream.topic}], bootstrap-servers: '{stream.bootstrap}', "
            f"format: {{type: avro, registry: {{url: '{registry.url}', timeout: 1s}}}}}}\n"
            f"table: test.{stream.name}\ncommit: {{interval: 1s}}\nevolution: full\n"
            "dead-letters: {circuit: off}\n"
            "schema: {at: timestamptz not null, driver: string, bags: int}\nevent-time: at\n"
        )

        def land(*records: tuple[int, dict[str, Any]]) -> int:
            """Produce and write them; how many schemas the table has had by then."""
            producer = Producer({"bootstrap.servers": stream.bootstrap})
            for number, record in records:
                value = framed(number, known[number], {"at": at, "driver": None, **record})
                producer.produce(stream.topic, value, partition=0)
            assert producer.flush(30) == 0
            stream.catch_up()
            return len(stream.table().metadata.schemas)

        assert land((1, {"bags": 1})) == 1
        assert land((2, {"bags": 2**40, "load": {"kg": 1.5}}), (1, {"bags": 2}), (2, {"bags": 3, "load": None})) == 2
        assert land((3, {"bags": "x", "load": {"kg": 2.5, "seals": ["a"]}}), (2, {"bags": 4, "load": {"kg": 3.5}})) <= 3
        replayed = frazil("dlq", "replay", stream.name)
        assert replayed.returncode == 0, replayed.stderr
        assert "0 dead letters are rows now; 1 failed again" in replayed.stdout
    rows = sorted(stream.table().scan().to_arrow().to_pylist(), key=lambda row: row["kafka_offset"])
    kg = [None if row["load"] is None else row["load"]["kg"] for row in rows]
    assert [(row["bags"], of) for row, of in zip(rows, kg, strict=True)] == [
        (1, None),
        (2**40, 1.5),
        (2, None),
        (3, None),
        (4, 3.5),
    ]
    (dead_letter,) = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    assert (dead_letter["error_class"], dead_letter["kafka_offset"]) == ("TypeMismatch", 4)
    audited = frazil("audit", stream.name, "--source")
    assert audited.returncode == 0, audited.stdout + audited.stderr
