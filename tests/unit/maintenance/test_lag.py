"""A stream's lag when no writer on this host reports it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.kafka.admin import Topics
from frazil.maintenance import measure
from frazil.offsets.spans import SourceIdentity, TopicPartition
from frazil.spec.model import StreamSpec
from tests.unit.ingest.test_envelope import SPEC

TOPIC = "shop.public.orders"
READ = SourceIdentity("c", {TOPIC: "first"})


@dataclass
class Brokers:
    topic_id: str
    first: Mapping[TopicPartition, int]
    last: Mapping[TopicPartition, int]

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe(self) -> Topics:
        return Topics(SourceIdentity("c", {TOPIC: self.topic_id}), tuple(self.last))

    def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self.last[tp] for tp in partitions}

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self.first[tp] for tp in partitions}


@pytest.mark.parametrize(
    ("brokers", "waiting"),
    [
        (Brokers("first", {(TOPIC, 0): 0}, {(TOPIC, 0): 30}), 20),
        (Brokers("first", {(TOPIC, 0): 0, (TOPIC, 1): 3}, {(TOPIC, 0): 10, (TOPIC, 1): 8}), 5),
        (Brokers("made again", {(TOPIC, 0): 0}, {(TOPIC, 0): 7}), "made again"),
    ],
    ids=["a known partition", "a new partition", "a topic that was made again"],
)
def test_the_kafka_lag_is_counted_or_the_reason_is_reported(
    brokers: Brokers, waiting: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker: Any = SimpleNamespace(offsets={(TOPIC, 0): 10}, source=READ)
    monkeypatch.setattr(measure, "open_kafka", lambda *_, **__: brokers)
    found = measure.kafka_lag(StreamSpec.model_validate(SPEC), marker)
    assert found == waiting or (isinstance(found, str) and str(waiting) in found)
