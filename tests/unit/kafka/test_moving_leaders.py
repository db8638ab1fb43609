"""Offset requests are retried while a partition's leader moves in librdkafka's mock cluster."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import cimpl
from confluent_kafka.admin import AdminClient as ConfluentAdminClient

from frazil.errors import KafkaUnavailable
from frazil.kafka.admin import KafkaAdmin
from frazil.kafka.client import AdminClient
from frazil.kafka.librdkafka import librdkafka

pytestmark = pytest.mark.processes

PARTITIONS = [("rides", p) for p in range(4)]
NO_BROKER = -1
_PRODUCER = 0


class MockCluster:
    """Three brokers of librdkafka's mock cluster, and a topic `rides` that broker 1 leads."""

    def __init__(self) -> None:
        library = librdkafka()
        self._functions = ctypes.CDLL(cimpl.__file__)
        self._client = library._new_client(_PRODUCER, library.new_configuration({"log_level": "0"}))
        self._cluster = self._call("cluster_new", ctypes.c_void_p, ctypes.c_void_p(self._client), 3)
        self.bootstrap = self._call("cluster_bootstraps", ctypes.c_char_p, self._cluster).decode()
        self._call("topic_create", ctypes.c_int, self._cluster, b"rides", len(PARTITIONS), 1)
        for _, partition in PARTITIONS:
            self.lead(partition, 1)

    def lead(self, partition: int, broker: int) -> None:
        assert self._call("partition_set_leader", ctypes.c_int, self._cluster, b"rides", partition, broker) == 0

    def shut_down(self, broker: int) -> None:
        assert self._call("broker_set_down", ctypes.c_int, self._cluster, broker) == 0

    def end(self) -> None:
        self._call("cluster_destroy", None, self._cluster)
        librdkafka().destroy(self._client)

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._functions, f"rd_kafka_mock_{name}")
        function.restype = result
        found = function(*arguments)
        return ctypes.c_void_p(found) if result is ctypes.c_void_p else found


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.end()


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return how often offsets were requested."""
    counted: list[None] = []
    ask = ConfluentAdminClient.list_offsets

    def counting(self: ConfluentAdminClient, *arguments: Any, **options: Any) -> Any:
        counted.append(None)
        return ask(self, *arguments, **options)

    monkeypatch.setattr(ConfluentAdminClient, "list_offsets", counting)
    return lambda: len(counted)


def test_offsets_are_requested_again_from_a_leader_that_moved(
    cluster: MockCluster, requested: Callable[[], int]
) -> None:
    with KafkaAdmin({"bootstrap.servers": cluster.bootstrap}, ["rides"]) as kafka:
        assert kafka.ends(PARTITIONS) == dict.fromkeys(PARTITIONS, 0)
        for question, at_once, leader in ((kafka.ends, 1, 3), (kafka.earliest, 1, 1), (kafka.log_ends, 2, 3)):
            before = requested()
            cluster.lead(2, leader)
            assert question(PARTITIONS).keys() == set(PARTITIONS)
            assert requested() > before + at_once


def test_offsets_of_an_unresponsive_leader_raise_kafka_unavailable(cluster: MockCluster) -> None:
    attempts: dict[int, int] = {}

    def count_attempts(statistics: str) -> None:
        attempts.update({each["nodeid"]: each["connects"] for each in json.loads(statistics)["brokers"].values()})

    def client(properties: Mapping[str, str]) -> AdminClient:
        return AdminClient({**properties, "statistics.interval.ms": "500", "stats_cb": count_attempts})  # type: ignore[dict-item]

    cluster.lead(1, 2)
    with KafkaAdmin({"bootstrap.servers": cluster.bootstrap}, ["rides"], timeout_s=6.0, client=client) as kafka:
        assert kafka.log_ends(PARTITIONS).keys() == set(PARTITIONS)
        cluster.shut_down(2)
        with pytest.raises(KafkaUnavailable, match=r"the leader of rides-1 \(1 in all\) did not answer within 6 s"):
            kafka.log_ends(PARTITIONS)
    assert 1 < attempts[2] < 50


def test_a_partition_without_a_leader_is_waited_for(cluster: MockCluster, requested: Callable[[], int]) -> None:
    with KafkaAdmin({"bootstrap.servers": cluster.bootstrap}, ["rides"]) as kafka:
        cluster.lead(1, NO_BROKER)
        found: list[dict[tuple[str, int], int]] = []
        waiting = threading.Thread(target=lambda: found.append(kafka.ends(PARTITIONS)))
        waiting.start()
        while requested() < 2 and waiting.is_alive():  # the first question found no leader
            waiting.join(0.01)
        cluster.lead(1, 2)
        waiting.join(10)
        assert found == [dict.fromkeys(PARTITIONS, 0)]


def test_a_partition_that_stays_without_a_leader_is_reported(cluster: MockCluster) -> None:
    cluster.lead(1, NO_BROKER)
    with (
        KafkaAdmin({"bootstrap.servers": cluster.bootstrap}, ["rides"], timeout_s=6.0) as kafka,
        pytest.raises(KafkaUnavailable, match=r"rides at .*: no leader for rides-1 \(1 in all\)"),
    ):
        kafka.ends(PARTITIONS)
