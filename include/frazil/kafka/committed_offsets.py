"""Reads which offsets hold committed records in Kafka, with a consumer that shares no code with the writer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from frazil.errors import KafkaUnavailable
from frazil.kafka.tokens import create_client
from frazil.offsets.spans import TopicPartition
from frazil.offsets.tally import OffsetTally

NO_MESSAGE_TIMEOUT_S = 60.0

_SETTINGS = {
    # Required by librdkafka but not used: the consumer does not commit offsets or join a group.
    "group.id": "frazil-audit",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 5,
}


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
                raise KafkaUnavailable(
                    f"Kafka sent nothing for {NO_MESSAGE_TIMEOUT_S:.0f} s; check the brokers, then audit again"
                )
            pieces: dict[TopicPartition, list[int]] = {}
            for message in messages:
                at, offset, is_record = _parse_message(message)
                if at not in open_ranges:
                    continue
                end = open_ranges[at][1]
                if is_record and offset < end:
                    pieces.setdefault(at, []).append(offset)
                if offset >= (end - 1 if is_record else end):
                    del open_ranges[at]
                    consumer.incremental_unassign([KafkaTopicPartition(*at)])
            for at, offsets in pieces.items():
                tallies[at].add(np.array(offsets))
    return tallies


def _parse_message(message: Message) -> tuple[TopicPartition, int, bool]:
    error = message.error()
    tp = (message.topic() or "", message.partition() or 0)
    if error is None:
        return tp, message.offset() or 0, True
    if error.code() == KafkaError._PARTITION_EOF:
        return tp, message.offset() or 0, False
    raise KafkaUnavailable(f"cannot read {tp[0]}-{tp[1]}: {error}; run the audit again, or omit --source")
