"""Checks whether Kafka's log still contains the records that a stream read, or was truncated since.

A log can be truncated by an unclean leader election, by a disk that lost its newest segments, or by a broker that was
restored from a backup. New records then reuse the lost offsets. Two signs reveal a truncation.

First, a leader reports an end before an offset that was readable. A healthy leader never does this: a new leader
returns `OFFSET_NOT_AVAILABLE` until its high watermark has passed its predecessor's. Only a broker that has not noticed
that it was replaced may report an older end, and its answer has an older leader epoch.

Second, the leader knows the end offset of each leader epoch, however much the log has grown since. librdkafka requests
this offset (`OffsetForLeaderEpoch`) when a consumer is assigned an offset with its epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaTopicPartition

from frazil.errors import KafkaUnavailable, OffsetGap
from frazil.offsets.spans import TopicPartition

SHORT_POLLS = 3
"""Number of consecutive polls with an end before the position that prove a truncation without a leader epoch."""
OUTDATED_POLLS = 60
"""Number of consecutive outdated answers (from a replaced broker) after which reading fails."""
ANSWER_TIMEOUT_S = 20.0
_AT_ONCE = 100
_SETTINGS = {
    "group.id": "frazil",  # never joined
    "enable.auto.commit": False,
    # Records of open transactions also count as answers.
    "isolation.level": "read_uncommitted",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    # One record is enough. By default, librdkafka waits a second once its queue is full.
    "fetch.message.max.bytes": 1024,
    "fetch.wait.max.ms": 5,
    "fetch.queue.backoff.ms": 5,
}


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a topic-partition's log, as its leader reports it."""

    stable: int
    """The last stable offset: the end of the log for a `read_committed` reader."""
    high: int
    """The high watermark, which includes the records of open transactions."""
    leader_epoch: int | None = None
    """The epoch of the leader that answered; None if the broker does not report it."""


class Answer(Enum):
    """The meaning of a leader's answer for an offset that was readable before ("it")."""

    VALID = "the same leader has it"
    OUTDATED = "the broker was replaced without noticing: its ends mean nothing"
    SHORT = "the log ends before it"
    ANOTHER_LEADER = "the log may have been truncated, and grown again: ask the leader"


def evaluate(offset: int, end: LogEnd, *, known_epoch: int | None) -> Answer:
    """Classify a leader's answer for an offset that was readable when the leader had `known_epoch`."""
    if known_epoch is not None and end.leader_epoch is not None and end.leader_epoch < known_epoch:
        return Answer.OUTDATED
    if end.stable < offset:
        return Answer.SHORT
    same = known_epoch is None or end.leader_epoch is None or end.leader_epoch == known_epoch
    return Answer.VALID if same else Answer.ANOTHER_LEADER


def diverged(
    properties: Mapping[str, str], positions: Mapping[TopicPartition, tuple[int, int]]
) -> frozenset[TopicPartition]:
    """Return the topic-partitions whose log no longer contains their position, an offset and its leader epoch.

    Includes positions that retention deleted. Raises KafkaUnavailable if an answer is missing after the timeout.
    """
    if not positions:
        return frozenset()
    found: set[TopicPartition] = set()
    waiting = set(positions)
    consumer = Consumer({**properties, **_SETTINGS})
    try:
        consumer.assign([KafkaTopicPartition(*tp, o, leader_epoch=epoch) for tp, (o, epoch) in positions.items()])
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while waiting:
            for message in consumer.consume(_AT_ONCE, timeout=0.05):
                tp = (message.topic() or "", message.partition() or 0)
                code = error.code() if (error := message.error()) else None
                if tp not in waiting or code not in {None, KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET}:
                    continue
                waiting.discard(tp)
                consumer.incremental_unassign([KafkaTopicPartition(*tp)])
                if code == KafkaError._AUTO_OFFSET_RESET:
                    found.add(tp)
            if waiting and time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"Kafka was asked whether the logs of {_names(waiting)} still lead to the stream's position, but "
                    f"did not answer within {ANSWER_TIMEOUT_S:.0f} s. Check the brokers"
                )
    finally:
        consumer.close()
    return frozenset(found)


def truncated_ranges(wanted: Mapping[TopicPartition, int], cut: Mapping[TopicPartition, int]) -> str:
    """Describe the offsets that each log lost between its truncation (`cut`) and the position (`wanted`).

    Returns an empty string if no offsets were lost.
    """
    return "; ".join(
        f"{topic}-{partition} offsets {at} to {wanted[topic, partition] - 1}"
        for (topic, partition), at in sorted(cut.items())
        if at < wanted.get((topic, partition), at)
    )


def check_not_cut(wanted: Mapping[TopicPartition, int], cut: Mapping[TopicPartition, int], *, stream: str) -> None:
    """Raise OffsetGap if a log was truncated below the stream's position."""
    if lost := truncated_ranges(wanted, cut):
        raise OffsetGap(
            f"Kafka lost records that stream {stream!r} had read already, and gives their offsets to new ones: {lost}. "
            "The log was truncated (an unclean leader election, a disk or a broker restored from a backup). The table "
            f"keeps what it has. `frazil reset {stream} --to marker` continues where the log was truncated, and new "
            "records land next to the old rows. With `source.on-gap: skip` a writer does so automatically"
        )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)[:5])
