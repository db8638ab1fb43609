"""A stream of all topics that match a pattern, while topics are created and deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from frazil.commit.marker import read_marker
from frazil.dev.kafka import EmbeddedKafka
from frazil.errors import SpecError, TopicMissing, TopicRecreated
from frazil.kafka import admin
from frazil.spec.source import TopicPattern
from frazil.stream import planner, writer
from tests.conftest import one_event

Frazil = Callable[..., Any]


class Topics:
    """Topics of one test, and a stream over those that match."""

    def __init__(self, kafka: EmbeddedKafka, stream: Any) -> None:
        self._kafka, self._stream = kafka, stream
        self.prefix = f"shop-{os.urandom(3).hex()}"
        declared = stream.streams / f"{stream.name}.yaml"
        text = declared.read_text()
        declared.write_text(text.replace(f"topics: [{stream.topic}]", rf"topic-pattern: '{self.prefix}\.orders\..*'"))

    def name(self, country: str) -> str:
        return f"{self.prefix}.orders.{country}"

    def make(self, country: str, ids: range = range(0), *values: bytes) -> None:
        self._kafka.create_topic(self.name(country), 1)
        self.send(country, ids, *values)

    def send(self, country: str, ids: range, *values: bytes) -> None:
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap, "linger.ms": 5, "max.in.flight": 1})
        for value in (*map(one_event, ids), *values):
            producer.produce(self.name(country), value)
        assert producer.flush(30) == 0

    def delete(self, country: str) -> None:
        deleted(self._kafka, self.name(country))


@pytest.fixture
def topics(kafka: EmbeddedKafka, stream: Any, monkeypatch: pytest.MonkeyPatch) -> Topics:
    for module in (planner, writer):
        monkeypatch.setattr(module, "DESCRIBE_INTERVAL_S", 0.2)
    return Topics(kafka, stream)


def deleted(kafka: EmbeddedKafka, topic: str) -> None:
    admin_client = kafka.admin()  # without a name it would end before it answers
    admin_client.delete_topics([topic])[topic].result(30)


def after(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        first()
        return then(*args, **kwargs)

    return both


@contextmanager
def another_topic(kafka: EmbeddedKafka, name: str) -> Iterator[None]:
    kafka.create_topic(name, 1)
    try:
        yield
    finally:
        deleted(kafka, name)


def test_topics_join_and_leave_while_the_writer_runs(
    stream: Any, topics: Topics, frazil: Frazil, eventually: Callable[..., Any]
) -> None:
    topics.make("de", range(3))
    topics.make("fr", range(3, 5))
    with stream.writing() as running:
        eventually(lambda: stream.has_rows(5))
        topics.make("it", range(5, 9), b"no JSON")
        eventually(lambda: stream.has_rows(9))
        topics.delete("fr")
        topics.send("de", range(9, 12))
        eventually(lambda: stream.has_rows(12))
        topics.make("es", range(12, 14))
        eventually(lambda: stream.has_rows(14))
        assert running.runs
    stream.catch_up()
    topics.send("it", range(14, 15))
    stream.catch_up()
    assert stream.ids() == list(range(15))
    marker = read_marker(stream.table().metadata.properties, stream.name)
    assert marker is not None
    ends = {topics.name(country): end for country, end in (("de", 6), ("fr", 2), ("it", 6), ("es", 2))}
    assert {topic: end for (topic, _), end in marker.offsets.items()} == ends
    (dead_letter,) = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    assert dead_letter["topic_id"] == marker.source.topic_ids[topics.name("it")]
    audited = frazil("audit", stream.name, "--source", "--json")
    assert audited.returncode == 3, audited.stdout + audited.stderr
    # What Kafka has no more cannot be its witness.
    assert f"{topics.name('fr')}-0" in audited.stdout
    assert topics.name("de") not in json.dumps(json.loads(audited.stdout).get("findings", []))
    reported = frazil("status", stream.name, "--json")
    assert '"lag": 0' in reported.stdout, reported.stdout

    topics.make("fr", range(20, 22))
    with pytest.raises(TopicRecreated, match=r"orders\.fr' of stream 'events' was deleted and recreated"):
        stream.catch_up()
    reset = frazil("reset", stream.name, "--to", "marker", "--yes")
    assert reset.returncode == 0, reset.stdout + reset.stderr
    stream.catch_up()
    assert stream.ids() == [*range(15), 20, 21]


def test_a_deleted_topic_does_not_keep_the_audit_from_comparing_the_keys_of_the_others(
    stream: Any, topics: Topics, frazil: Frazil
) -> None:
    declared = stream.streams / f"{stream.name}.yaml"
    upsert = "mode: upsert\nkey: id\ndelete: {column: note, values: [gone]}\n"
    declared.write_text(declared.read_text() + upsert)
    topics.make("de", range(6))
    stream.catch_up()
    topics.make("fr", range(6, 8), json.dumps({**json.loads(one_event(2)), "note": "gone"}).encode())
    stream.catch_up()
    assert stream.ids() == [0, 1, 3, 4, 5, 6, 7]
    assert frazil("audit", stream.name, "--source").returncode == 0
    topics.delete("fr")
    audited = frazil("audit", stream.name, "--source", "--json")
    findings = json.loads(audited.stdout)["findings"]
    assert audited.returncode == 3, audited.stdout
    assert [(f["kind"], f["where"], f["count"]) for f in findings] == [
        ("not compared", topics.name("fr"), 3),
        ("not compared", stream.name, 1),
    ]
    assert f"a record of {topics.name('fr')}, which cannot be read, may have deleted it" in findings[1]["sentence"]
    row = stream.table().scan("id == 4").to_arrow()
    note = row.schema.get_field_index("note")
    stream.table().overwrite(row.set_column(note, row.schema.field(note), [["odd"]]), "id == 4")
    audited = frazil("audit", stream.name, "--source")
    assert (audited.returncode, "1 key (id 4): each has other values" in audited.stdout) == (1, True)


def test_a_run_until_caught_up_does_not_wait_for_a_topic_that_is_deleted_meanwhile(
    stream: Any, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.make("de", range(3))
    topics.make("fr", range(10, 12))
    with monkeypatch.context() as patched:
        patched.setattr(writer.Epoch, "run", after(lambda: topics.delete("fr"), writer.Epoch.run))
        stream.catch_up()
    topics.make("it", range(3, 5))
    stream.catch_up()
    topics.send("it", range(12, 14))
    with monkeypatch.context() as patched:
        patched.setattr(writer.BatchLoop, "run", after(lambda: topics.delete("it"), writer.BatchLoop.run))
        stream.catch_up()
    assert stream.ids() == list(range(5))


def test_a_pattern_that_matches_no_topic_waits_and_reports_it(
    stream: Any, topics: Topics, kafka: EmbeddedKafka, eventually: Callable[..., Any]
) -> None:
    said = rf"no topic of the cluster matches source.topic-pattern '{topics.prefix}\.orders\..*'"
    with another_topic(kafka, f"__{topics.prefix}.orders.internal"), another_topic(kafka, f"x{topics.name('de')}"):
        with pytest.raises(TopicMissing) as raised:
            stream.catch_up()
        assert said in str(raised.value)
        with stream.writing() as running:
            eventually(lambda: said in stream.outage())
            assert running.runs
            topics.make("de", range(4))
            eventually(lambda: stream.has_rows(4))
            eventually(lambda: not stream.outage())
    assert stream.ids() == list(range(4))


def test_more_topics_than_a_stream_reads_are_refused_with_the_pattern(
    topics: Topics, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    for country in ("de", "fr"):
        topics.make(country)
    pattern = TopicPattern(rf"{topics.prefix}\.orders\..*")
    with admin.KafkaAdmin({"bootstrap.servers": kafka.bootstrap}, pattern) as offsets:
        assert offsets.describe().partitions == ((topics.name("de"), 0), (topics.name("fr"), 0))
        monkeypatch.setattr(admin, "MAX_TOPICS", 1)
        with pytest.raises(
            SpecError, match=r"matches 2 topics at 127\.0\.0\.1:\d+, and a stream reads at most 1\. Narrow"
        ):
            offsets.describe()
