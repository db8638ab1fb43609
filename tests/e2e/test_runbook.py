"""The runbook's entries that need Kafka and a writer: a stream lags, and a person writes what waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from frazil import clock
from frazil.cli.main import frazil
from frazil.dev.kafka import EmbeddedKafka
from frazil.maintenance.alerts import AlertStates, step
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import find_maintained
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from tests.conftest import TopicFactory
from tests.runbook import commands

STREAM = """
name: rides
source: {{topics: [{topic}], format: json, bootstrap-servers: "{bootstrap}"}}
table: city.rides
schema: {{n: long, at: timestamptz}}
event-time: at
maintenance: {{alerts: {{lag: 100}}}}
"""
MINUTE_MS = 60_000


def test_a_stream_that_lags_is_told_and_what_waits_is_written(
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, file = topic(), tmp_path / "rides.yaml"
    file.write_text(STREAM.format(topic=name, bootstrap=kafka.bootstrap))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    produce(kafka, name, 10)
    follow("freshness")  # the first start makes the table
    produce(kafka, name, 500)
    now_ms, states = clock.now_ms(), AlertStates()

    def red(minutes: int) -> set[str]:
        nonlocal states
        spec = load_stream(file)
        found = measure(
            load_catalog(None),
            find_maintained([spec], "city.rides"),
            now_ms=now_ms + minutes * MINUTE_MS,
            ask_kafka=True,
        )
        assert found is not None
        made = step(states, found, spec.maintenance, now_ms=now_ms + minutes * MINUTE_MS)
        states = made.states
        return {alert.rule for alert in made.active}

    assert [red(minutes) for minutes in (16, 21, 26)] == [set()] * 3
    assert red(31) == {"freshness:rides", "lag:rides"}
    assert "500" in follow("lag")
    assert red(36) == set()


def follow(rule: str) -> str:
    """Give the entry's commands; a writer has a process of its own."""
    said = []
    for words in commands(rule):
        if words[0] == "run":
            subprocess.run([Path(sys.executable).with_name("frazil"), *words], check=True, timeout=200)
        else:
            said.append(CliRunner().invoke(frazil, words, catch_exceptions=False).output)
    return "\n".join(said)


def produce(kafka: EmbeddedKafka, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for n in range(records):
        producer.produce(topic, f'{{"n": {n}, "at": "2033-05-18T08:30:00Z"}}')
    assert producer.flush(30) == 0
