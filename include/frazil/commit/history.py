"""A stream's commits in a branch's history, newest first, and the offsets that the table has reached. Late rows
land in a window after its signal: delayed records, backfills, repeated reads, or rows of other streams and engines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from frazil.clock import epoch_ms
from frazil.commit.journal import Journal, JournalStore
from frazil.commit.snapshot import MAX_SUMMARY_CHARACTERS
from frazil.errors import RolledBack
from frazil.offsets.spans import SourceIdentity, TopicPartition
from frazil.partitions.completeness import Cursor
from frazil.partitions.window_rows import count_added_rows
from frazil.partitions.windows import Grain
from frazil.table.branches import MAIN, head_of, snapshot_summary, summary_value

HOUR_MS = 3_600_000
COMPACTION_OPERATION = "compaction"
"""Value of `frazil.operation` in the summaries of snapshots of a compaction by frazil."""
FOLD_OPERATION = "fold"
"""Value of `frazil.operation` in the summaries of snapshots in which a writer replaced small files."""
SUMMARY_ONLY_KEYS = ("frazil.lost", "frazil.backfill-stream")
"""Keys of skipped ranges and published backfills. Snapshots with these keys have no commit record."""

RECORD_OUTCOMES = (
    *("inserted", "updated", "deleted", "stale", "superseded", "unchanged", "repeated", "other-events"),
    "dropped",
)
"""Possible outcomes of a record: a merge's result, a dropped repeat, or an event that changes no row."""
WINDOWS_KEY = "frazil.windows"


def ancestors(metadata: TableMetadata, branch: str = MAIN) -> Iterator[Snapshot]:
    """Yield the branch's snapshots that have not expired, newest first."""
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    current = head_of(metadata, branch)
    while current is not None:
        yield current
        current = snapshots.get(current.parent_snapshot_id) if current.parent_snapshot_id else None


def commits_after(metadata: TableMetadata, sequence_number: int) -> Iterator[Snapshot]:
    """Yield main's snapshots with higher sequence numbers, newest first."""
    return takewhile(lambda snapshot: (snapshot.sequence_number or 0) > sequence_number, ancestors(metadata))


def count_ancestors(metadata: TableMetadata) -> int:
    return sum(1 for _ in ancestors(metadata))


def ancestors_and_older_snapshots(metadata: TableMetadata) -> Iterator[Snapshot]:
    oldest = 0
    for snapshot in ancestors(metadata):
        oldest = snapshot.sequence_number or 0
        yield snapshot
    older = [s for s in metadata.snapshots if (s.sequence_number or 0) < oldest]
    yield from sorted(older, key=lambda s: s.sequence_number or 0, reverse=True)


def commit_records(metadata: TableMetadata, stream: str) -> Iterator[tuple[Snapshot, str]]:
    """Yield a stream's batches in main, newest first: the snapshot, and the path of its commit record."""
    for snapshot in ancestors(metadata):
        record = summary_value(snapshot, "frazil.commit-record")
        if record and summary_value(snapshot, "frazil.stream") == stream:
            yield snapshot, record


def last_commit_ms(metadata: TableMetadata, stream: str) -> int | None:
    return next((snapshot.timestamp_ms for snapshot, _ in commit_records(metadata, stream)), None)


def last_epoch(metadata: TableMetadata, stream: str) -> int | None:
    newest, _ = next(commit_records(metadata, stream), (None, ""))
    epoch = summary_value(newest, "frazil.epoch")
    return int(epoch) if epoch and epoch.isdecimal() else None


def last_reset_ms(metadata: TableMetadata, stream: str) -> int | None:
    """Return the time of the stream's last reset or adoption; None if a writer has taken over since."""
    for snapshot in ancestors(metadata):
        if summary_value(snapshot, "frazil.stream") == stream:
            is_reset = summary_value(snapshot, "frazil.operation") in {"reset", "adopt"}
            return snapshot.timestamp_ms if is_reset else None
    return None


