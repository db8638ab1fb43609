"""The rules that each commit attempt checks against the table's metadata: fence, ancestry, continuity, and whether the
staged files fit the table. Each rule is a pure function that returns a result or raises the error for the writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id, index_by_name
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.history import ancestors, parse_number
from frazil.commit.journal import NO_DEAD_LETTERS, Journal
from frazil.commit.marker import BatchOutcome, Marker, open_branch_name
from frazil.errors import Fenced, RolledBack, TopicRecreated
from frazil.ingest.contract import StagedFile
from frazil.kafka.identity import SourceIdentity
from frazil.table.branches import MAIN, head_of


class CommitDecision(Enum):
    COMMIT = "the batch starts at the marker's offsets"
    COMMITTED = "the batch is already in the table"
    STALE = "the batch does not start at the marker's offsets"


def check_fence(marker: Marker | None, *, stream: str, epoch: int) -> Marker:
    """Return the marker if it has the writer's epoch. Raises Fenced otherwise."""
    if marker is None:
        raise Fenced(
            f"stream {stream!r} was forgotten while its writer (epoch {epoch}) was running; start the stream again if "
            "it should run"
        )
    if marker.at.epoch != epoch:
        raise Fenced(
            f"the writer of stream {stream!r} with epoch {epoch} was replaced by epoch {marker.at.epoch}, which a "
            f"reset or another writer began; see `frazil status {stream}`"
        )
    return marker


def check_ancestry(metadata: TableMetadata, marker: Marker, *, table: str) -> None:
    """Raise RolledBack if the table was rolled back or replaced after the marker's snapshot.

    Rolled back: main's history reaches back to the marker's sequence number without its snapshot. Replaced: the oldest
    snapshot in main's history replaced the whole table. Otherwise, the marker's snapshot has only expired.
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
    before = _previous_main_snapshot(first, metadata, marker)
    files, added, deleted = (_summary_count(first, f"{what}-data-files") for what in ("total", "added", "deleted"))
    return before is not None and _summary_count(before, "total-data-files") > 0 and files == added and not deleted


def _previous_main_snapshot(first: Snapshot, metadata: TableMetadata, marker: Marker) -> Snapshot | None:
    """Return main's snapshot before `first`; None if it may have expired."""
    # Java's Iceberg clears main's log when it replaces a table; snapshots of no other branch then count as main's.
    kept = {snapshot.sequence_number: snapshot for snapshot in metadata.snapshots}
    of_main = {marker.snapshot_id, *(entry.snapshot_id for entry in metadata.snapshot_log)}
    branches = [name for name, ref in metadata.refs.items() if name != MAIN and ref.snapshot_ref_type == "branch"]
    of_branches = {snapshot.snapshot_id for name in branches for snapshot in ancestors(metadata, name)}
    number = first.sequence_number or 0
    while (before := kept.get(number := number - 1)) is not None:
        if before.snapshot_id in of_main or before.snapshot_id not in of_branches:
            return before
    return None


def _summary_count(snapshot: Snapshot, key: str) -> int:
    return parse_number(snapshot.summary.get(key) if snapshot.summary else None)


def check_open_branch(metadata: TableMetadata, marker: Marker, *, table: str) -> None:
    """Raise RolledBack unless the marker names the head of the open branch."""
    name = open_branch_name(marker.stream)
    ref = metadata.refs.get(name)
    found = ref.snapshot_id if ref else None
    if found != marker.open_snapshot_id:
        raise RolledBack(
            f"branch {name!r} of table {table}, which stores rows of open windows of stream {marker.stream!r}, should "
            f"be at snapshot {marker.open_snapshot_id}, but is at {found}: another engine or user moved or dropped it. "
            f"`frazil reset {marker.stream} --to marker` restores the branch if that snapshot still exists; otherwise "
            "the stream continues without these rows. To read the rows again, reset to a position before them "
            "(`--to offsets` or `--to timestamp`)"
        )


def check_same_source(known: SourceIdentity, current: SourceIdentity, *, stream: str) -> None:
    """Raise TopicRecreated if the cluster or a topic's id has changed. Topics missing from `known` are new."""
    if known.cluster_id != current.cluster_id:
        raise TopicRecreated(
            f"stream {stream!r} has offsets of Kafka cluster {known.cluster_id}, but source.bootstrap-servers now "
            f"leads to cluster {current.cluster_id}, where these offsets are not valid. Restore the address, or run "
            f"`frazil reset {stream} --to marker` to read the new cluster's topics from their beginning"
        )
    for topic, topic_id in known.topic_ids.items():
        now = current.topic_ids.get(topic, topic_id)
        if now != topic_id:
            raise TopicRecreated(
                f"topic {topic!r} of stream {stream!r} was deleted and recreated (id {topic_id} became {now}), so the "
                f"marker's offsets belong to the old topic. Run `frazil reset {stream} --to marker` to read the new "
                "topic from its beginning; other topics continue at their positions"
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
    """Return whether a batch's dead letters can be committed: not if others were added after staging."""
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
    return all(
        spec_id in specs and schema_id in schemas and _schema_fits(schemas[schema_id], current)
        for spec_id, schema_id in pairs
    )


def _schema_fits(written: Schema, current: Schema) -> bool:
    before, now = index_by_id(written), index_by_name(current)
    left = set(now.values())
    if any(name in now and field_id not in left for name, field_id in index_by_name(written).items()):
        return False
    return all(
        field.field_id in before and before[field.field_id].required for field in current.fields if field.required
    )
