"""Kafka for the protocol model: topics with gaps, retention, new partitions, and a recreated topic of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from frazil.errors import KafkaUnavailable
from frazil.kafka.admin import Topics
from frazil.kafka.logs import LogEnd
from frazil.offsets.spans import SourceIdentity, TopicPartition
from frazil.partitions.windows import Grain

from .protocol_faults import Faults, InjectedError

Record = tuple[str, int, int]
"""Topic, partition and offset."""


def time_us(record: Record) -> int:
    """Return a record's event time: 40 minutes per offset, and up to four hours before that of earlier records."""
    offset = record[2]
    return max(offset - offset * 5 % 7, 0) * 40 * 60 * 1_000_000


def window_of(record: Record) -> int:
    """Return the start of the record's hour of event time, in microseconds."""
    return Grain.HOUR.floor(time_us(record))


Good = Literal["always", "never", "until a column is required", "once a column is required"]
"""The schemas that accept a record."""


def is_good(good: Good, *, strict: bool) -> bool:
    """Return whether a schema accepts the record. `strict`: the schema has a required column."""
    return good in {"always", "once a column is required" if strict else "until a column is required"}


@dataclass
class Topic:
    """The topic of one stream: partitions with good and bad records, and gaps in their offsets."""

    name: str
    records: dict[Record, Good] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    first: dict[int, int] = field(default_factory=dict)
    """The first offset that retention has kept."""
    generation: int = 1
    """Increases by one each time the topic is recreated."""
    leaders: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Each leader's epoch and the offset at which it began, by partition."""
    pending: dict[int, int] = field(default_factory=dict)
    """The number of records in an open transaction, after the last readable offset, by partition."""
    old_end: int = 0
    """The end of a second topic, `old`, which has no records. Only some of the stream's writers declare it."""

    @property
    def old(self) -> str:
        return f"old-{self.name}"

    @property
    def identity(self) -> SourceIdentity:
        return SourceIdentity("cluster", {self.name: f"{self.name}-{self.generation}"})

    def produce(self, partition: int, goods: Iterable[Good | None]) -> None:
        """Append a record for each value, and a gap for each None. Adds the partition if it does not exist.

        First commits a transaction that is open in the partition.
        """
        committed: list[Good | None] = ["always"] * self.pending.pop(partition, 0)
        goods = [*committed, *goods]
        offset = self.ends.get(partition, 0)
        for good in goods:
            if good is not None:
                self.records[self.name, partition, offset] = good
            offset += 1
        self.ends[partition] = offset

    def leader_epoch(self, partition: int) -> int:
        return self.leaders.get(partition, [(0, 0)])[-1][0]

    def elect(self, partition: int) -> None:
        """Elect another leader, which has all readable records."""
        begun = self.leaders.setdefault(partition, [(0, 0)])
        begun.append((begun[-1][0] + 1, self.ends.get(partition, 0)))

    def cut(self, partition: int, at: int) -> None:
        """An unclean election: the new leader's log ends earlier, and new records get the offsets of the lost ones."""
        epoch = self.leader_epoch(partition) + 1
        self.pending.pop(partition, None)
        kept = [(e, start) for e, start in self.leaders.get(partition, [(0, 0)]) if start < at]
        self.leaders[partition] = [*kept, (epoch, at)]
        self.records = {(t, p, o): good for (t, p, o), good in self.records.items() if p != partition or o < at}
        self.ends[partition] = at

    def end_of_epoch(self, partition: int, epoch: int) -> int:
        """Return a leader's response to `OffsetForLeaderEpoch`."""
        later = [start for e, start in self.leaders.get(partition, [(0, 0)]) if e > epoch]
        return min(later, default=self.ends.get(partition, 0))

    def read(self, partition: int, start: int, end: int) -> list[tuple[Record, Good]]:
        wanted = ((self.name, partition, offset) for offset in range(start, end))
        return [(record, self.records[record]) for record in wanted if record in self.records]


@dataclass
class ProcessKafka:
    """The topic as one process reads it, with the interface of `frazil.kafka.admin.KafkaAdmin`."""

    topic: Topic
    faults: Faults
    topics: tuple[str, ...]

    def describe(self) -> Topics:
        self._ask()
        partitions = [(self.topic.name, p) for p in sorted(self.topic.ends)]
        known, old = self.topic.identity, self.topic.old
        if old not in self.topics:
            return Topics(known, tuple(partitions))
        return Topics(SourceIdentity(known.cluster_id, {**known.topic_ids, old: "old-1"}), (*partitions, (old, 0)))

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._answer(partitions, self.topic.first, old=0)

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        ends, pending = self._answer(partitions, self.topic.ends, old=self.topic.old_end), self.topic.pending
        return {
            (t, p): LogEnd(end, end + pending.get(p, 0), self.topic.leader_epoch(p))
            if t == self.topic.name
            else LogEnd(end, end, 0)
            for (t, p), end in ends.items()
        }

    def truncation_offsets(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        self._ask()
        name = self.topic.name
        ends = {tp: self.topic.end_of_epoch(tp[1], epoch) for tp, (_, epoch) in positions.items() if tp[0] == name}
        return {tp: end for tp, end in ends.items() if end < positions[tp][0]}

    def _answer(
        self, partitions: Iterable[TopicPartition], of: Mapping[int, int], *, old: int
    ) -> dict[TopicPartition, int]:
        self._ask()
        requested = list(partitions)
        assert {topic for topic, _ in requested} <= set(self.topics), "a topic that is not declared was asked for"
        return {(topic, p): of.get(p, 0) if topic == self.topic.name else old for topic, p in requested}

    def _ask(self) -> None:
        try:
            self.faults.meet("ask", lambda: None)
        except InjectedError as error:
            raise KafkaUnavailable("no broker answers") from error