def reset_times(metadata: TableMetadata, stream: str) -> dict[int, int]:
    """Return the time (ms) of each reset in main by its epoch, newest first. Omits expired snapshots."""
    return {
        parse_number(summary_value(snapshot, "frazil.epoch")): snapshot.timestamp_ms
        for snapshot in ancestors(metadata)
        if summary_value(snapshot, "frazil.operation") == "reset" and summary_value(snapshot, "frazil.stream") == stream
    }


def skipped_ranges(metadata: TableMetadata, stream: str) -> Iterator[tuple[Snapshot, str]]:
    """Yield snapshots that lost offsets with `on-gap: skip`, newest first, each with a message about these offsets."""
    for snapshot in ancestors_and_older_snapshots(metadata):
        lost = summary_value(snapshot, "frazil.lost")
        if lost and summary_value(snapshot, "frazil.stream") == stream:
            yield snapshot, lost


def table_position(metadata: TableMetadata, journals: JournalStore, *, stream: str, table: str) -> Journal | None:
    """Return the commit record of the stream's newest batch on main, if any. Raises `RolledBack`."""
    for snapshot, path in commit_records(metadata, stream):
        record = journals.read(path)
        if record is None:
            raise RolledBack(
                f"the commit record {path} of the newest batch of stream {stream!r} in table {table} (snapshot "
                f"{snapshot.snapshot_id}) is missing or unreadable, so the table's position is unknown. Choose a "
                f"position with `frazil reset {stream} --to offsets`"
            )
        return record
    oldest = next(reversed(list(ancestors(metadata))), None)
    # The first snapshot of a table has sequence number 1. Its parent proves nothing: PyIceberg's expiry clears it.
    if oldest is not None and (oldest.parent_snapshot_id is not None or (oldest.sequence_number or 0) > 1):
        raise RolledBack(
            f"table {table} has no batch of stream {stream!r} since snapshot {oldest.snapshot_id}, and its earlier "
            f"history has expired, so the table's position is unknown. Choose a position with "
            f"`frazil reset {stream} --to offsets`"
        )
    return None


def first_offsets(
    metadata: TableMetadata, journals: JournalStore
) -> tuple[dict[TopicPartition, int], SourceIdentity | None]:
    """Return each partition's first committed offset, and the stream's source. Reads all commit records."""
    first: dict[TopicPartition, int] = {}
    source: SourceIdentity | None = None
    for record in journals.records(table_uuid=metadata.table_uuid):
        source = source or record.source
        for p in record.progress:
            first.setdefault(p.topic_partition, p.start)
    return first, source


def published_snapshots(metadata: TableMetadata, stream: str) -> Iterator[Snapshot]:
    """Yield the commits of the stream's replays and backfills in main, newest first."""
    for snapshot in ancestors(metadata):
        of_stream = summary_value(snapshot, "frazil.backfill-stream") == stream
        if of_stream and summary_value(snapshot, "frazil.records") is not None:
            yield snapshot


def rejecting_commits(snapshots: Iterable[Snapshot], stream: str) -> Iterator[Snapshot]:
    """Yield the commits of a stream's batches and backfills. Omits replays, which reject nothing."""
    for snapshot in snapshots:
        summary = snapshot_summary(snapshot)
        is_own = stream in {summary.get("frazil.stream"), summary.get("frazil.backfill-stream")}
        if is_own and summary.get("frazil.commit-record") and not is_replay(snapshot, stream):
            yield snapshot


def is_replay(snapshot: Snapshot, stream: str) -> bool:
    """Return whether this is the commit of a stream's replay. A plain backfill is not a replay."""
    of_stream = summary_value(snapshot, "frazil.backfill-stream") == stream
    return of_stream and summary_value(snapshot, "frazil.operation") == "replay"


def deleted_by_others(metadata: TableMetadata, stream: str) -> int | None:
    """Return the number of main's rows that other streams' merges deleted; None if part of main's history expired."""
    deleted = sequence_number = 0
    for snapshot in ancestors(metadata):
        summary, sequence_number = snapshot.summary, snapshot.sequence_number or 0
        if summary and stream not in {summary.get("frazil.stream"), summary.get("frazil.backfill-stream")}:
            deleted += merge_counts(summary).get("deleted", 0)
    return deleted if sequence_number <= 1 else None


def is_fold(snapshot: Snapshot) -> bool:
    return summary_value(snapshot, "frazil.operation") == FOLD_OPERATION


