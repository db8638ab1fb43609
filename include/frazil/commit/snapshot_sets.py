"""Finds a consistent set of snapshots (a cut): one snapshot for each table of one or more streams.

Within a stream, the cut ends before the first batch that a routed table is missing. Batches in one snapshot stay
together. With several streams, the cut ends at the newest watermark that all streams have reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate

from frazil.commit.commit_checks import check_ancestry
from frazil.commit.compare_and_swap import Change, Done, RetryPolicy, TableHandle, swap
from frazil.commit.followers import FIRST_RECORD, check_routed_not_rolled_back
from frazil.commit.history import ancestors
from frazil.commit.journal import parse_key
from frazil.commit.marker import BatchKey, read_marker
from frazil.commit.snapshot import FOREVER_MS
from frazil.errors import FrazilError
from frazil.table.branches import summary_value
from frazil.timetext import format_utc

TAG_PREFIX = "frazil-cut-"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamTableNames:
    stream: str
    main: str
    dead_letters: str
    routed: tuple[str, ...] = ()
    missing_since: BatchKey | None = None
    """The first batch that a routed table was missing when the tables were loaded, if any."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    table: str
    holds: Literal["rows", "dead letters"]
    streams: tuple[str, ...]
    snapshot_id: int | None
    """The table's snapshot, if one existed at that time."""
    committed_at_ms: int | None
    batches: Mapping[str, str]
    """The last batch ("epoch-batch") of each stream, from the part of the snapshot's history that still exists."""
    watermarks_ms: Mapping[str, int]
    metadata_location: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotSet:
    watermark_ms: int | None
    """The watermark at which the cut ends; None for a single stream."""
    tables: tuple[TableSnapshot, ...]


@dataclass(frozen=True, slots=True)
class _MainHistory:
    table: str
    metadata: TableMetadata
    snapshots: Sequence[Snapshot]

    def commits(self, stream: str, begin: int = 0, end: int | None = None) -> Iterable[tuple[int, Snapshot]]:
        """Yield the stream's commits, each with its index in `snapshots`."""
        for index, snapshot in list(enumerate(self.snapshots))[begin:end]:
            if summary_value(snapshot, "frazil.stream") == stream:
                yield index, snapshot

    def newest(self, stream: str, begin: int, read: Callable[[Snapshot], T | None]) -> T | None:
        """Call `read` on the stream's commits, newest first, and return the first result that is not None."""
        return next((value for _, s in self.commits(stream, begin) if (value := read(s)) is not None), None)

    def index_at(self, at_ms: int | None) -> int:
        indexes = (i for i, s in enumerate(self.snapshots) if at_ms is None or s.timestamp_ms <= at_ms)
        return self.require_unexpired(next(indexes, len(self.snapshots)))

    def index_before(self, stream: str, begin: int, excluded: Callable[[Snapshot], bool]) -> int:
        """Return the index of the newest snapshot, from `begin` on, without a commit of `excluded` in its history."""
        return self.require_unexpired(max([begin, *(p + 1 for p, s in self.commits(stream, begin) if excluded(s))]))

    def require_unexpired(self, index: int) -> int:
        """Return `index`. Raises FrazilError if its snapshot expired. `len(snapshots)` stands for the empty table."""
        if index < len(self.snapshots) or not self.snapshots or (self.snapshots[-1].sequence_number or 0) <= 1:
            return index
        oldest = self.snapshots[-1]
        raise FrazilError(
            f"the history of table {self.table} before {format_utc(oldest.timestamp_ms)} has expired (its oldest "
            f"snapshot is {oldest.snapshot_id}), so the table's snapshot for this cut is unknown. Choose a later time, "
            "keep snapshots for longer (`maintenance.expiry`), or tag cuts when you make them (`frazil cut --tag`)"
        )


