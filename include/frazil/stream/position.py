"""Where a batch ends: the planner decides it, and the batch's journal and the marker get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frazil.commit.marker import Marker, flat, nested
from frazil.offsets.spans import TopicPartition


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset of each topic-partition, and which of them are idle."""

    offsets: Mapping[TopicPartition, int]
    idle: frozenset[TopicPartition] = frozenset()
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The epochs of the leaders that had those offsets, if known."""

    def to_json(self) -> dict[str, Any]:
        return {
            "offsets": nested(self.offsets),
            "idle": nested(dict.fromkeys(self.idle, 1)),
            "leader-epochs": nested(self.leader_epochs),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Position:
        return cls(flat(value["offsets"]), frozenset(flat(value["idle"])), flat(value["leader-epochs"]))

    @classmethod
    def of(cls, marker: Marker) -> Position:
        return cls(marker.offsets, marker.idle, marker.leader_epochs)