def is_replace(snapshot: Snapshot) -> bool:
    """Return whether a snapshot only moved its parent's rows to other files or manifests. Excludes folds by writers."""
    is_operation = snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE
    return is_operation and not is_fold(snapshot)


def is_compaction(snapshot: Snapshot) -> bool:
    """Return whether data files were rewritten. A compaction's last commit may only drop delete files."""
    changed = any(parse_number(summary_value(snapshot, f"{change}-data-files")) for change in ("added", "deleted"))
    is_own = summary_value(snapshot, "frazil.operation") == COMPACTION_OPERATION
    return is_replace(snapshot) and (changed or is_own)


def parse_number(text: str | None) -> int:
    """Parse a number in a snapshot summary. Returns 0 for an invalid value."""
    return int(text) if text and text.isdecimal() else 0


def merge_counts(summary: Summary | Mapping[str, str] | None) -> dict[str, int]:
    """Return a merge's counts by outcome, from a snapshot's summary; empty for other programs' snapshots."""
    counts = ((name, (summary.get(f"frazil.{name}") if summary else None) or "") for name in RECORD_OUTCOMES)
    return {name: int(text) for name, text in counts if text.isdecimal()}


@dataclass(frozen=True, slots=True)
class Period:
    """A time range `[from_ms, to_ms)` of commits, in ms since 1970. Raises ValueError if it is empty."""

    from_ms: int
    to_ms: int

    def __post_init__(self) -> None:
        if self.to_ms <= self.from_ms:
            raise ValueError("the period ends before it begins")

    def __contains__(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms < self.to_ms


def period_between(begin: datetime, end: datetime) -> Period:
    return Period(epoch_ms(begin), epoch_ms(end))


def last_period(length: timedelta, now: datetime) -> Period:
    return Period(epoch_ms(now - length), epoch_ms(now) + 1)


def complete_hours(moment: datetime, hours: int = 1) -> Period:
    """Return the last `hours` full UTC clock hours that ended at or before `moment`."""
    end_ms = epoch_ms(moment) // HOUR_MS * HOUR_MS
    return Period(end_ms - hours * HOUR_MS, end_ms)


def windows_summary(windows: Mapping[int, int] | None) -> dict[str, str]:
    """Return the summary entry with a commit's rows by window; empty if unknown or too long."""
    if windows is None:
        return {}
    text = json.dumps(dict(sorted(windows.items())), separators=(",", ":"))
    return {WINDOWS_KEY: text} if len(text) <= MAX_SUMMARY_CHARACTERS else {}


def late_rows(table: Table, cursor: Cursor | None, *, column: str, grain: Grain) -> dict[int, int]:
    """Return the number of late rows since the cursor, by window start (us).

    Late rows are rows that commits after the cursor added to signalled windows.
    """
    late: Counter[int] = Counter()
    if cursor is None or cursor.grain is not grain:
        return {}
    for snapshot in commits_after(table.metadata, cursor.sequence_number):
        if may_add_late_rows(snapshot, cursor):
            rows = _rows_in_summary(snapshot)
            late.update(count_added_rows(table, snapshot, cursor, column=column) if rows is None else rows)
    return {start: count for start, count in late.items() if cursor.from_us <= start < cursor.through_us and count}


def may_add_late_rows(snapshot: Snapshot, cursor: Cursor) -> bool:
    """Return whether a commit may have added rows to signalled windows, according to its summary."""
    rows = _rows_in_summary(snapshot)
    if rows is not None:
        return any(cursor.from_us <= start < cursor.through_us for start in rows)
    summary = snapshot.summary
    if not summary or not int(summary.get("added-records") or 0):
        return False
    # A compaction adds no new rows. A frazil merge does, and may have changed too many windows to list in its summary.
    # Its files contain rows of all these windows, and perhaps of others.
    return summary.operation is Operation.APPEND or summary.get("frazil.inserted") is not None


def _rows_in_summary(snapshot: Snapshot) -> dict[int, int] | None:
    text = summary_value(snapshot, WINDOWS_KEY)
    return None if text is None else {int(start): rows for start, rows in json.loads(text).items()}
