"""Reads a stream's claims: offset ranges and record counts from commit records, for a period or all time."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from frazil.commit.backfill_records import (
    BackfillRecord,
    chunk_topic_ids,
    committed_chunks,
    published_records,
    record_path,
)
from frazil.commit.history import (
    Period,
    ancestors,
    ancestors_and_older_snapshots,
    commit_records,
    merge_counts,
    skipped_ranges,
)
from frazil.commit.journal import NO_RULES, Journal, JournalStore, RuleHashes, parse_key
from frazil.commit.marker import BatchKey, BatchOutcome, Marker
from frazil.ingest.contract import is_routed
from frazil.offsets.spans import Span, TopicPartition, covered_offsets, join_spans, offset_bitmap

MAX_CLOCK_STEP_MS = 3_600_000
"""Maximum time by which a writer's clock may have stepped back."""
ByTopicId = Mapping[str, BitMap64]
"""Offsets by topic id. Recreated topics have several ids for one name."""


@dataclass(frozen=True, slots=True, order=True)
class CommittedRange:
    """A claim of one commit record: each record in `[start, end)` became a row or a dead letter, or was dropped."""

    start: int
    end: int
    records: int
    rejected: int
    topic_id: str
    selects: bool = False
    """Whether a backfill read only certain event times. Records outside these times are then not missing."""
    dropped: int = 0
    """Records that the stream's transform dropped."""
    epoch: int | None = field(default=None, compare=False)
    """The writer's epoch; None for a backfill."""
    published_in: tuple[int, int] = field(default=(0, 0), compare=False)
    """The oldest and the newest of the writer's epochs in which a backfill may have been published."""
    leader_epoch: int | None = field(default=None, compare=False)
    """Epoch of the leader that served the records before `end`, if known."""
    rules: RuleHashes = field(default=NO_RULES, compare=False)
    """See `Journal.rules`."""

    @property
    def offsets(self) -> BitMap64:
        return offset_bitmap(self.start, self.end)