def find_snapshot_set(
    streams: Sequence[StreamTableNames], tables: Mapping[str, Table], *, at_ms: int | None = None
) -> SnapshotSet:
    """Return the newest cut up to `at_ms`. Raises FrazilError if no cut is known, and RolledBack for lost commits."""
    for stream in streams:
        for name in (stream.main, stream.dead_letters, *stream.routed):
            if marker := read_marker(tables[name].metadata.properties, stream.stream):
                check = check_routed_not_rolled_back if name in stream.routed else check_ancestry
                check(tables[name].metadata, marker, table=name)
    histories = {name: _MainHistory(name, t.metadata, tuple(ancestors(t.metadata))) for name, t in tables.items()}
    indexes = {stream.main: histories[stream.main].index_at(at_ms) for stream in streams}
    watermark_ms = None
    if len(streams) > 1:
        watermark_ms = min(_require_watermark(histories[s.main], s.stream, indexes[s.main]) for s in streams)
        is_past = partial(_is_past_watermark, watermark_ms)
        for stream in streams:
            indexes[stream.main] = histories[stream.main].index_before(stream.stream, indexes[stream.main], is_past)
    followers: dict[str, int] = {}
    for stream in streams:
        indexes[stream.main], is_left_out = _choose_snapshots(stream, histories, indexes[stream.main])
        for name in (stream.dead_letters, *stream.routed):
            followers[name] = max(_follower_index(histories[name], is_left_out, at_ms), followers.get(name, 0))
    dead_letters = {stream.dead_letters for stream in streams}
    rows = indexes | {name: index for name, index in followers.items() if name not in dead_letters}
    members = [
        _table_snapshot(
            streams, histories[name], index, "dead letters" if name in dead_letters else "rows", tables[name]
        )
        for name, index in (rows | followers).items()
    ]
    return SnapshotSet(watermark_ms, tuple(members))


def _first_excluded_batch(
    stream: StreamTableNames, histories: Mapping[str, _MainHistory], main: int
) -> BatchKey | None:
    """Return the first batch after the cut; None if the stream has never committed a batch."""
    history = histories[stream.main]
    later = [key for _, s in history.commits(stream.stream, 0, main) if (key := _batch_of(s))]
    marker = read_marker(history.metadata.properties, stream.stream)
    settled = marker.settled if marker else None
    if not later and settled is None:
        return None
    next_batch = min([*later, *([BatchKey(settled.epoch, settled.batch + 1)] if settled else [])])
    end = next_batch if stream.missing_since is None else min(next_batch, stream.missing_since)
    routed = (snapshot for name in stream.routed for _, snapshot in histories[name].commits(stream.stream))
    spans = [(first, last) for s in routed if (last := _batch_of(s)) and (first := _batch_of(s, FIRST_RECORD))]
    while split := [first for first, last in spans if first < end <= last]:
        end = min(split)
    return end


def _choose_snapshots(
    stream: StreamTableNames, histories: Mapping[str, _MainHistory], main: int
) -> tuple[int, Callable[[Snapshot], bool]]:
    """Return the index of the default table's snapshot, and a function.

    The function returns whether a snapshot of another table is after the cut.
    """
    # If another table received a batch only after a later publication, the cut ends before that batch.
    history, end = histories[stream.main], _first_excluded_batch(stream, histories, main)
    while True:
        if end is not None:
            main = history.index_before(stream.stream, main, partial(_has_batch_from, end))
        later = {published for s in history.snapshots[:main] if (published := _backfill_id(s))}
        followers = (histories[name] for name in (stream.dead_letters, *stream.routed))
        keys = [key for history_ in followers for key in _batches_after(history_, stream.stream, later)]
        out_of_order = [key for key in keys if end is not None and key < end]
        if not out_of_order:
            break
        end = min(out_of_order)

    def is_left_out(snapshot: Snapshot) -> bool:
        is_own = summary_value(snapshot, "frazil.stream") == stream.stream
        return (is_own and _has_batch_from(end, snapshot)) or _backfill_id(snapshot) in later

    return main, is_left_out


def _batches_after(history: _MainHistory, stream: str, later_backfills: Collection[str]) -> list[BatchKey]:
    first = max((index for index, s in enumerate(history.snapshots) if _backfill_id(s) in later_backfills), default=0)
    return [key for _, s in history.commits(stream, 0, first) if (key := _batch_of(s))]


def _has_batch_from(end: BatchKey | None, snapshot: Snapshot) -> bool:
    """Return whether a snapshot has the batch `end` or a later one. If `end` is None, any batch counts."""
    key = _batch_of(snapshot)
    return key is not None and (end is None or key >= end)


def _follower_index(history: _MainHistory, is_left_out: Callable[[Snapshot], bool], at_ms: int | None) -> int:
    index = history.require_unexpired(max([0, *(p + 1 for p, s in enumerate(history.snapshots) if is_left_out(s))]))
    # Later changes by others (a compaction) are left out, as in the default table.
    for snapshot in history.snapshots[index:]:
        if at_ms is None or snapshot.timestamp_ms <= at_ms or _batch_of(snapshot) or _backfill_id(snapshot):
            break
        index = history.require_unexpired(index + 1)
    return index


