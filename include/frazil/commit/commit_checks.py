"""The rules that each commit attempt checks against the table's metadata: fence, ancestry, continuity, and whether the
staged files fit the table. Each rule is a pure function that returns a result or raises the error for the writer.
Also checks whether a stream may write to a table with rows of other writers or streams. `frazil forget` leaves the
property `frazil.forgotten.<name>`: the stream's topics, their offsets, and its last epoch, which is never used again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id, index_by_name
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.history import ancestors, parse_number
from frazil.commit.journal import NO_DEAD_LETTERS, Journal
from frazil.commit.marker import (
    PROPERTY_PREFIX,
    BatchOutcome,
    Marker,
    flatten_topics,
    keep_topics,
    nest_by_topic,
    open_branch_name,
    try_read_marker,
)
from frazil.errors import AdoptionRequired, Fenced, RolledBack, TopicRecreated
from frazil.ingest.contract import StagedFile
from frazil.offsets.spans import Offsets, SourceIdentity, TopicPartition
from frazil.spec.units import format_count
from frazil.table.branches import MAIN, head_of, summary_value

FORGOTTEN_PREFIX = "frazil.forgotten."
FORMAT_VERSION = 1


class CommitDecision(Enum):
    COMMIT = "the batch starts at the marker's offsets"
    COMMITTED = "the batch is already in the table"
    STALE = "the batch does not start at the marker's offsets"


def check_fence(marker: Marker | None, *, stream: str, epoch: int) -> Marker:
    """Return the marker if it has the writer's epoch. Raises Fenced otherwise."""
    if marker is None:
        raise Fenced(
            f"stream {stream!r} was forgotten while its writer (epoch {epoch}) was running",
            remedy="Start the stream again if it should run",
        )
    if marker.key.epoch != epoch:
        raise Fenced(
            f"the writer of stream {stream!r} with epoch {epoch} was replaced by epoch {marker.key.epoch}, which a "
            "reset or another writer began",
            remedy=f"If no other writer runs (`frazil status {stream}`), start one: `frazil resume {stream}`",
        )
    return marker


def check_ancestry(metadata: TableMetadata, marker: Marker, *, table: str) -> None:
    """Raise RolledBack if the table was rolled back or replaced after the marker's snapshot.

    After a rollback, main's history reaches back to the marker's sequence number, but does not have the marker's
    snapshot. After a replacement, the oldest snapshot in main's history replaced the whole table. In all other cases,
    the marker's snapshot has only expired.
    """
    current = head_of(metadata)
    if current is not None and current.snapshot_id == marker.snapshot_id:
        return  # the usual case, without a look at each snapshot
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    while current is not None:
        if current.snapshot_id == marker.snapshot_id:
            return
        if (current.sequence_number or 0) <= marker.sequence_number:
            break
        if current.parent_snapshot_id is None or current.parent_snapshot_id not in snapshots:
            if _replaces_all(current, metadata, marker):
                break
            return
        current = snapshots[current.parent_snapshot_id]
    raise RolledBack(
        f"table {table} was replaced, or rolled back to before the last commit of stream {marker.stream!r}: snapshot "
        f"{marker.snapshot_id} (sequence number {marker.sequence_number}) is no longer in branch {MAIN!r}. "
        f"`frazil reset {marker.stream} --to table` reads the removed records again; "
        f"`frazil reset {marker.stream} --to marker` accepts the loss"
    )


def _replaces_all(first: Snapshot, metadata: TableMetadata, marker: Marker) -> bool:
    """Return whether a snapshot without parent replaced a table that had files (`CREATE OR REPLACE TABLE`)."""
    if first.parent_snapshot_id is not None:
        return False
    previous = _previous_main_snapshot(first, metadata, marker)
    names = [f"{change}-data-files" for change in ("total", "added", "deleted")]
    files, added, deleted = (parse_number(summary_value(first, name)) for name in names)
    return parse_number(summary_value(previous, names[0])) > 0 and files == added and not deleted


def _previous_main_snapshot(first: Snapshot, metadata: TableMetadata, marker: Marker) -> Snapshot | None:
    """Return main's snapshot before `first`; None if it may have expired."""
    # Java's Iceberg clears main's log when it replaces a table; snapshots of no other branch then count as main's.
    by_number = {snapshot.sequence_number: snapshot for snapshot in metadata.snapshots}
    of_main = {marker.snapshot_id, *(entry.snapshot_id for entry in metadata.snapshot_log)}
    branches = [name for name, ref in metadata.refs.items() if name != MAIN and ref.snapshot_ref_type == "branch"]
    of_branches = {snapshot.snapshot_id for name in branches for snapshot in ancestors(metadata, name)}
    number = first.sequence_number or 0
    while (previous := by_number.get(number := number - 1)) is not None:
        if previous.snapshot_id in of_main or previous.snapshot_id not in of_branches:
            return previous
    return None