@dataclass(frozen=True, slots=True)
class OverlappingRanges:
    """Audited ranges that overlap, or a single range."""

    audited: tuple[CommittedRange, ...]
    others: tuple[CommittedRange, ...]
    """Ranges outside the audited period that overlap the audited ranges."""

    @property
    def is_single(self) -> bool:
        """Whether the group is one range, with exact counts."""
        return len(self.audited) + len(self.others) == 1

    @property
    def offsets(self) -> BitMap64:
        return claimed_offsets(self.audited)

    @property
    def ranges_by_topic_id(self) -> Mapping[str, list[CommittedRange]]:
        return group_by_topic_id((*self.audited, *self.others))

    def bounds(self, claimed: Callable[[CommittedRange], int]) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum possible number of records within `offsets`, by topic id."""
        offsets, bounds = self.offsets, dict[str, tuple[int, int]]()
        for topic_id, ranges in self.ranges_by_topic_id.items():
            inside = {r: offsets.range_cardinality(r.start, r.end) for r in ranges}
            outside = {r: r.end - r.start - inside[r] for r in ranges}
            lowest = _max_chain_weight({r: max(0, claimed(r) - outside[r]) for r in ranges})
            highest = sum(min(claimed(r), inside[r]) for r in ranges)
            bounds[topic_id] = lowest, min(highest, len(claimed_offsets(ranges) & offsets))
        return bounds

    def lowest(self, claimed: Callable[[CommittedRange], int]) -> int:
        """Return the minimum number of distinct records within `offsets`. All ranges must have one topic id.

        `claimed` returns the number of a range's records, according to its commit record. The range's other offsets are
        gaps. The ranges overlap, so several selections of ranges cover all offsets. The result is the number of
        offsets, minus the gaps of the selection with the fewest gaps. It is exact without gaps.
        """
        return len(self.offsets) - _min_cover_weight({r: r.end - r.start - claimed(r) for r in self.audited})

    def missing(self, short: Callable[[CommittedRange], int]) -> int:
        """Return the minimum number of distinct missing records. `short` counts the missing records of one range."""
        return _max_chain_weight({r: short(r) for r in self.audited})


def group_overlapping_ranges(
    audited: Iterable[CommittedRange], other_ranges: Iterable[CommittedRange] = ()
) -> list[OverlappingRanges]:
    """Group each audited range with all ranges that overlap it, in order. Skips empty ranges."""
    grouped: list[tuple[list[CommittedRange], list[CommittedRange]]] = []
    reach = -1
    marked = [*((r, True) for r in audited), *((r, False) for r in other_ranges)]
    for r, is_audited in sorted((m for m in marked if m[0].end > m[0].start), key=lambda m: m[0]):
        if r.start >= reach:
            grouped.append(([], []))
        grouped[-1][0 if is_audited else 1].append(r)
        reach = max(reach, r.end)
    return [OverlappingRanges(tuple(inside), tuple(outside)) for inside, outside in grouped if inside]


def _max_chain_weight(weights: Mapping[CommittedRange, int]) -> int:
    """Divide the ranges into the fewest chains without overlaps. Return the weight of the heaviest chain."""
    chains: list[tuple[int, int]] = []
    for r, weight in sorted(weights.items()):
        index = next((i for i, (end, _) in enumerate(chains) if end <= r.start), len(chains))
        chain_weight = chains[index][1] if index < len(chains) else 0
        chains[index : index + 1] = [(r.end, chain_weight + weight)]
    return max((total for _, total in chains), default=0)


def _min_cover_weight(weights: Mapping[CommittedRange, int]) -> int:
    """Return the minimum weight of a selection of ranges that covers all their offsets."""
    total, reach = 0, -1
    covers: list[tuple[int, int]] = []
    for r, weight in sorted(weights.items()):
        if r.start > reach:
            total += _min_weight_ending_at(covers, reach)
            covers = [(0, r.start)]
        while covers[0][1] < r.start:
            heappop(covers)
        heappush(covers, (covers[0][0] + weight, r.end))
        reach = max(reach, r.end)
    return total + _min_weight_ending_at(covers, reach)


def _min_weight_ending_at(covers: Iterable[tuple[int, int]], reach: int) -> int:
    return min((weight for weight, end in covers if end == reach), default=0)


def group_by_topic_id(ranges: Iterable[CommittedRange]) -> dict[str, list[CommittedRange]]:
    by_id: dict[str, list[CommittedRange]] = defaultdict(list)
    for r in ranges:
        by_id[r.topic_id].append(r)
    return dict(by_id)


def merge_ranges(ranges: Iterable[CommittedRange]) -> list[Span]:
    return join_spans((r.start, r.end) for r in ranges)


def claimed_offsets(ranges: Iterable[CommittedRange]) -> BitMap64:
    return covered_offsets(merge_ranges(ranges))


def offsets_claimed_again(ranges: Iterable[CommittedRange]) -> BitMap64:
    overlaps, reach = list[Span](), 0
    for r in sorted(ranges):
        overlaps.append((r.start, min(r.end, reach)))
        reach = max(reach, r.end)
    return covered_offsets(span for span in overlaps if span[0] < span[1])


def find_accepted_loss(ranges: Sequence[CommittedRange], given_up: Iterable[Span], *, epoch: int) -> BitMap64:
    """Return the topic's offsets with an accepted loss. Omits offsets committed again since the epoch `epoch`."""
    since = claimed_offsets(r for r in ranges if r.epoch is None or r.epoch >= epoch)
    return covered_offsets(given_up) - (offsets_claimed_again(ranges) & since)


@dataclass(frozen=True, slots=True)
class Claims:
    ranges: Mapping[TopicPartition, tuple[CommittedRange, ...]] = field(default_factory=dict)
    records: int = 0
    rejected: int = 0
    batches: int = 0
    routed: Mapping[str, int] = field(default_factory=dict)
    missing_commit_records: tuple[str, ...] = ()
    """Missing or unreadable commit records that snapshots name."""
    lost: tuple[str, ...] = ()
    """Ranges that retention deleted before the writer read them, according to the period's snapshots."""
    replays: Mapping[TopicPartition, tuple[CommittedRange, ...]] = field(default_factory=dict)
    """The ranges of replays. `ranges` has only the original batches' ranges of these offsets."""
    replayed: Mapping[TopicPartition, ByTopicId] = field(default_factory=dict)
    """Offsets of dead letters that became rows."""
    repeats: int | None = 0
    """Number of repeats that batches dropped, except in accepted losses. None if unknown."""

    def of_topics(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, tuple[CommittedRange, ...]]:
        return {tp: tuple(r for r in rs if r.topic_id == topic_ids.get(tp[0], "")) for tp, rs in self.ranges.items()}

    def former_offsets(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, BitMap64]:
        """Return the committed offsets of earlier topics with the same names, by topic-partition."""
        current = self.of_topics(topic_ids)
        return {tp: claimed_offsets({*parts} - {*current[tp]}) for tp, parts in self.ranges.items()}

    def without(self, others: Claims) -> dict[TopicPartition, tuple[CommittedRange, ...]]:
        """Return `ranges` minus the ranges of `others` (multiset difference), by topic-partition."""
        return {
            tp: tuple((Counter(ranges) - Counter(others.ranges.get(tp, ()))).elements())
            for tp, ranges in self.ranges.items()
        }


