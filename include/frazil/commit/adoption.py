"""Checks whether a stream may write to a table with rows of other writers or streams.

`frazil forget` leaves the property `frazil.forgotten.<name>` in the table: the stream's topics, their offsets, and its
last epoch, which is never used again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from frazil.commit.marker import PROPERTY_PREFIX, flatten_topics, keep_topics, nest_by_topic, try_read_marker
from frazil.errors import AdoptionRequired
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import TopicPartition
from frazil.spec.units import format_count
from frazil.table.branches import head_of

FORGOTTEN_PREFIX = "frazil.forgotten."
FORMAT_VERSION = 1


def check_adopted(metadata: TableMetadata, *, stream: str, table: str, source: SourceIdentity) -> None:
    """Raise AdoptionRequired if others have written to the table and no operator ran `frazil adopt`."""
    if others := other_readers(metadata.properties, source, stream=stream):
        other, topics = next(iter(others.items()))
        raise AdoptionRequired(
            f"stream {stream!r} has no marker in table {table}, but stream {other!r} has already read "
            f"{', '.join(sorted(topics))} into this table. If {other!r} was renamed to {stream!r}, run "
            f"`frazil adopt {stream}` to continue at the position of {other!r}, or change the name back"
        )
    head = head_of(metadata)
    rows = row_count(metadata)
    if head is None or rows == 0:
        return
    if past := forgotten_reader(metadata.properties, source, stream=stream):
        raise AdoptionRequired(
            f"stream {past!r} was forgotten, but its rows are still in table {table}: stream {stream!r} would "
            f"duplicate rows whose records are still in Kafka. To start at source.start anyway, run `frazil adopt "
            f"{stream}`; to choose another position, run `frazil reset {stream}` after that"
        )
    if not any(name.startswith(PROPERTY_PREFIX) for name in metadata.properties):
        raise AdoptionRequired(
            f"table {table} has {'an unknown number of rows' if rows is None else format_count(rows, 'row')} that "
            f"stream {stream!r} did not write: run `frazil adopt {stream}` to let the stream append to it"
        )


def row_count(metadata: TableMetadata) -> int | None:
    head = head_of(metadata)
    text = "0" if head is None else head.summary.get("total-records") if head.summary else None
    return int(text) if text else None


def other_readers(
    properties: Mapping[str, str], source: SourceIdentity, *, stream: str
) -> dict[str, dict[str, dict[TopicPartition, int]]]:
    """Return the next offsets of the table's other streams that read topics of `source`, by stream and topic."""
    readers = {}
    for name in sorted(properties):
        other = name.removeprefix(PROPERTY_PREFIX)
        if other in (name, stream):
            continue
        marker = try_read_marker(properties, other)
        if marker is None or marker.source.cluster_id != source.cluster_id:
            continue
        same = [t for t, topic_id in source.topic_ids.items() if marker.source.topic_ids.get(t) == topic_id]
        offsets = {topic: keep_topics(marker.offsets, [topic]) for topic in same}
        if read := {topic: by_partition for topic, by_partition in offsets.items() if by_partition}:
            readers[other] = read
    return readers


def forgotten_reader(properties: Mapping[str, str], source: SourceIdentity, *, stream: str) -> str | None:
    """Return the name of a forgotten stream with this stream's name or a topic of `source`, if any."""
    if FORGOTTEN_PREFIX + stream in properties:
        return stream
    for name in sorted(properties):
        if name.startswith(FORGOTTEN_PREFIX):
            topic_ids = _topic_ids(_parse_note(properties[name])).get(source.cluster_id, {})
            if any(topic_ids.get(topic) == topic_id for topic, topic_id in source.topic_ids.items()):
                return name.removeprefix(FORGOTTEN_PREFIX)
    return None


def other_streams(properties: Mapping[str, str], *, stream: str) -> set[str]:
    prefixes = (PROPERTY_PREFIX, FORGOTTEN_PREFIX)
    return {name.removeprefix(p) for name in properties for p in prefixes if name.startswith(p)} - {stream}


def forgotten_property(properties: Mapping[str, str], stream: str) -> dict[str, str]:
    marker = try_read_marker(properties, stream)
    before = _parse_note(properties.get(FORGOTTEN_PREFIX + stream, "{}"))
    cluster_id = marker.source.cluster_id if marker else before.get("cluster-id")
    others = dict(_topic_ids(before))
    known = others.pop(cluster_id, {})
    ends, own = _offsets(before), marker.offsets if marker else {}
    note = {
        "format": FORMAT_VERSION,
        "epoch": max(marker.at.epoch if marker else 0, forgotten_epoch(properties, stream)),
        "cluster-id": cluster_id,
        "topic-ids": {**known, **(marker.source.topic_ids if marker else {})},
        "offsets": nest_by_topic({tp: max(ends.get(tp, 0), own.get(tp, 0)) for tp in ends.keys() | own.keys()}),
        **({"other-clusters": others} if others else {}),
    }
    return {FORGOTTEN_PREFIX + stream: json.dumps(note, separators=(",", ":"))}


def forgotten_epoch(properties: Mapping[str, str], stream: str) -> int:
    return int(_parse_note(properties.get(FORGOTTEN_PREFIX + stream, "{}")).get("epoch", 0))


def forgotten_ends(properties: Mapping[str, str], source: SourceIdentity) -> dict[TopicPartition, int]:
    """Return the offsets that forgotten streams reached in deleted topics with the names of `source`."""
    ends: dict[TopicPartition, int] = {}
    for note in (_parse_note(text) for name, text in properties.items() if name.startswith(FORGOTTEN_PREFIX)):
        read = _topic_ids(note).get(source.cluster_id, {})
        for (topic, partition), end in _offsets(note).items():
            if topic in source.topic_ids and read.get(topic) != source.topic_ids[topic]:
                ends[topic, partition] = max(end, ends.get((topic, partition), 0))
    return ends


def _offsets(note: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return flatten_topics(note.get("offsets", {}))


def _topic_ids(note: Mapping[str, Any]) -> Mapping[str | None, Mapping[str, str]]:
    newest = {note["cluster-id"]: note.get("topic-ids", {})} if note.get("cluster-id") else {}
    return {**note.get("other-clusters", {}), **newest}


def _parse_note(text: str) -> Mapping[str, Any]:
    try:
        raw = json.loads(text)
        return raw if raw["format"] == FORMAT_VERSION else {}
    except (ValueError, KeyError, TypeError):
        return {}


def continued_offsets(
    starts: Mapping[TopicPartition, int], others: Mapping[str, Mapping[str, Mapping[TopicPartition, int]]]
) -> dict[TopicPartition, int]:
    """Return each partition's start offset: the highest in `others`, or else the one in `starts`."""
    read = [offsets for topics in others.values() for offsets in topics.values()]
    return {tp: max((of[tp] for of in read if tp in of), default=start) for tp, start in starts.items()}
