"""The position at which a batch ends. The planner chooses it, and the batch's journal and the marker record it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from frazil.commit.marker import NO_TRANSACTION, LastTransaction, Marker
from frazil.offsets.spans import TopicPartition


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset of each topic-partition, and the set of idle topic-partitions."""

    offsets: Mapping[TopicPartition, int]
    idle: frozenset[TopicPartition] = frozenset()
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Maps a topic-partition to the epoch of the leader that had the last record before its offset, if known."""
    transaction: LastTransaction = NO_TRANSACTION
    """The last source transaction before these offsets, if the stream reads whole transactions."""

    @classmethod
    def of(cls, marker: Marker) -> Position:
        return cls(marker.offsets, marker.idle, marker.leader_epochs, marker.transaction)
