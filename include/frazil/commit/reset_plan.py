"""A stream's state before a reset, and its position and marker after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pyiceberg.table import Table

from frazil.commit.commit_checks import check_ancestry
from frazil.commit.history import first_offsets, last_epoch, reset_times, table_position
from frazil.commit.marker import (
    NO_TRANSACTION,
    Marker,
    first_marker,
    keep_same_topics,
    merge_identities,
    property_name,
    try_read_marker,
)
from frazil.commit.stream_tables import StreamTables
from frazil.errors import RolledBack
from frazil.offsets.spans import Offsets, SourceIdentity, Span, Spans, TopicPartition, merge_spans

NO_OFFSETS: Offsets = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AvailableOffsets:
    source: SourceIdentity
    first: Offsets
    end: Offsets
    truncated_at: Offsets = field(default_factory=dict)
    """Offsets from which Kafka has other records after a truncation. They are below the stream's position."""


@dataclass(frozen=True, slots=True)
class StateBeforeReset:
    marker: Marker | None
    marker_text: str | None
    """The text of the marker's property. A reset is refused if the text has changed since."""
    held: Offsets
    """The next offsets after the stream's records in the table. After a rollback, the marker's offsets are higher."""
    source: SourceIdentity | None
    """The source of the offsets in `held`; None if `held` is unknown."""
    rolled_back: bool
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A reset's effect on one partition: its next offset changes from `held` to `target`."""

    topic: str
    partition: int
    held: int | None
    target: int
    first: int
    end: int
    truncated_at: int | None = None
    """The offset, below `held`, at which Kafka's log was truncated; None without a truncation."""

    @property
    def skipped(self) -> int:
        """Offsets with records that the table will never get."""
        return 0 if self.held is None else max(self.target - self.held, 0)

    @property
    def deleted(self) -> int:
        """Skipped offsets that Kafka has already deleted."""
        return 0 if self.held is None else max(min(self.target, self.first) - self.held, 0)

    @property
    def repeated(self) -> int:
        """Offsets that are read again although the table has their rows."""
        same = self.held if self.held is None or self.truncated_at is None else min(self.held, self.truncated_at)
        return 0 if same is None else max(same - self.target, 0)

    @property
    def rewritten(self) -> int:
        """The table's offsets at which Kafka now has other records."""
        if self.held is None or self.truncated_at is None:
            return 0
        return max(self.held - max(self.truncated_at, self.target), 0)


def read_state_before_reset(tables: StreamTables) -> StateBeforeReset:
    table = tables.main.refresh()
    text = table.metadata.properties.get(property_name(tables.stream))
    marker = try_read_marker(table.metadata.properties, tables.stream)
    rolled_back = marker is not None and is_rolled_back(table, marker, name=tables.main.identifier)
    if marker is not None and not rolled_back:
        return StateBeforeReset(marker, text, _held_offsets(table, tables, marker), marker.source, rolled_back=False)
    try:
        record = table_position(table.metadata, tables.journals, stream=tables.stream, table=tables.main.identifier)
    except RolledBack as error:
        return StateBeforeReset(marker, text, {}, None, rolled_back=rolled_back, unknown=str(error))
    ends, source = (record.offsets_after, record.source) if record else first_offsets(table.metadata, tables.journals)
    return StateBeforeReset(marker, text, ends, source, rolled_back=rolled_back)


def _held_offsets(table: Table, tables: StreamTables, marker: Marker) -> Offsets:
    """Return the next offsets after the table's records: the marker's or, after a reset, the last batch's."""
    last_reset = max(reset_times(table.metadata, tables.stream), default=0)
    if last_reset <= (last_epoch(table.metadata, tables.stream) or 0):
        return marker.offsets
    try:
        record = table_position(table.metadata, tables.journals, stream=tables.stream, table=tables.main.identifier)
    except RolledBack:  # the last batch's record has expired
        return marker.offsets
    last = keep_same_topics(record.offsets_after, record.source, marker.source) if record else {}
    return {**marker.offsets, **{tp: offset for tp, offset in last.items() if tp not in marker.landed}}


