"""Kafka for the protocol's model: topics with gaps, retention, new partitions, and another topic of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from frazil.commit.marker import SourceIdentity
from frazil.errors import KafkaUnavailable
from frazil.ingest.contract import TopicPartition
from frazil.stream.kafka import Topics

from .protocol_faults import Faults, InjectedError

TOPIC = "events"
Record = tuple[int, int]
"""Partition and offset."""


@dataclass
class Topic:
    """Records of some partitions, good and bad ones, with gaps in their offsets."""

    records: dict[Record, bool] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    first: dict[int, int] = field(default_factory=dict)
    """Where retention has come to."""
    topic_id: str = "topic-1"

    @property
    def identity(self) -> SourceIdentity:
        return SourceIdentity("cluster", {TOPIC: self.topic_id})

    def produce(self, partition: int, goods: Iterable[bool | None]) -> None:
        """A record for each good or bad, a gap for each None; a partition that is not there yet is added."""
        offset = self.ends.get(partition, 0)
        for good in goods:
            if good is not None:
                self.records[partition, offset] = good
            offset += 1
        self.ends[partition] = offset

    def read(self, partition: int, start: int, end: int) -> list[tuple[Record, bool]]:
        wanted = ((partition, offset) for offset in range(start, end))
        return [(record, self.records[record]) for record in wanted if record in self.records]


@dataclass
class ProcessKafka:
    """The topic as one process asks about it, in the terms of `frazil.stream.kafka.KafkaOffsets`."""

    topic: Topic
    faults: Faults

    def describe(self) -> Topics:
        self._ask()
        return Topics(self.topic.identity, tuple((TOPIC, p) for p in sorted(self.topic.ends)))

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._answer(partitions, self.topic.first)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._answer(partitions, self.topic.ends)

    def _answer(self, partitions: Iterable[TopicPartition], of: Mapping[int, int]) -> dict[TopicPartition, int]:
        self._ask()
        return {tp: of.get(tp[1], 0) for tp in partitions}

    def _ask(self) -> None:
        try:
            self.faults.meet("ask", lambda: None)
        except InjectedError as error:
            raise KafkaUnavailable("no broker answers") from error