def load_all_claims(journals: JournalStore, marker: Marker, metadata: TableMetadata) -> Claims:
    """Read the commit records of all committed batches, and the records of published backfills."""
    records = journals.records(table_uuid=metadata.table_uuid)
    live = [record for record in records if marker.has_committed(record.key)]
    backfills = list(published_records(journals, metadata, marker.stream))
    claimed = _sum_claims(journals, marker, metadata, live, backfills)
    return dataclasses.replace(
        claimed, missing_commit_records=tuple(_missing_record_paths(journals, marker, metadata, live))
    )


def _missing_record_paths(
    journals: JournalStore, marker: Marker, metadata: TableMetadata, live: Sequence[Journal]
) -> Iterator[str]:
    """Yield the paths of missing commit records that snapshots name. Ignores records that `forget` deleted."""
    keys = {record.key for record in live}
    first = min(keys, default=None)
    for _, path in commit_records(metadata, marker.stream):
        if (key := parse_key(path)) is None or key in keys:
            continue
        is_forgotten = marker.outcome_of(key) is BatchOutcome.UNKNOWN and (first is None or key < first)
        if not is_forgotten and journals.read(path) is None:
            yield path


def load_claims(journals: JournalStore, marker: Marker, metadata: TableMetadata, window: Period | None) -> Claims:
    """Read a period's commit records; without `window`, all of them.

    A batch belongs to the period of its snapshot's commit, so consecutive periods count the batch once. If snapshots
    have expired, the times in the records decide, from `MAX_CLOCK_STEP_MS` before the period on. Backfills and skipped
    ranges have no such records, but expiry keeps their snapshots.
    """
    if window is None:
        return load_all_claims(journals, marker, metadata)
    batches: list[Journal] = []
    missing_commit_records: list[str] = []
    oldest: BatchKey | None = None
    for snapshot, path in commit_records(metadata, marker.stream):
        oldest = parse_key(path) or oldest
        if snapshot.timestamp_ms in window:
            record = journals.read(path)
            if record is None:
                missing_commit_records.append(path)
            else:
                batches.append(record)
    if _history_begins_ms(metadata) > window.from_ms:
        records = journals.records(newest_first=True, below=oldest, table_uuid=metadata.table_uuid)
        batches += _records_before_history(records, marker, window)
    lost = [text for snapshot, text in skipped_ranges(metadata, marker.stream) if snapshot.timestamp_ms in window]
    backfills = list(published_records(journals, metadata, marker.stream, window=window))
    claimed = _sum_claims(journals, marker, metadata, batches, backfills)
    repeats = None if backfills else claimed.repeats  # other periods may have records of the same offsets
    return dataclasses.replace(
        claimed, missing_commit_records=tuple(missing_commit_records), lost=tuple(lost), repeats=repeats
    )


def _batches_without_accepted_losses(batches: Iterable[Journal], claimed: Claims, marker: Marker) -> list[Journal]:
    """Return the batches. Omits batches that a rollback removed, if an operator accepted the loss."""
    current = claimed.of_topics(marker.source.topic_ids)
    lost = {
        tp: find_accepted_loss(current.get(tp, ()), spans, epoch=marker.given_up_epoch)
        for tp, spans in marker.given_up.items()
    }

    def is_lost(batch: Journal) -> bool:
        read = [p for p in batch.progress if p.start < p.end]
        return bool(read) and all(
            p.topic_partition in lost and offset_bitmap(p.start, p.end) <= lost[p.topic_partition] for p in read
        )

    return [batch for batch in batches if not is_lost(batch)] if lost else [*batches]


def _count_repeats(
    journals: JournalStore, metadata: TableMetadata, batches: Sequence[Journal], backfills: Sequence[BackfillRecord]
) -> int | None:
    """Return how many repeats these batches dropped; None if a batch's snapshot has expired."""
    summaries = {
        s.summary.get("frazil.commit-record"): s.summary for s in ancestors_and_older_snapshots(metadata) if s.summary
    }
    paths = [journals.path(batch.key) for batch in batches]
    paths += [record_path(journals, record.backfill.id) for record in backfills]
    if any(path not in summaries for path in paths):
        return None
    return sum(merge_counts(summaries[path]).get("repeated", 0) for path in paths)


