"""Computes the target offsets and the consequences of a reset, for the command line and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from frazil.commit.marker import Marker, keep_same_topics, keep_topics
from frazil.commit.reset import Available, BeforeReset, Move, Offsets, clamp, move_before_truncations
from frazil.errors import MarkerUnreadable, RolledBack
from frazil.kafka.admin import KafkaOffsets
from frazil.kafka.logs import find_truncations
from frazil.offsets.spans import TopicPartition
from frazil.spec.units import counted


class NotInKafka(ValueError):
    """Raised if Kafka does not have a requested offset."""


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The position requested for a reset. Raises ValueError if the fields contradict each other."""

    to: str
    at: datetime | None = None
    offsets: Offsets | None = None

    def __post_init__(self) -> None:
        if (self.at is not None) != (self.to == "timestamp"):
            raise ValueError("--at TIME belongs to --to timestamp, and that needs it")
        if (self.offsets is not None) != (self.to == "offsets"):
            raise ValueError("--offsets belongs to --to offsets, and that needs it")


def available_now(kafka: KafkaOffsets, marker: Marker | None) -> Available:
    """Return which offsets of the stream's topics Kafka has, and where Kafka's logs were truncated below the marker."""
    topics = kafka.describe()
    first, end = kafka.earliest(topics.partitions), kafka.ends(topics.partitions)
    if marker is None:
        return Available(topics.identity, first, end)
    same = keep_same_topics(keep_topics(marker.offsets, topics.identity.topic_ids), marker.source, topics.identity)
    cut = find_truncations(kafka, {tp: offset for tp, offset in same.items() if tp in first}, marker.leader_epochs)
    return Available(topics.identity, first, end, cut)


def target_of(
    wanted: ResetTarget, *, seen: BeforeReset, now: Available, kafka: KafkaOffsets
) -> dict[TopicPartition, int]:
    """Return the offset at which the stream continues, for every topic-partition in Kafka.

    Raises MarkerUnreadable or RolledBack if `to` needs a position that is unknown, and NotInKafka for offsets that
    Kafka does not have.
    """
    if wanted.to == "earliest":
        return dict(now.first)
    if wanted.to == "latest":
        return dict(now.end)
    if wanted.to == "timestamp" and wanted.at is not None:
        return clamp(kafka.at(wanted.at, now.first), now)
    if wanted.to == "table":
        if seen.unknown:
            raise RolledBack(seen.unknown)
        return clamp(move_before_truncations(keep_same_topics(seen.held, seen.source, now.source), now), now)
    if wanted.to == "offsets" and wanted.offsets is not None:
        check_available(wanted.offsets, now)
        return {**_marker_target(seen, now, named=wanted.offsets), **wanted.offsets}
    return _marker_target(seen, now)


def _marker_target(seen: BeforeReset, now: Available, *, named: Offsets | None = None) -> dict[TopicPartition, int]:
    if seen.marker is None:
        if named is not None and named.keys() == now.first.keys():
            return {}
        raise MarkerUnreadable(
            "the marker cannot be read, so it names no offsets: choose --to table, earliest, latest or timestamp, or "
            "--to offsets with every partition"
        )
    return clamp(
        move_before_truncations(keep_same_topics(seen.marker.offsets, seen.marker.source, now.source), now), now
    )


def check_available(offsets: Offsets, now: Available) -> None:
    """Raise NotInKafka if Kafka does not have one of these offsets. Each must be from `first` to `end`, inclusive."""
    for (topic, partition), offset in offsets.items():
        tp = (topic, partition)
        if tp not in now.first:
            known = ", ".join(sorted(f"{t}-{p}" for t, p in now.first))
            raise NotInKafka(f"Kafka has no {topic}-{partition}; it has: {known}")
        if not now.first[tp] <= offset <= now.end[tp]:
            raise NotInKafka(
                f"{topic}-{partition}: {offset} is outside of what Kafka has, {now.first[tp]} to {now.end[tp]}"
            )


_AGAIN: Mapping[str, str] = {
    "no": "their rows will be in it twice, unless they are deleted first.",
    "dropped": "they repeat its rows, and are dropped. Only rows without an event time land again.",
    "by order": "their changes are merged once more, and those that are older than the table's row are dropped.",
    "by arrival": "until the writer has caught up, rows that they change are as they were then.",
}


Merged = Literal["no", "by order", "by arrival", "dropped"]


def consequences(plan: Sequence[Move], *, seen: BeforeReset, now: Available, merged: Merged = "no") -> list[str]:
    """Describe the consequences of a reset: records that the table never gets, and records that it may get twice. Pure.

    `merged` is how the table handles records that it gets twice. "no" means that each record is a row. "dropped" means
    that the stream has dedupe. Otherwise it is how an upsert stream orders changes.
    """
    said = []
    if seen.rolled_back:
        said.append("The table was rolled back behind the marker: its remaining rows say what it holds.")
    if seen.unknown:
        said.append(f"What the table holds is unknown, and so is what is skipped or read again: {seen.unknown}.")
    for topic in _made_again(seen, now):
        said.append(f"Topic {topic} is not the one that the marker knows: its offsets count from its beginning.")
    skipped, gone = sum(m.skipped for m in plan), sum(m.gone for m in plan)
    repeated = sum(m.repeated for m in plan)
    for m in plan:
        if m.rewritten:
            said.append(
                f"Kafka's log of {m.topic}-{m.partition} was cut at offset {m.cut:,}: from there on it has, or will "
                f"have, other records than the {m.rewritten:,} offsets that the table holds. They are read, and land "
                "next to those that Kafka lost."
            )
    if skipped:
        also = f"; Kafka has already deleted {gone:,} of them" if gone else ""
        said.append(f"It skips {counted(skipped, 'offset')}{also}: their records never reach the table.")
    if repeated:
        said.append(f"It reads {counted(repeated, 'offset')} again that the table holds: {_AGAIN[merged]}")
    if not skipped and not repeated and not seen.unknown:
        said.append("It skips nothing, and reads nothing again that the table holds.")
    return said


def _made_again(seen: BeforeReset, now: Available) -> list[str]:
    if seen.source is None:
        return []
    topics = sorted(now.source.topic_ids)
    if seen.source.cluster_id != now.source.cluster_id:
        return topics
    return [t for t in topics if seen.source.topic_ids.get(t, now.source.topic_ids[t]) != now.source.topic_ids[t]]
