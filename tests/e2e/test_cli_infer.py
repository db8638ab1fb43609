"""`frazil infer` reads a real topic, and `frazil validate` accepts what it prints."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from confluent_kafka import Producer

from frazil.cli.main import frazil
from frazil.dev.kafka import EmbeddedKafka
from frazil.spec.load import load_stream
from tests.conftest import TopicFactory


def test_the_declaration_that_infer_prints_for_a_topic_is_accepted(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(partitions=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for i in range(600):
        value = json.dumps({"id": i, "kind": f"k{i % 9}", "at": 1_790_000_000_000 + i * 1000, "more": {"x": [i]}})
        stamp = 1_790_000_000_000 + i * 1000
        producer.produce(name, value, key=b"k", headers={"trace": b"x"}, partition=i % 2, timestamp=stamp)
    assert producer.flush(30) == 0
    (tmp_path / "_defaults.yaml").write_text(f"source: {{bootstrap-servers: '{kafka.bootstrap}'}}\n")
    requested = [
        "infer",
        name,
        "--streams",
        str(tmp_path),
        "--table",
        "demo.t",
        "--records",
        "200",
        "--name",
        "inferred",
    ]
    result = CliRunner().invoke(frazil, requested, catch_exceptions=False)
    assert result.exit_code == 0
    file = tmp_path / "inferred.yaml"
    file.write_text(result.output)
    assert CliRunner().invoke(frazil, ["validate", str(file)]).exit_code == 0
    spec = load_stream(file)
    assert {c.name: (c.type, c.required) for c in spec.columns} == {
        "id": ("long", True),
        "kind": ("string", True),
        "at": ("timestamptz", True),
        "more": ("struct<x: list<long>>", True),
    }
    assert (spec.units, spec.event_time.column) == ({"at": "ms"}, "at")
    assert "from 200 of about 600 records" in result.output
    assert "About 86,54" in result.output  # 600 in 599 s
    assert 'seen: "trace"' in result.output


def test_an_empty_topic_and_a_missing_topic_are_reported_as_such(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    servers = ["--streams", str(tmp_path), "--bootstrap-servers", kafka.bootstrap]
    empty = CliRunner().invoke(frazil, ["infer", topic(), *servers])
    assert "has no record with a value to infer from" in str(empty.exception)
    missing = CliRunner().invoke(frazil, ["infer", "missing.topic", *servers])
    assert str(missing.exception).endswith("has no topic missing.topic. Create it, or correct TOPIC")
    nowhere = CliRunner().invoke(frazil, ["infer", "x", "--streams", str(tmp_path)])
    assert "no brokers: give them with --bootstrap-servers" in str(nowhere.exception)
