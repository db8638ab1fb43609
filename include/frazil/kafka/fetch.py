"""Reads from topic-partitions outside of batches.

Fetching one message, unlike describing a topic, shows whether a client may read the topic. Only a consumer can ask a
leader whether its log still has a position (offset, leader epoch).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing

import numpy as np
from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from frazil.errors import AccessDenied, KafkaUnavailable, brokers_remedy
from frazil.kafka.client import ACL_COMMAND, create_client, translate_client_errors
from frazil.offsets.spans import TopicPartition
from frazil.offsets.tally import OffsetTally

RESPONSE_TIMEOUT_S = 20.0
_MAX_NAMES = 5
NO_MESSAGE_TIMEOUT_S = 60.0
_SETTINGS = {
    "group.id": "frazil",  # required by librdkafka, but never joined
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 5,
}
_ONE_MESSAGE = {
    **_SETTINGS,
    # Records and ends of open transactions also count as answers.
    "isolation.level": "read_uncommitted",
    # One record is enough. By default, librdkafka waits a second once its queue is full.
    "fetch.message.max.bytes": 1024,
    "fetch.wait.max.ms": 5,
}


def find_diverged(
    properties: Mapping[str, str], positions: Mapping[TopicPartition, tuple[int, int]]
) -> frozenset[TopicPartition]:
    """Return the partitions whose log no longer contains the given (offset, leader epoch). Raises KafkaUnavailable."""
    if not positions:
        return frozenset()
    diverged: set[TopicPartition] = set()
    waiting = set(positions)
    starts = [KafkaTopicPartition(*tp, offset, leader_epoch=epoch) for tp, (offset, epoch) in positions.items()]
    with closing(create_client(Consumer, {**properties, **_ONE_MESSAGE})) as consumer:
        consumer.assign(starts)
        for tp, code in _fetch_answers(consumer, waiting, timeout_s=RESPONSE_TIMEOUT_S):
            if tp not in waiting or code not in {None, KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET}:
                continue
            waiting.discard(tp)
            consumer.incremental_unassign([KafkaTopicPartition(*tp)])
            if code == KafkaError._AUTO_OFFSET_RESET:
                diverged.add(tp)
    if waiting:
        raise KafkaUnavailable(
            f"Kafka did not report within {RESPONSE_TIMEOUT_S:.0f} s whether the logs of "
            f"{_join_names(f'{topic}-{p}' for topic, p in waiting)} still contain the stream's position",
            remedy=brokers_remedy(),
        )
    return frozenset(diverged)


def check_readable(
    properties: Mapping[str, str], partitions: Collection[TopicPartition], *, stream: str, timeout_s: float
) -> None:
    """Fetch once from each topic's end. Raises AccessDenied for refused topics, and KafkaUnavailable."""
    waiting = dict(sorted(partitions, reverse=True))
    refused: list[str] = []
    where = f"brokers {properties.get('bootstrap.servers', '')}"
    with translate_client_errors():
        consumer = create_client(Consumer, {**properties, **_ONE_MESSAGE})
    with closing(consumer):
        consumer.assign([KafkaTopicPartition(*tp, OFFSET_END) for tp in waiting.items()])
        for (topic, _), code in _fetch_answers(consumer, waiting, timeout_s=timeout_s):
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED and waiting.pop(topic, None) is not None:
                refused.append(topic)
            elif code in {None, KafkaError._PARTITION_EOF}:  # None: a new record has arrived
                waiting.pop(topic, None)
    if refused:
        text = f"{where}: Kafka refuses to let the stream read {_join_names(refused)}"
        raise AccessDenied(text, stream=stream, remedy=f"Grant Read on them: {ACL_COMMAND}")
    if waiting:
        raise KafkaUnavailable(
            f"{where}: no response to a fetch of {_join_names(waiting)} within {timeout_s:g} s",
            stream=stream,
            remedy=brokers_remedy(),
        )


def _fetch_answers(
    consumer: Consumer, waiting: Collection[object], *, timeout_s: float
) -> Iterator[tuple[TopicPartition, int | None]]:
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline:
        for message in consumer.consume(100, timeout=0.05):
            error = message.error()
            yield (message.topic() or "", message.partition() or 0), error.code() if error else None


def _join_names(names: Iterable[str]) -> str:
    names = sorted(names)
    more_text = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more_text}"


def read_offsets(
    properties: Mapping[str, str], ranges: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, OffsetTally]:
    """Return the offsets of committed records in each range `[start, end)`. Raises KafkaUnavailable."""
    open_ranges = {tp: r for tp, r in ranges.items() if r[1] > r[0]}
    tallies = {tp: OffsetTally() for tp in ranges}
    if not open_ranges:
        return tallies
    with closing(create_client(Consumer, {**properties, **_SETTINGS})) as consumer:
        consumer.assign([KafkaTopicPartition(*tp, start) for tp, (start, _) in open_ranges.items()])
        last_message_at = time.monotonic()
        while open_ranges:  # until the last offset, a later record, or the end of the partition was read
            messages = consumer.consume(10_000, timeout=0.5)
            if messages:
                last_message_at = time.monotonic()
            elif time.monotonic() - last_message_at > NO_MESSAGE_TIMEOUT_S:
                raise KafkaUnavailable(f"Kafka sent nothing for {NO_MESSAGE_TIMEOUT_S:.0f} s", remedy=brokers_remedy())
            pieces: dict[TopicPartition, list[int]] = {}
            for message in messages:
                topic_partition, offset, is_record = _parse_message(message)
                if topic_partition not in open_ranges:
                    continue
                end = open_ranges[topic_partition][1]
                if is_record and offset < end:
                    pieces.setdefault(topic_partition, []).append(offset)
                if offset >= (end - 1 if is_record else end):
                    del open_ranges[topic_partition]
                    consumer.incremental_unassign([KafkaTopicPartition(*topic_partition)])
            for topic_partition, offsets in pieces.items():
                tallies[topic_partition].add(np.array(offsets))
    return tallies


def _parse_message(message: Message) -> tuple[TopicPartition, int, bool]:
    error, tp = message.error(), (message.topic() or "", message.partition() or 0)
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return tp, message.offset() or 0, error is None
    raise KafkaUnavailable(f"cannot read {tp[0]}-{tp[1]}: {error}; run the audit again, or omit --source")
