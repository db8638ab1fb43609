"""What the branch still tells of a stream: its commits, newest first, and where the table itself stands."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.journal import Journal, JournalStore
from frazil.errors import RolledBack
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import TopicPartition
from frazil.table.branches import MAIN, head_of

ONLY_TOLD_HERE = ("frazil.lost", "frazil.backfill-stream")
"""Of summaries: ranges that were skipped, and backfills that were published. No record has the time of either."""


def ancestors(metadata: TableMetadata, branch: str = MAIN) -> Iterator[Snapshot]:
    """The branch's snapshots, newest first, as far as its history was not expired."""
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    current = head_of(metadata, branch)
    while current is not None:
        yield current
        current = snapshots.get(current.parent_snapshot_id) if current.parent_snapshot_id else None


def ancestors_and_kept(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Main's snapshots, newest first, and behind the cut of its history the single ones that expiry kept."""
    oldest = 0
    for snapshot in ancestors(metadata):
        oldest = snapshot.sequence_number or 0
        yield snapshot
    kept = [s for s in metadata.snapshots if (s.sequence_number or 0) < oldest]
    yield from sorted(kept, key=lambda s: s.sequence_number or 0, reverse=True)


def commit_records(metadata: TableMetadata, stream: str) -> Iterator[tuple[Snapshot, str]]:
    """A stream's batches in the branch, newest first, each with the path of its commit record.

    Take-overs and resets carry none: they bring no rows.
    """
    for snapshot in ancestors(metadata):
        summary = snapshot.summary
        record = summary.get("frazil.commit-record") if summary else None
        if summary and record and summary.get("frazil.stream") == stream:
            yield snapshot, record


def last_commit_ms(metadata: TableMetadata, stream: str) -> int | None:
    """When the stream's newest batch was committed, as far as the branch's history is kept."""
    return next((snapshot.timestamp_ms for snapshot, _ in commit_records(metadata, stream)), None)


def lost_ranges(metadata: TableMetadata, stream: str) -> Iterator[tuple[Snapshot, str]]:
    """What retention took from a stream that skips gaps, newest first: snapshots, and the ranges that each names."""
    for snapshot in ancestors_and_kept(metadata):
        summary = snapshot.summary
        lost = summary.get("frazil.lost") if summary else None
        if summary and lost and summary.get("frazil.stream") == stream:
            yield snapshot, lost


def table_position(metadata: TableMetadata, journals: JournalStore, *, stream: str, table: str) -> Journal | None:
    """The commit record of the newest batch that the branch holds: `offsets_after` is where the table stands.

    None where the branch provably holds no batch of the stream. Raises `RolledBack` where that cannot be known: the
    history before the oldest snapshot was expired, or the record is gone.
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
    # The first snapshot of a table has sequence number 1; its parent says nothing, since PyIceberg's expiry clears it.
    if oldest is not None and (oldest.parent_snapshot_id is not None or (oldest.sequence_number or 0) > 1):
        raise RolledBack(
            f"table {table} holds no batch of stream {stream!r} since snapshot {oldest.snapshot_id}, and its history "
            f"before that was expired: where the table stands is unknown. Choose a position with "
            f"`frazil reset {stream} --to offsets`"
        )
    return None


def first_offsets(journals: JournalStore) -> tuple[dict[TopicPartition, int], SourceIdentity | None]:
    """Where each topic-partition began, by the oldest commit record that has it, and of which Kafka that is.

    Reads every record.
    """
    first: dict[TopicPartition, int] = {}
    source: SourceIdentity | None = None
    for record in journals.records():
        source = source or record.source
        for p in record.progress:
            first.setdefault(p.topic_partition, p.start)
    return first, source
