"""The embedded broker: it restarts with its folder's data, and is found and stopped by its record."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from frazil.dev.kafka import EmbeddedKafka
from frazil.errors import EnvironmentUnusable


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that these tests may kill, next to the session's."""
    with EmbeddedKafka(tmp_path_factory.mktemp("own-kafka")) as own:
        yield own


def produce(broker: EmbeddedKafka, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def read(broker: EmbeddedKafka, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


@pytest.mark.rotates(2)
def test_a_killed_broker_comes_back_on_its_folder_and_port_with_its_records(broker: EmbeddedKafka) -> None:
    broker.create_topic("survivor")
    produce(broker, "survivor", b"before")
    broker.kill()
    assert broker.server() is None
    port = broker.port
    again = EmbeddedKafka(broker.folder)
    again.start()
    assert again.port == port
    produce(again, "survivor", b"after")
    assert read(again, "survivor", 2) == [b"before", b"after"]


def test_a_second_start_on_the_folder_uses_the_broker_that_runs(broker: EmbeddedKafka) -> None:
    first = broker.server()
    assert first is not None
    again = EmbeddedKafka(broker.folder).start()
    assert again.server() == first


def test_a_topic_has_the_partitions_and_settings_it_was_requested(broker: EmbeddedKafka) -> None:
    broker.create_topic("compacted", 3, {"cleanup.policy": "compact"})
    assert len(broker.admin().list_topics("compacted", timeout=10).topics["compacted"].partitions) == 3


def test_a_topic_is_created_once_its_broker_is_no_longer_fenced(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, fenced = broker.admin(), Future[None]()
    fenced.set_exception(KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR)))
    creates = Mock(wraps=admin.create_topics, side_effect=[{"busy": fenced}, DEFAULT])
    monkeypatch.setattr(admin, "create_topics", creates)
    monkeypatch.setattr(broker, "admin", lambda: admin)
    broker.create_topic("busy")
    assert "busy" in admin.list_topics(timeout=10).topics


def test_creating_an_existing_topic_is_refused_by_name(broker: EmbeddedKafka) -> None:
    broker.create_topic("twice")
    with pytest.raises(EnvironmentUnusable, match="the topic twice was not created"):
        broker.create_topic("twice")


def test_a_port_in_use_is_reported_with_the_option_that_changes_it(broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match=rf"port {broker.port}, .* is taken by java .*--kafka-port"):
        EmbeddedKafka(tmp_path, port=broker.port).start()
