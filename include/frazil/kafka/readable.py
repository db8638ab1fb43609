"""Checks whether a stream's Kafka user may read its topics. A broker may allow describing a topic, but not reading it.

Only a fetch shows this, so the check fetches from the end of one partition of each topic, which transfers no records.
The check does not join a group or commit offsets.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from confluent_kafka import OFFSET_END, Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaTopicPartition

from frazil.errors import AccessDenied, KafkaUnavailable
from frazil.kafka.client import client_errors
from frazil.offsets.spans import TopicPartition

_SETTINGS = {
    "group.id": "frazil",  # never joined
    "enable.auto.commit": False,
    # The end of an open transaction also counts as an end.
    "isolation.level": "read_uncommitted",
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 1024,
    "fetch.wait.max.ms": 5,
}
_AT_ONCE = 100
_NAMED = 5


def check_readable(
    properties: Mapping[str, str], partitions: Collection[TopicPartition], *, stream: str, within_s: float
) -> None:
    """Try to read one partition of each topic.

    Raises AccessDenied if the broker refuses some topics, and KafkaUnavailable if a topic gets no answer in time.
    """
    waiting = dict(sorted(partitions, reverse=True))
    refused: list[str] = []
    place = f"stream {stream}, brokers {properties.get('bootstrap.servers', '')}"
    with client_errors():
        consumer = Consumer({**properties, **_SETTINGS})
    try:
        consumer.assign([KafkaTopicPartition(*tp, OFFSET_END) for tp in waiting.items()])
        deadline = time.monotonic() + within_s
        while waiting and time.monotonic() < deadline:
            for message in consumer.consume(_AT_ONCE, timeout=0.05):
                topic, error = message.topic() or "", message.error()
                code = error.code() if error else None  # no error: a new record has arrived
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED and waiting.pop(topic, None) is not None:
                    refused.append(topic)
                elif code in {None, KafkaError._PARTITION_EOF}:
                    waiting.pop(topic, None)
    finally:
        consumer.close()
    if refused:
        raise AccessDenied(f"{place}: Kafka refuses to let the stream read {_names(refused)}. Grant Read on them")
    if waiting:
        raise KafkaUnavailable(f"{place}: no answer to a fetch of {_names(waiting)} within {within_s:g} s")


def _names(topics: Collection[str]) -> str:
    more = f" and {len(topics) - _NAMED:,} more" if len(topics) > _NAMED else ""
    return f"{', '.join(sorted(topics)[:_NAMED])}{more}"