def is_rolled_back(table: Table, marker: Marker, *, name: str) -> bool:
    try:
        check_ancestry(table.metadata, marker, table=name)
    except RolledBack:
        return True
    return False


def clamp_to_available(requested: Offsets, available: AvailableOffsets) -> dict[TopicPartition, int]:
    """Limit the requested offsets to Kafka's range. Other partitions begin at their first offset."""
    limits = ((tp, first, available.end.get(tp, first)) for tp, first in available.first.items())
    return {tp: min(max(requested.get(tp, first), first), end) for tp, first, end in limits}


def clamp_to_truncations(offsets: Offsets, available: AvailableOffsets) -> dict[TopicPartition, int]:
    return {tp: min(offset, available.truncated_at.get(tp, offset)) for tp, offset in offsets.items()}


def list_moves(target: Offsets, *, current: Offsets, available: AvailableOffsets) -> tuple[OffsetMove, ...]:
    return tuple(
        OffsetMove(*tp, current.get(tp), offset, available.first[tp], available.end[tp], available.truncated_at.get(tp))
        for tp, offset in sorted(target.items())
    )


def marker_after_reset(  # noqa: PLR0913 - the state, the target and Kafka
    seen: StateBeforeReset,
    *,
    stream: str,
    epoch: int,
    target: Offsets,
    source: SourceIdentity,
    truncated_at: Offsets = NO_OFFSETS,
) -> Marker:
    """Return the marker after a reset, with the same watermark. Logs were truncated at the offsets `truncated_at`."""
    previous = seen.marker
    if previous is None:
        return first_marker(stream, epoch=epoch, offsets=target, source=source)
    same = keep_same_topics(previous.offsets, previous.source, source)
    leaders = keep_same_topics(previous.leader_epochs, previous.source, source)
    begins = {tp: max(truncation, target.get(tp, truncation)) for tp, truncation in truncated_at.items() if tp in same}
    reached = keep_same_topics(seen.held, seen.source, source) if seen.rolled_back and not seen.unknown else {}
    lost = {tp: (reached.get(tp, offset), min(offset, same[tp])) for tp, offset in target.items() if tp in same}
    given_up = _add_spans(previous.given_up, lost, same)
    return dataclasses.replace(
        previous.with_epoch(epoch),
        offsets={**same, **target},
        source=merge_identities(previous.source, source),
        max_event_times_us=keep_same_topics(previous.max_event_times_us, previous.source, source),
        idle=frozenset(),
        # The leader epochs of partitions that skip records are no longer valid.
        leader_epochs={tp: epoch for tp, epoch in leaders.items() if target.get(tp, 0) <= previous.offsets.get(tp, 0)},
        transaction=NO_TRANSACTION,
        rewritten=_add_spans(previous.rewritten, {tp: (begin, same[tp]) for tp, begin in begins.items()}, same),
        landed=_landed_ends(previous, source, truncated_at),
        given_up=given_up,
        given_up_epoch=previous.given_up_epoch if previous.given_up else epoch if given_up else 0,
    )


def _landed_ends(marker: Marker, source: SourceIdentity, truncated_at: Offsets) -> dict[TopicPartition, int]:
    """Return the end of the table's current records in each recreated or truncated partition."""
    marked, landed = (keep_same_topics(offsets, marker.source, source) for offsets in (marker.offsets, marker.landed))
    ends = {tp: max(landed.get(tp, 0), marked.get(tp, 0)) for tp in marker.offsets}
    former = {tp for tp in ends if tp in landed or tp in truncated_at or tp not in marked}
    return {tp: min(ends[tp], truncated_at.get(tp, ends[tp])) for tp in sorted(former)}


def _add_spans(existing: Spans, new: Mapping[TopicPartition, Span], same: Offsets) -> Spans:
    """Merge both sets of spans. Omits recreated topics."""
    retained = ((tp, span) for tp, spans in existing.items() if tp in same for span in spans)
    return merge_spans((*retained, *new.items()))