def check_open_branch(metadata: TableMetadata, marker: Marker, *, table: str) -> None:
    """Raise RolledBack unless the marker names the head of the open branch."""
    name = open_branch_name(marker.stream)
    ref = metadata.refs.get(name)
    head_id = ref.snapshot_id if ref else None
    if head_id != marker.open_snapshot_id:
        raise RolledBack(
            f"branch {name!r} of table {table}, which stores rows of open windows of stream {marker.stream!r}, should "
            f"be at snapshot {marker.open_snapshot_id}, but is at {head_id}: another engine or user moved or dropped "
            f"it. `frazil reset {marker.stream} --to marker` restores the branch if that snapshot still exists; "
            "otherwise the stream continues without these rows. To read the rows again, reset to a position before "
            "them (`--to offsets` or `--to timestamp`)"
        )


def check_same_source(stored: SourceIdentity, current: SourceIdentity, *, stream: str) -> None:
    """Raise TopicRecreated if the cluster or a topic's id has changed. Topics missing from `stored` are new."""
    if stored.cluster_id != current.cluster_id:
        raise TopicRecreated(
            f"stream {stream!r} has offsets of Kafka cluster {stored.cluster_id}, but source.bootstrap-servers now "
            f"leads to cluster {current.cluster_id}, where these offsets are not valid. Restore the address, or run "
            f"`frazil reset {stream} --to marker` to read the new cluster's topics from their beginning"
        )
    for topic, topic_id in stored.topic_ids.items():
        current_id = current.topic_ids.get(topic, topic_id)
        if current_id != topic_id:
            raise TopicRecreated(
                f"topic {topic!r} of stream {stream!r} was deleted and recreated (id {topic_id} became "
                f"{current_id}), so the marker's offsets belong to the old topic. "
                f"Run `frazil reset {stream} --to marker` to read the new topic from its beginning; other topics "
                "continue at their positions"
            )


def classify_batch(marker: Marker, journal: Journal) -> CommitDecision:
    """Return whether a batch continues at the marker's offsets. New partitions begin at any offset."""
    if marker.settled == journal.key:
        return CommitDecision.COMMITTED
    if not journal.progress:
        return CommitDecision.COMMIT
    offsets = marker.offsets
    if all(p.start == offsets.get(p.topic_partition, p.start) for p in journal.progress):
        return CommitDecision.COMMIT
    if all(p.end <= offsets.get(p.topic_partition, -1) for p in journal.progress):
        return CommitDecision.COMMITTED
    return CommitDecision.STALE


def classify_dead_letters(marker: Marker, journal: Journal) -> CommitDecision:
    """Return whether a batch's dead letters can be committed: not if other dead letters were added after staging."""
    if marker.outcome_of(journal.key) is BatchOutcome.COMMITTED:
        return CommitDecision.COMMITTED
    unchanged = journal.newest_dead_letters == (marker.settled or NO_DEAD_LETTERS)
    return CommitDecision.COMMIT if unchanged else CommitDecision.STALE


def files_fit(metadata: TableMetadata, files: Iterable[StagedFile]) -> bool:
    """Return whether staged files still fit the changed table. The table must still have each file's spec and schema.
    The files' schema must require all columns that the table now requires. No column may have been dropped and added
    again: the new column would be null.
    """
    specs: dict[int, PartitionSpec] = metadata.specs()
    schemas: dict[int, Schema] = {s.schema_id: s for s in metadata.schemas}
    current = metadata.schema()
    pairs = {(f.spec_id, f.schema_id) for f in files}
    is_known = all(spec_id in specs and schema_id in schemas for spec_id, schema_id in pairs)
    return is_known and all(
        _schema_fits(schemas[schema_id], current) for _, schema_id in pairs if schema_id != current.schema_id
    )


def _schema_fits(written: Schema, current: Schema) -> bool:
    written_fields, current_ids = index_by_id(written), index_by_name(current)
    remaining_ids = set(current_ids.values())
    if any(name in current_ids and field_id not in remaining_ids for name, field_id in index_by_name(written).items()):
        return False
    required = (field.field_id for field in current.fields if field.required)
    return all(field_id in written_fields and written_fields[field_id].required for field_id in required)


def check_adopted(metadata: TableMetadata, *, stream: str, table: str, source: SourceIdentity) -> None:
    """Raise AdoptionRequired if others have written to the table, and no operator has run `frazil adopt`."""
    if readers := other_readers(metadata.properties, source, stream=stream):
        other, topics = next(iter(readers.items()))
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
    text = "0" if head is None else summary_value(head, "total-records")
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
    other_clusters = dict(_topic_ids(before))
    topic_ids = other_clusters.pop(cluster_id, {})
    ends, reached = _offsets(before), marker.offsets if marker else {}
    note = {
        "format": FORMAT_VERSION,
        "epoch": max(marker.key.epoch if marker else 0, forgotten_epoch(properties, stream)),
        "cluster-id": cluster_id,
        "topic-ids": {**topic_ids, **(marker.source.topic_ids if marker else {})},
        "offsets": nest_by_topic({tp: max(ends.get(tp, 0), reached.get(tp, 0)) for tp in ends.keys() | reached.keys()}),
        **({"other-clusters": other_clusters} if other_clusters else {}),
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


def continued_offsets(starts: Offsets, readers: Mapping[str, Mapping[str, Offsets]]) -> dict[TopicPartition, int]:
    """Return each partition's start offset: the highest offset in `readers`, or else the offset in `starts`."""
    read = [offsets for topics in readers.values() for offsets in topics.values()]
    return {tp: max((ends[tp] for ends in read if tp in ends), default=start) for tp, start in starts.items()}