def _records_before_history(records: Iterable[Journal], marker: Marker, window: Period) -> Iterator[Journal]:
    """Yield the period's commit records that are older than the history, newest first."""
    for record in records:
        if not marker.has_committed(record.key):
            continue
        if record.created_at_ms in window:
            yield record
        elif record.created_at_ms < window.from_ms - MAX_CLOCK_STEP_MS:
            return


def _history_begins_ms(metadata: TableMetadata) -> int:
    """Return the time since which the branch's history is complete; 0 if no snapshot has expired."""
    oldest = next(reversed(list(ancestors(metadata))), None)
    # The parent's id does not show this: PyIceberg removes the id of an expired parent.
    return 0 if oldest is None or oldest.sequence_number in {None, 0, 1} else oldest.timestamp_ms


def _sum_claims(
    journals: JournalStore,
    marker: Marker,
    metadata: TableMetadata,
    live: Sequence[Journal],
    backfills: Sequence[BackfillRecord],
) -> Claims:
    replayed = defaultdict[TopicPartition, dict[str, BitMap64]](lambda: defaultdict(BitMap64))
    read = [_ReadRecord(record, epoch=record.key.epoch) for record in live]
    replays: list[_ReadRecord] = []
    for backfill in backfills:
        chunks = committed_chunks(journals, backfill.backfill)
        epochs = _epochs_of_snapshot(metadata, record_path(journals, backfill.backfill.id), live)
        found = (_ReadRecord(chunk, selects=backfill.selects, published_in=epochs) for chunk in chunks)
        (replays if backfill.backfill.replays else read).extend(found)
        ids = chunk_topic_ids(chunks)
        for tp, offsets in backfill.replayed.items():
            replayed[tp][ids.get(tp[0], "")] |= offsets
    routed = Counter[str]()
    for file in (file for each in read for file in each.record.files if is_routed(file.target)):
        routed[file.target] += file.records
    claimed = Claims(
        _committed_ranges(read),
        sum(each.record.records for each in read),
        sum(each.record.rejected for each in read),
        len(read),
        dict(routed),
        replays=_committed_ranges(replays),
        replayed={tp: dict(by_id) for tp, by_id in replayed.items()},
    )
    remaining = _batches_without_accepted_losses(live, claimed, marker)
    return dataclasses.replace(claimed, repeats=_count_repeats(journals, metadata, remaining, backfills))


def _epochs_of_snapshot(metadata: TableMetadata, commit_record: str, batches: Collection[Journal]) -> tuple[int, int]:
    """Return the oldest and the newest epoch in which a snapshot may have been committed. Their clocks may differ by
    `MAX_CLOCK_STEP_MS`. All epochs are possible if the snapshot has expired.
    """
    found = (
        s.timestamp_ms
        for s in metadata.snapshots
        if s.summary and s.summary.get("frazil.commit-record") == commit_record
    )
    at_ms = next(found, None)
    limits_ms = (-1, sys.maxsize) if at_ms is None else (at_ms - MAX_CLOCK_STEP_MS, at_ms + MAX_CLOCK_STEP_MS)
    oldest, newest = (
        max((batch.key.epoch for batch in batches if batch.created_at_ms <= limit_ms), default=0)
        for limit_ms in limits_ms
    )
    return oldest, newest


class _ReadRecord(NamedTuple):
    """A commit record, with these fields of its ranges: see `CommittedRange`."""

    record: Journal
    selects: bool = False
    epoch: int | None = None
    published_in: tuple[int, int] = (0, 0)


def _committed_ranges(read: Iterable[_ReadRecord]) -> dict[TopicPartition, tuple[CommittedRange, ...]]:
    ranges: dict[TopicPartition, list[CommittedRange]] = defaultdict(list)
    known_rules: dict[tuple[frozenset[tuple[str, str]], str], RuleHashes] = {}
    for record, selects, epoch, published_in in read:
        key = frozenset(record.rules.columns.items()), record.rules.deciding
        rules = known_rules.setdefault(key, record.rules)
        for p in record.progress:
            topic_id = record.source.topic_ids.get(p.topic, "")
            leader = record.leader_epochs.get(p.topic_partition)
            counts = p.records, p.rejected, topic_id, selects, p.dropped
            claim = CommittedRange(p.start, p.end, *counts, epoch, published_in, leader, rules)
            ranges[p.topic_partition].append(claim)
    return {tp: tuple(parts) for tp, parts in ranges.items()}
