"""A new position for a stream, and what it costs: how a stream stands, and plans that are pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyiceberg.table import Table

from frazil.commit.committer import StreamTables
from frazil.commit.history import first_offsets, table_position
from frazil.commit.marker import (
    Marker,
    SourceIdentity,
    first_marker,
    joined,
    of_same_topics,
    property_name,
    read_marker,
)
from frazil.commit.rules import check_ancestry
from frazil.errors import MarkerUnreadable, RolledBack
from frazil.ingest.contract import TopicPartition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Available:
    """What Kafka has now: `[first, end)` of each topic-partition, and which topics these are."""

    source: SourceIdentity
    first: Offsets
    end: Offsets


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a stream stands before it is moved."""

    marker: Marker | None
    """None where the stream has none, or one that cannot be read."""
    marker_text: str | None
    """The property as it was found: a reset of anything else than what its person saw is refused."""
    held: Offsets
    """Offsets below these are in the table, if they ever were; a rollback takes them back from the marker's."""
    source: SourceIdentity | None
    """Of which Kafka the offsets held are."""
    rolled_back: bool
    unknown: str | None = None
    """Why `held` cannot be told; None where it can."""


@dataclass(frozen=True, slots=True)
class Move:
    """One topic-partition's way from what the table holds to where the stream goes on. Offsets, next to read."""

    topic: str
    partition: int
    held: int | None
    """None where nothing of this topic-partition is known to be in the table."""
    target: int
    first: int
    end: int

    @property
    def skipped(self) -> int:
        """Offsets whose records never reach the table."""
        return 0 if self.held is None else max(self.target - self.held, 0)

    @property
    def gone(self) -> int:
        """Those of the skipped that Kafka has deleted already."""
        return 0 if self.held is None else max(min(self.target, self.first) - self.held, 0)

    @property
    def repeated(self) -> int:
        """Offsets that are read again although the table holds their rows."""
        return 0 if self.held is None else max(self.held - self.target, 0)


def standing(tables: StreamTables) -> Standing:
    """Look at the table: its marker, and what of it the branch holds."""
    table = tables.main.refresh()
    text = table.metadata.properties.get(property_name(tables.stream))
    try:
        marker = read_marker(table.metadata.properties, tables.stream)
    except MarkerUnreadable:
        marker = None
    rolled_back = marker is not None and is_rolled_back(table, marker, name=tables.main.identifier)
    if marker is not None and not rolled_back:
        return Standing(marker, text, marker.offsets, marker.source, rolled_back=False)
    try:
        record = table_position(table.metadata, tables.journals, stream=tables.stream, table=tables.main.identifier)
    except RolledBack as error:
        return Standing(marker, text, {}, None, rolled_back=rolled_back, unknown=str(error))
    held, source = (record.offsets_after, record.source) if record else first_offsets(tables.journals)
    return Standing(marker, text, held, source, rolled_back=rolled_back)


def is_rolled_back(table: Table, marker: Marker, *, name: str) -> bool:
    """Whether the branch went back behind the marker."""
    try:
        check_ancestry(table.metadata, marker, table=name)
    except RolledBack:
        return True
    return False


def clamped(wanted: Offsets, available: Available) -> dict[TopicPartition, int]:
    """A wanted position for every topic-partition that Kafka has, moved into what Kafka still has.

    What was not wanted anywhere (a new partition) begins at its first offset, as it would for a writer.
    """
    return {
        tp: min(max(wanted.get(tp, first), first), available.end.get(tp, first))
        for tp, first in available.first.items()
    }


def moves(target: Offsets, *, held: Offsets, available: Available) -> tuple[Move, ...]:
    """What a new position means for each topic-partition, sorted."""
    return tuple(
        Move(*tp, held=held.get(tp), target=offset, first=available.first[tp], end=available.end[tp])
        for tp, offset in sorted(target.items())
    )


def moved(seen: Standing, *, stream: str, epoch: int, target: Offsets, source: SourceIdentity) -> Marker:
    """The marker after a reset. The watermark stays: it never goes back.

    Topics that the stream no longer reads keep their offsets, should they come back; idleness is found out anew.
    """
    before = seen.marker
    if before is None:
        return first_marker(stream, epoch=epoch, offsets=target, source=source)
    return dataclasses.replace(
        before.owned_by(epoch),
        offsets={**of_same_topics(before.offsets, before.source, source), **target},
        source=joined(before.source, source),
        max_event_times_us=of_same_topics(before.max_event_times_us, before.source, source),
        idle=frozenset(),
    )


def floor_after(
    floor: Offsets, target: Offsets, ranges: Callable[[TopicPartition], Iterable[tuple[int, int]]]
) -> dict[TopicPartition, int]:
    """The dead-letter floor once the stream goes on at `target`. Pure but for `ranges`, what was committed once.

    Where the stream goes back, dead letters below the floor are in their table only as far as batches without a hole
    lead up from the target: beyond a hole (an earlier reset skipped it) they are written, be it again.
    """
    return {
        tp: min(offset, contiguous_end(target[tp], ranges(tp))) if target.get(tp, offset) < offset else offset
        for tp, offset in floor.items()
    }


def contiguous_end(start: int, ranges: Iterable[tuple[int, int]]) -> int:
    """How far ranges `[start, end)` lead from an offset without a hole."""
    reached = start
    for begin, end in sorted(ranges):
        if begin > reached:
            break
        reached = max(reached, end)
    return reached
