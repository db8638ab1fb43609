"""The runbook's entries that need Kafka and a writer: lag, waiting batches, and their fixes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from frazil import clock
from frazil.cli.main import frazil
from frazil.commit.open_streams import open_kafka
from frazil.dev.kafka import EmbeddedKafka
from frazil.ingest.contract import RangeProgress
from frazil.maintenance.alerts import AlertStates, evaluate_readings, evaluate_table_rules
from frazil.maintenance.measure import LagQuery, measure
from frazil.maintenance.stream_rules import evaluate_stream_rules
from frazil.maintenance.tables import find_maintained
from frazil.spec.load import load_stream
from frazil.status.stream import read_stream_state
from frazil.table.catalogs import load_catalog
from tests.conftest import TopicFactory
from tests.made_batches import MadeStream
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
NO_LAG = r"^lag +0$"
Rides = tuple[str, Path]
"""A topic, and the file of the stream that reads it."""


@pytest.fixture
def rides(
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Rides:
    name, file = topic(), tmp_path / "rides.yaml"
    file.write_text(STREAM.format(topic=name, bootstrap=kafka.bootstrap))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    return name, file


def test_a_lagging_stream_is_reported_and_its_waiting_records_are_written(kafka: EmbeddedKafka, rides: Rides) -> None:
    name, file = rides
    produce(kafka, name, 10)
    do("freshness")  # the first start makes the table
    produce(kafka, name, 500)
    now_ms, states = clock.now_ms(), AlertStates()

    def red(minutes: int) -> set[str]:
        nonlocal states
        spec = load_stream(file)
        found = measure(
            load_catalog(None),
            find_maintained([spec], "city.rides"),
            now_ms=now_ms + minutes * MINUTE_MS,
            lag_query=LagQuery.FOR_ALERTS,
        )
        assert found is not None
        at_ms, settings = now_ms + minutes * MINUTE_MS, spec.maintenance
        seen = evaluate_table_rules(found, settings, now_ms=at_ms)
        made = evaluate_readings(states, found.table, seen, settings.alerts, now_ms=at_ms)
        states = made.states
        return {alert.rule for alert in made.active}

    assert [red(minutes) for minutes in (16, 21, 26)] == [{"freshness:rides"}] * 3, "lag has a hold time"
    assert red(31) == {"freshness:rides", "lag:rides"}
    assert "500" in do("lag")
    assert red(36) == set()
    for rule in ("lag", "freshness"):
        assert re.search(NO_LAG, be_sure(rule), re.MULTILINE)


def test_batches_that_wait_are_committed_by_the_writer_that_a_user_starts(kafka: EmbeddedKafka, rides: Rides) -> None:
    name, file = rides
    produce(kafka, name, 100)
    spec, begin_ms = load_stream(file), clock.now_ms()
    with open_kafka(spec) as brokers:
        made = MadeStream(spec, begin_ms, partitions=1, known=brokers.describe().identity)
    made.land({0: (0, 50)})
    for ahead in range(4):
        read = range(50 + 10 * ahead, 60 + 10 * ahead)
        made.stage([RangeProgress(name, 0, read.start, read.stop, 10, 0, None)], {0: read}, {}, ahead=ahead)
    states = AlertStates()

    def red(minutes: int) -> set[str]:
        nonlocal states
        now_ms, alerts = begin_ms + minutes * MINUTE_MS, spec.maintenance.alerts
        seen = evaluate_stream_rules(read_stream_state(spec, now_ms=now_ms, in_full=False), alerts, now_ms=now_ms)
        made_now = evaluate_readings(states, "stream rides", seen, alerts, now_ms=now_ms)
        states = made_now.states
        return {alert.rule for alert in made_now.active}

    assert [red(minutes) for minutes in (16, 21, 26)] == [set()] * 3
    assert "waiting-batches" in red(31)
    do("waiting-batches")
    assert "waiting-batches" not in red(36)
    assert re.search(NO_LAG, be_sure("waiting-batches"), re.MULTILINE)
    offsets = made.tables.main.refresh().scan(selected_fields=("kafka_offset",)).to_arrow()["kafka_offset"].to_pylist()
    assert sorted(offsets) == list(range(100))


def be_sure(rule: str) -> str:
    """Give the commands of the entry's *Verify*."""
    return give(commands(rule, "Verify"))


def do(rule: str) -> str:
    """Give the commands of its *Fix*."""
    return give(commands(rule, "Fix"))


def give(requested: list[list[str]]) -> str:
    """A writer has a process of its own."""
    said = []
    for words in requested:
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
