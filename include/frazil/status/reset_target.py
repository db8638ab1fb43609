"""Computes the target offsets and the consequences of a reset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from frazil.commit.marker import Marker, keep_same_topics, keep_topics
from frazil.commit.reset_plan import (
    AvailableOffsets,
    OffsetMove,
    Offsets,
    StateBeforeReset,
    clamp_to_available,
    clamp_to_truncations,
)
from frazil.errors import MarkerUnreadable, RolledBack
from frazil.kafka.admin import KafkaAdmin
from frazil.kafka.logs import find_truncations
from frazil.offsets.spans import TopicPartition
from frazil.spec.sinks import RepeatHandling
from frazil.spec.units import format_count


class NotInKafka(ValueError):
    """Kafka does not have a requested offset."""


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The position requested for a reset. Raises ValueError if the fields contradict each other."""

    to: str
    at: datetime | None = None
    offsets: Offsets | None = None

    def __post_init__(self) -> None:
        if (self.at is not None) != (self.to == "timestamp"):
            raise ValueError("give --at TIME together with --to timestamp, and only with it")
        if (self.offsets is not None) != (self.to == "offsets"):
            raise ValueError("give --offsets together with --to offsets, and only with it")


def fetch_available(kafka: KafkaAdmin, marker: Marker | None) -> AvailableOffsets:
    """Return the offsets that Kafka has, and where its logs were truncated before the marker's offsets."""
    topics = kafka.describe()
    first, end = kafka.earliest(topics.partitions), kafka.ends(topics.partitions)
    if marker is None:
        return AvailableOffsets(topics.identity, first, end)
    same = keep_same_topics(keep_topics(marker.offsets, topics.identity.topic_ids), marker.source, topics.identity)
    cut = find_truncations(kafka, {tp: offset for tp, offset in same.items() if tp in first}, marker.leader_epochs)
    return AvailableOffsets(topics.identity, first, end, cut)


def find_target_offsets(
    wanted: ResetTarget, *, seen: StateBeforeReset, now: AvailableOffsets, kafka: KafkaAdmin
) -> dict[TopicPartition, int]:
    """Return the offset at which each topic-partition continues. Raises MarkerUnreadable, RolledBack and NotInKafka."""
    if wanted.to == "earliest":
        return dict(now.first)
    if wanted.to == "latest":
        return dict(now.end)
    if wanted.to == "timestamp" and wanted.at is not None:
        return clamp_to_available(kafka.at(wanted.at, now.first), now)
    if wanted.to == "table":
        if seen.unknown:
            raise RolledBack(seen.unknown)
        return clamp_to_available(clamp_to_truncations(keep_same_topics(seen.held, seen.source, now.source), now), now)
    if wanted.to == "offsets" and wanted.offsets is not None:
        check_available(wanted.offsets, now)
        return {**_offsets_from_marker(seen, now, named=wanted.offsets), **wanted.offsets}
    return _offsets_from_marker(seen, now)


def _offsets_from_marker(
    seen: StateBeforeReset, now: AvailableOffsets, *, named: Offsets | None = None
) -> dict[TopicPartition, int]:
    """Return the marker's offsets, limited to the offsets in Kafka.

    Without a readable marker, returns no offsets if `named` has all topic-partitions. Otherwise raises
    MarkerUnreadable.
    """
    if seen.marker is None:
        if named is not None and named.keys() == now.first.keys():
            return {}
        raise MarkerUnreadable(
            "the marker cannot be read, so it names no offsets: choose --to table, earliest, latest or timestamp, or "
            "--to offsets with every partition"
        )
    return clamp_to_available(
        clamp_to_truncations(keep_same_topics(seen.marker.offsets, seen.marker.source, now.source), now), now
    )


def check_available(offsets: Offsets, now: AvailableOffsets) -> None:
    """Raise NotInKafka unless each offset is from `first` to `end`, inclusive."""
    for (topic, partition), offset in offsets.items():
        tp = (topic, partition)
        if tp not in now.first:
            known = ", ".join(sorted(f"{t}-{p}" for t, p in now.first))
            raise NotInKafka(f"Kafka has no {topic}-{partition}; it has: {known}")
        if not now.first[tp] <= offset <= now.end[tp]:
            raise NotInKafka(
                f"{topic}-{partition}: {offset} is outside of the offsets that Kafka has, {now.first[tp]} to "
                f"{now.end[tp]}"
            )


_REPEATED_TEXTS: Mapping[str, str] = {
    "no": "the table will have their rows twice, unless you delete the rows first.",
    "dropped": "their rows are dropped as repeats. Only rows without an event time land again.",
    "by order": "their changes are merged again, and a change that is older than the table's row is dropped.",
    "by arrival": "until the writer has caught up, the rows that their changes replace have old values.",
}


def describe_consequences(
    plan: Sequence[OffsetMove], *, seen: StateBeforeReset, now: AvailableOffsets, merged: RepeatHandling = "no"
) -> list[str]:
    """Return messages about records that the table never gets after a reset, and records that it may get again."""
    sentences = []
    if seen.rolled_back:
        sentences.append(
            "The table was rolled back to before the marker, so its rows, not the marker, show which records it has."
        )
    if seen.unknown:
        sentences.append(
            "It is unknown which records the table has, and therefore which will be skipped or repeated: "
            f"{seen.unknown}."
        )
    for topic in _recreated_topics(seen, now):
        sentences.append(f"Topic {topic} was recreated after the marker: its offsets count from its beginning.")
    skipped, gone = sum(m.skipped for m in plan), sum(m.gone for m in plan)
    repeated = sum(m.repeated for m in plan)
    for m in plan:
        if m.rewritten:
            sentences.append(
                f"Kafka's log of {m.topic}-{m.partition} was truncated at offset {m.cut:,}. From there on, Kafka has "
                f"or will have new records at {m.rewritten:,} offsets whose old records are in the table. After the "
                "reset, the table gets the new records and keeps the old ones."
            )
    if skipped:
        also = f"; Kafka has already deleted {gone:,} of them" if gone else ""
        sentences.append(f"It skips {format_count(skipped, 'offset')}{also}: their records never reach the table.")
    if repeated:
        sentences.append(
            f"It reads {format_count(repeated, 'offset')} again that the table has: {_REPEATED_TEXTS[merged]}"
        )
    if not skipped and not repeated and not seen.unknown:
        sentences.append("It skips no records, and reads no records again that the table has.")
    return sentences


def _recreated_topics(seen: StateBeforeReset, now: AvailableOffsets) -> list[str]:
    if seen.source is None:
        return []
    topics = sorted(now.source.topic_ids)
    if seen.source.cluster_id != now.source.cluster_id:
        return topics
    return [t for t in topics if seen.source.topic_ids.get(t, now.source.topic_ids[t]) != now.source.topic_ids[t]]