def _table_snapshot(
    streams: Sequence[StreamTableNames],
    history: _MainHistory,
    index: int,
    holds: Literal["rows", "dead letters"],
    table: Table,
) -> TableSnapshot:
    names = tuple(s.stream for s in streams if history.table in (s.main, s.dead_letters, *s.routed))
    snapshot = history.snapshots[index] if index < len(history.snapshots) else None
    return TableSnapshot(
        table=history.table,
        holds=holds,
        streams=names,
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        committed_at_ms=snapshot.timestamp_ms if snapshot else None,
        batches={name: str(key) for name in names if (key := history.newest(name, index, _batch_of))},
        watermarks_ms={name: ms for name in names if (ms := history.newest(name, index, _watermark_ms)) is not None},
        metadata_location=table.metadata_location,
    )


def _batch_of(snapshot: Snapshot, key: str = "frazil.commit-record") -> BatchKey | None:
    record = summary_value(snapshot, key)
    return parse_key(record) if record else None


def _backfill_id(snapshot: Snapshot) -> str | None:
    return summary_value(snapshot, "frazil.backfill")


def _watermark_ms(snapshot: Snapshot) -> int | None:
    text = summary_value(snapshot, "frazil.watermark-ms")
    return int(text) if text else None


def _is_past_watermark(end_ms: int, snapshot: Snapshot) -> bool:
    watermark_ms = _watermark_ms(snapshot)
    return watermark_ms is not None and watermark_ms > end_ms


def _require_watermark(history: _MainHistory, stream: str, begin: int) -> int:
    watermark_ms = history.newest(stream, begin, _watermark_ms)
    if watermark_ms is not None:
        return watermark_ms
    raise FrazilError(
        f"stream {stream!r} has no watermark at that time, or its history in table {history.table} has expired. A cut "
        f"of several streams needs a watermark of each stream: run `frazil cut {stream}` by itself, or wait until all "
        "of its partitions have received records"
    )


def set_tag(table: Table, name: str, snapshot_id: int, *, retry_policy: RetryPolicy) -> None:
    """Tag a snapshot so that expiry keeps it. Raises FrazilError if the tag is taken, or the snapshot has expired."""
    tag = TAG_PREFIX + name

    def propose(table: Table) -> Done[None] | Change[None]:
        identifier, existing = ".".join(table.name()), table.metadata.refs.get(tag)
        if existing is not None and existing.snapshot_id == snapshot_id:
            return Done(None)
        if existing is not None:
            raise FrazilError(
                f"table {identifier} already has a tag {tag}, at snapshot {existing.snapshot_id}: choose another name, "
                f"or remove the tag with `frazil cut … --untag {name}`"
            )
        if table.metadata.snapshot_by_id(snapshot_id) is None:
            raise FrazilError(
                f"snapshot {snapshot_id} of table {identifier} has expired since the cut was made: run `frazil cut` "
                "again"
            )
        update = SetSnapshotRefUpdate(
            ref_name=tag,
            type=SnapshotRefType.TAG,
            snapshot_id=snapshot_id,
            max_ref_age_ms=FOREVER_MS,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        )
        uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
        return Change((uuid, AssertRefSnapshotId(ref=tag, snapshot_id=None)), (update,), None)

    swap(TableHandle.from_table(table), propose, retry_policy=retry_policy)


def remove_tag(table: Table, name: str, *, retry_policy: RetryPolicy) -> bool:
    """Remove a tag that `set_tag` created, so that the snapshot may expire. Returns whether the tag existed."""
    tag = TAG_PREFIX + name
    was_tagged = False

    def propose(table: Table) -> Done[None] | Change[None]:
        nonlocal was_tagged
        existing = table.metadata.refs.get(tag)
        if existing is None:
            return Done(None)
        was_tagged = True
        requirement = AssertRefSnapshotId(ref=tag, snapshot_id=existing.snapshot_id)
        return Change((requirement,), (RemoveSnapshotRefUpdate(ref_name=tag),), None)

    swap(TableHandle.from_table(table), propose, retry_policy=retry_policy)
    return was_tagged
