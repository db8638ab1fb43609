"""Streams that use a real schema registry, as `frazil dev up --registry` starts it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
import requests
from click.testing import CliRunner
from confluent_kafka import Producer

from frazil.cli.main import frazil as frazil_command
from frazil.dev.kafka import EmbeddedKafka, EmbeddedRegistry
from frazil.errors import EnvironmentUnusable, RegistryUnavailable
from frazil.stream import outage

AT = datetime(2026, 1, 1, tzinfo=UTC)
STOP = {"type": "record", "name": "Stop", "namespace": "city", "fields": [{"name": "street", "type": "string"}]}
RIDE = {
    "type": "record",
    "name": "Ride",
    "namespace": "city",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "driver", "type": ["null", "string"]},
        {"name": "stops", "type": {"type": "array", "items": "city.Stop"}},
    ],
}
TIP = {"name": "tip", "type": "double", "default": 0.0}
TIPPED = {**RIDE, "fields": [{"name": "tip", "type": "double"}, *RIDE["fields"][:2]]}
RENAMED = {**TIPPED, "name": "Trip"}


def registered(registry: EmbeddedRegistry, subject: str, schema: Any, **more: Any) -> int:
    """The id of a schema that is registered as a new version of a subject."""
    document = {"schema": json.dumps(schema), **more}
    answer = requests.post(f"{registry.url}/subjects/{subject}/versions", json=document, timeout=30)
    answer.raise_for_status()
    return int(answer.json()["id"])


def framed(schema_id: int, schema: Any, **record: Any) -> bytes:
    out = io.BytesIO()
    named: dict[str, Any] = {}
    fastavro.parse_schema(STOP, named_schemas=named)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=named, _force=True), record)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def declare(stream: Any, registry: EmbeddedRegistry) -> None:
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


def drivers(stream: Any) -> list[str]:
    return sorted(stream.table().scan(selected_fields=("driver",)).to_arrow()["driver"].to_pylist())


@pytest.mark.rotates(2, turn=1)
def test_records_of_every_subject_land_and_wait_for_a_registry_that_is_away(
    stream: Any, registry: EmbeddedRegistry, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(registry, "stop", STOP)
    reference = {"name": "city.Stop", "subject": "stop", "version": 1}
    by_topic = registered(registry, f"{stream.topic}-value", RIDE, references=[reference])
    by_record = registered(registry, "city.Ride", TIPPED)
    late = registered(registry, "city.Trip", RENAMED)
    declare(stream, registry)
    producer = Producer({"bootstrap.servers": stream.bootstrap})

    def produce(*values: bytes) -> None:
        for value in values:
            producer.produce(stream.topic, value, partition=0)
        assert producer.flush(30) == 0

    produce(
        framed(by_topic, RIDE, at=AT, driver="Ann", stops=[{"street": "A"}, {"street": "B"}]),
        framed(by_record, TIPPED, tip=1.5, at=AT, driver="Bob"),
        framed(late + 1000, TIPPED, tip=1.5, at=AT, driver="Nobody"),
    )
    stream.catch_up()
    assert drivers(stream) == ["Ann", "Bob"]
    (dead_letter,) = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    assert (dead_letter["error_class"], dead_letter["error"]) == (
        "UnknownSchema",
        f"the registry has no schema with id {late + 1000}",
    )

    registry.stop()
    try:
        produce(framed(by_topic, RIDE, at=AT, driver="Cid", stops=[]))
        stream.catch_up()  # the process has this schema
        assert drivers(stream) == ["Ann", "Bob", "Cid"]
        produce(framed(late, RENAMED, tip=2.5, at=AT, driver="Dee"))
        with monkeypatch.context() as patch:
            patch.setattr(outage, "OUTAGE_TIMEOUT_S", 0.0)
            with pytest.raises(
                RegistryUnavailable, match="Records wait until the registry returns their schemas"
            ) as raised:
                stream.catch_up()
        assert (raised.value.exit_code, raised.value.restartable) == (28, True)
        with stream.writing() as writer:
            said = f"the schema registry {registry.url} does not respond"
            eventually(lambda: said in stream.outage())
            assert writer.runs
            registry.start()
            eventually(lambda: drivers(stream) == ["Ann", "Bob", "Cid", "Dee"])
            eventually(lambda: not stream.outage())
    finally:
        registry.start()


def test_protobuf_messages_of_a_schema_with_references_land(stream: Any, registry: EmbeddedRegistry) -> None:
    def proto(subject: str, text: str, **more: Any) -> int:
        document = {"schema": text, "schemaType": "PROTOBUF", **more}
        answer = requests.post(f"{registry.url}/subjects/{subject}/versions", json=document, timeout=30)
        answer.raise_for_status()
        return int(answer.json()["id"])

    proto("stop.proto", 'syntax = "proto3";\npackage city;\nmessage Stop { string street = 1; }\n')
    ride = (
        'syntax = "proto3";\npackage city;\nimport "stop.proto";\nmessage Other { int32 a = 1; }\n'
        "message Ride {\n  int64 at_ms = 1;\n  optional string driver = 2;\n  repeated Stop stops = 3;\n}\n"
    )
    reference = {"name": "stop.proto", "subject": "stop.proto", "version": 1}
    known = proto(f"{stream.topic}-value", ride, references=[reference])
    frame, second = b"\0" + known.to_bytes(4, "big"), b"\x02\x02"  # the message indexes [1]
    values = [
        frame + second + b"\x08\x07\x12\x03Ann\x1a\x03\x0a\x01A\x1a\x03\x0a\x01B",
        frame + second + b"\x08\x08",
        frame + b"\x02\x0a",  # the sixth message
        b"\0" + (known + 1000).to_bytes(4, "big") + b"\0",
    ]
    declare(stream, registry)
    file = stream.streams / f"{stream.name}.yaml"
    text = file.read_text().replace("type: avro", "type: protobuf").replace("event-time: at", "event-time: at_ms")
    text = text.replace("  at: timestamptz not null\n", "  at_ms: {type: timestamptz, required: true, unit: ms}\n")
    file.write_text(text.replace("day(at)", "day(at_ms)"))
    producer = Producer({"bootstrap.servers": stream.bootstrap})
    for value in values:
        producer.produce(stream.topic, value, partition=0)
    assert producer.flush(30) == 0
    stream.catch_up()
    rows = sorted(stream.table().scan().to_arrow().to_pylist(), key=lambda row: row["kafka_offset"])
    assert [(row["at_ms"].microsecond, row["driver"], row["stops"] or None) for row in rows] == [
        (7000, "Ann", [{"street": "A"}, {"street": "B"}]),
        (8000, None, None),
    ]
    dead_letters = sorted(
        stream.table("_dead_letters").scan().to_arrow().to_pylist(), key=lambda row: row["kafka_offset"]
    )
    assert [dead_letter["error_class"] for dead_letter in dead_letters] == ["UnreadableSchema", "UnknownSchema"]


def test_infer_asks_the_registry_and_its_stream_takes_the_records(
    stream: Any, registry: EmbeddedRegistry, kafka: EmbeddedKafka
) -> None:
    registered(registry, "stop", STOP)
    reference = {"name": "city.Stop", "subject": "stop", "version": 1}
    subject = f"{stream.topic}-value"
    first = registered(registry, subject, RIDE, references=[reference])
    newest = registered(registry, subject, {**RIDE, "fields": [*RIDE["fields"], TIP]}, references=[reference])
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    ride = {"at": AT, "driver": None, "stops": [{"street": "A"}]}
    producer.produce(stream.topic, framed(first, RIDE, **ride), partition=0)
    producer.produce(stream.topic, framed(newest, {**RIDE, "fields": [*RIDE["fields"], TIP]}, **ride, tip=1.5))
    assert producer.flush(30) == 0
    proposed = inferred(stream, registry)
    assert '  stops: "list<struct<street: string>> not null"' in proposed
    assert "  tip: double    # in 1 of 2 schemas" in proposed
    stream.catch_up()
    rows = stream.table().scan().to_arrow().to_pylist()
    assert sorted((row["stops"], row["tip"] or 0) for row in rows) == [([{"street": "A"}], 0), ([{"street": "A"}], 1.5)]


def test_infer_reads_a_json_schema_and_its_stream_needs_no_registry(
    stream: Any, registry: EmbeddedRegistry, kafka: EmbeddedKafka
) -> None:
    schema = {
        "type": "object",
        "required": ["at"],
        "properties": {"at": {"type": "string", "format": "date-time"}, "count": {"type": "integer"}},
    }
    known = registered(registry, f"{stream.topic}-value", schema, schemaType="JSON")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for schema_id in (known, known + 1000):  # an id that the registry does not have is not looked at
        value = json.dumps({"at": AT.isoformat(), "count": schema_id}).encode()
        producer.produce(stream.topic, b"\0" + schema_id.to_bytes(4, "big") + value)
    assert producer.flush(30) == 0
    proposed = inferred(stream, registry)
    assert "  count: long" in proposed
    assert f"# The registry does not have these schema ids of the sample: {known + 1000}." in proposed
    file = stream.streams / f"{stream.name}.yaml"
    file.write_text(proposed.replace(f":{registry.port}/", ":1/"))
    stream.catch_up()
    rows = stream.table().scan(selected_fields=("count",)).to_arrow()["count"].to_pylist()
    assert sorted(rows) == [known, known + 1000]


def inferred(stream: Any, registry: EmbeddedRegistry) -> str:
    """The declaration that `frazil infer` proposes, which the stream then uses."""
    requested = ["infer", stream.topic, "--streams", str(stream.streams), "--bootstrap-servers", stream.bootstrap]
    requested += ["--registry", registry.url, "--name", stream.name, "--table", f"test.{stream.name}"]
    done = CliRunner().invoke(frazil_command, requested, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (stream.streams / f"{stream.name}.yaml").write_text(done.output)
    return done.output


def test_dev_up_shows_the_running_registry_and_the_settings_to_declare(
    registry: EmbeddedRegistry, kafka: EmbeddedKafka, frazil_home: Path
) -> None:
    (frazil_home / "dev").mkdir(parents=True)
    for name, server in (("kafka", kafka), ("registry", registry)):
        (frazil_home / "dev" / name).symlink_to(server.folder)
    shown = CliRunner().invoke(frazil_command, ["dev", "up", "--registry"])
    assert shown.exit_code == 0, shown.output
    assert f"Registry {registry.url}" in shown.output
    assert f"format: {{type: avro, registry: {{url: '{registry.url}'}}}}" in shown.output
    status = json.loads(CliRunner().invoke(frazil_command, ["dev", "status", "--json"]).output)
    assert status["registry"] == registry.url
    assert status["servers"]["registry"]["running"]
    other = CliRunner().invoke(frazil_command, ["dev", "up", "--registry", "--registry-port", str(registry.port + 1)])
    assert isinstance(other.exception, EnvironmentUnusable)
    assert "a port other than" in str(other.exception)
