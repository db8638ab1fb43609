"""The audit's requests to Kafka: logs truncated below the committed offsets, beyond known and accepted losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from frazil.audit import kafka_source
from frazil.audit.claims import Claims, CommittedRange
from frazil.audit.findings import FindingKind
from frazil.kafka.admin import Topics
from frazil.kafka.logs import LogEnd
from frazil.offsets.spans import SourceIdentity, TopicPartition
from frazil.offsets.tally import OffsetTally

T0, T1 = ("t", 0), ("t", 1)
IDENTITY = SourceIdentity("c1", {"t": "id-1"})


class StandInKafka:
    """A log whose leader of epoch 1 had nothing from offset 40 on, and which has grown to 100 since."""

    leaderless: frozenset[TopicPartition] = frozenset()

    def describe(self) -> Topics:
        return Topics(IDENTITY, (T0, T1), self.leaderless)

    def earliest(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def log_ends(self, partitions: Any) -> dict[TopicPartition, LogEnd]:
        return dict.fromkeys(partitions, LogEnd(100, 100, 2))

    def truncation_offsets(self, requested: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        return {tp: 40 for tp, (end, epoch) in requested.items() if tp == T0 and epoch == 1 and end > 40}


@pytest.mark.parametrize(
    ("accepted", "found"),
    [
        ((), 40),
        (((40, 60),), None),
        (((30, 70),), None),
        (((0, 40),), 40),
        (((50, 60),), 40),
        (((40, 50),), 40),
        (((0, 30), (40, 60)), None),
    ],
)
def test_a_truncated_log_that_has_grown_is_found_unless_all_of_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch, accepted: tuple[tuple[int, int], ...], found: int | None
) -> None:
    kafka, notes = ask(monkeypatch, accepted)
    assert [(note.kind, note.sentence) for note in notes] == [
        (FindingKind.NOT_COMMITTED, f"{90 if found else 100} records are not committed yet")
    ]
    assert {tp: one.truncated_at for tp, one in kafka.items()} == {T0: found, T1: None}
    assert kafka[T0].offsets == BitMap64(range(90))
    assert kafka[T1].offsets == BitMap64(range(10))


def test_offsets_after_the_end_of_a_log_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandInKafka, "log_ends", lambda _, of: dict.fromkeys(of, LogEnd(80, 80, 2)))
    assert ask(monkeypatch)[0][T0].offsets == BitMap64(range(80))


def test_a_partition_without_a_leader_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandInKafka, "leaderless", frozenset({T1}))
    kafka, notes = ask(monkeypatch)
    assert kafka.keys() == {T0}
    assert [(note.kind, note.where, note.count) for note in notes if "no leader" in note.sentence] == [
        (FindingKind.NOT_COMPARED, "t-1", 10)
    ]


def ask(monkeypatch: pytest.MonkeyPatch, accepted: tuple[tuple[int, int], ...] = ()) -> Any:
    @contextmanager
    def open_kafka(_: Any) -> Iterator[StandInKafka]:
        yield StandInKafka()

    monkeypatch.setattr(kafka_source, "open_kafka", open_kafka)
    monkeypatch.setattr(kafka_source, "resolve_kafka_properties", lambda *_: {})
    monkeypatch.setattr(
        kafka_source, "read_offsets", lambda _, spans: {tp: OffsetTally(range(*span)) for tp, span in spans.items()}
    )
    ranges = {
        T0: (
            CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=1),
            CommittedRange(60, 90, 30, 0, "id-1", leader_epoch=2),
        ),
        T1: (CommittedRange(0, 10, 10, 0, "id-1", leader_epoch=1),),
    }
    marker: Any = SimpleNamespace(
        source=IDENTITY, offsets={T0: 90, T1: 10}, leader_epochs={T0: 2, T1: 1}, rewritten={T0: accepted}
    )
    spec: Any = SimpleNamespace(name="s", source=SimpleNamespace(reads=("t",)))
    return kafka_source.find_remaining_offsets(spec, marker, Claims(ranges))
