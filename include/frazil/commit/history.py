"""Reads a stream's commits from a branch's history, newest first, and the table's position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, Summary

from frazil.commit.journal import Journal, JournalStore
from frazil.errors import RolledBack
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import TopicPartition
from frazil.table.branches import MAIN, head_of

ONLY_IN_SUMMARY = ("frazil.lost", "frazil.backfill-stream")
"""Summary keys for skipped ranges and published backfills, whose time no record has."""

CHANGES = ("inserted", "updated", "deleted", "stale", "superseded", "unchanged", "repeated", "other-events")
"""Outcomes of a record that is merged, dropped as a repeat, or an event without a row."""


def ancestors(metadata: TableMetadata, branch: str = MAIN) -> Iterator[Snapshot]:
    """Yield the branch's snapshots, newest first, as far as its history has not expired."""
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    current = head_of(metadata, branch)
    while current is not None:
        yield current
        current = snapshots.get(current.parent_snapshot_id) if current.parent_snapshot_id else None


def ancestors_and_kept(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield main's snapshots, newest first, then the single older ones that expiry kept."""
    oldest = 0
    for snapshot in ancestors(metadata):
        oldest = snapshot.sequence_number or 0
        yield snapshot
    kept = [s for s in metadata.snapshots if (s.sequence_number or 0) < oldest]
    yield from sorted(kept, key=lambda s: s.sequence_number or 0, reverse=True)


def commit_records(metadata: TableMetadata, stream: str) -> Iterator[tuple[Snapshot, str]]:
    """Yield a stream's batches in the branch, newest first, each with the path of its commit record.

    Take-overs and resets have none, because they bring no rows.
    """
    for snapshot in ancestors(metadata):
        summary = snapshot.summary
        record = summary.get("frazil.commit-record") if summary else None
        if summary and record and summary.get("frazil.stream") == stream:
            yield snapshot, record


def last_commit_ms(metadata: TableMetadata, stream: str) -> int | None:
    """Return when the stream's newest batch was committed; None if the branch's history does not have it."""
    return next((snapshot.timestamp_ms for snapshot, _ in commit_records(metadata, stream)), None)


def last_epoch(metadata: TableMetadata, stream: str) -> int | None:
    """Return the epoch of the stream's newest batch; None if the branch's history does not have it."""
    newest = next((snapshot.summary for snapshot, _ in commit_records(metadata, stream)), None)
    epoch = newest.get("frazil.epoch") if newest else None
    return int(epoch) if epoch and epoch.isdecimal() else None


def skipped_ranges(metadata: TableMetadata, stream: str) -> Iterator[tuple[Snapshot, str]]:
    """Yield the ranges that a stream with `on-gap: skip` lost to retention, newest first, with their snapshots."""
    for snapshot in ancestors_and_kept(metadata):
        summary = snapshot.summary
        lost = summary.get("frazil.lost") if summary else None
        if summary and lost and summary.get("frazil.stream") == stream:
            yield snapshot, lost


def table_position(metadata: TableMetadata, journals: JournalStore, *, stream: str, table: str) -> Journal | None:
    """Return the commit record of the branch's newest batch, whose `offsets_after` is the table's position.

    None if the branch provably has no batch of the stream. Raises `RolledBack` if that is unknown, because the older
    history has expired or the record is missing.
    """
    for snapshot, path in commit_records(metadata, stream):
        record = journals.read(path)
        if record is None:
            raise RolledBack(
                f"the newest batch of stream {stream!r} in table {table} is snapshot {snapshot.snapshot_id}, and its "
                f"commit record {path} is missing or unreadable: where the table stands is unknown. Choose a position "
                f"with `frazil reset {stream} --to offsets`"
            )
        return record
    oldest = next(reversed(list(ancestors(metadata))), None)
    # The first snapshot of a table has sequence number 1. Its parent proves nothing: PyIceberg's expiry clears it.
    if oldest is not None and (oldest.parent_snapshot_id is not None or (oldest.sequence_number or 0) > 1):
        raise RolledBack(
            f"table {table} holds no batch of stream {stream!r} since snapshot {oldest.snapshot_id}, and its history "
            f"before that was expired: where the table stands is unknown. Choose a position with "
            f"`frazil reset {stream} --to offsets`"
        )
    return None


def first_offsets(journals: JournalStore) -> tuple[dict[TopicPartition, int], SourceIdentity | None]:
    """Return the first offset of each topic-partition, from its oldest commit record, and the source it belongs to.

    Reads every record.
    """
    first: dict[TopicPartition, int] = {}
    source: SourceIdentity | None = None
    for record in journals.records():
        source = source or record.source
        for p in record.progress:
            first.setdefault(p.topic_partition, p.start)
    return first, source


def last_replay(metadata: TableMetadata, stream: str) -> Snapshot | None:
    """Return the newest merge of an upsert stream's dead letters; None if the branch's history has none."""
    return next(
        (
            snapshot
            for snapshot in ancestors(metadata)
            if (summary := snapshot.summary) and summary.get("frazil.backfill-stream") == stream and changes_of(summary)
        ),
        None,
    )


def changes_of(summary: Summary | Mapping[str, str] | None) -> dict[str, int]:
    """Return a merge's counts from a snapshot's summary, which other programs may have written."""
    counts = ((name, (summary.get(f"frazil.{name}") if summary else None) or "") for name in CHANGES)
    return {name: int(text) for name, text in counts if text.isdecimal()}
