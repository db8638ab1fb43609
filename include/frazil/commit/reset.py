"""A new position for a stream, and what it costs: how a stream stands, and plans that are pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pyiceberg.table import Table

from frazil.commit.history import first_offsets, table_position
from frazil.commit.marker import Marker, Span, first_marker, merged_identity, of_same_topics, property_name, read_marker
from frazil.commit.rules import check_ancestry
from frazil.commit.stream_tables import StreamTables
from frazil.errors import MarkerUnreadable, RolledBack
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import TopicPartition

Offsets = Mapping[TopicPartition, int]
Spans = Mapping[TopicPartition, tuple[Span, ...]]
NO_OFFSETS: Offsets = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Available:
    """What Kafka has now: `[first, end)` of each topic-partition, and which topics these are."""

    source: SourceIdentity
    first: Offsets
    end: Offsets
    cut: Offsets = field(default_factory=dict)
    """Where logs were cut before the marker: from there on Kafka has, or will have, other records than were read."""


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
    cut: int | None = None
    """Where Kafka's log was cut before `held`, if it was."""

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
        same = self.held if self.held is None or self.cut is None else min(self.held, self.cut)
        return 0 if same is None else max(same - self.target, 0)

    @property
    def rewritten(self) -> int:
        """Offsets that Kafka has given, or will give, to other records than those that the table holds."""
        return 0 if self.held is None or self.cut is None else max(self.held - max(self.cut, self.target), 0)


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
    """A wanted position for every topic-partition that Kafka has, moved into what Kafka still has of it.

    What was not wanted anywhere (a new partition) begins at its first offset, as it would for a writer.
    """
    return {
        tp: min(max(wanted.get(tp, first), first), available.end.get(tp, first))
        for tp, first in available.first.items()
    }


def before_cuts(offsets: Offsets, available: Available) -> dict[TopicPartition, int]:
    """Offsets that are known to be in the table, moved back to where Kafka's logs were cut before them."""
    return {tp: min(offset, available.cut.get(tp, offset)) for tp, offset in offsets.items()}


def moves(target: Offsets, *, held: Offsets, available: Available) -> tuple[Move, ...]:
    """What a new position means for each topic-partition, sorted."""
    return tuple(
        Move(
            *tp,
            held=held.get(tp),
            target=offset,
            first=available.first[tp],
            end=available.end[tp],
            cut=available.cut.get(tp),
        )
        for tp, offset in sorted(target.items())
    )


def moved(  # noqa: PLR0913 - where it stands, where it goes, and what Kafka is like
    seen: Standing, *, stream: str, epoch: int, target: Offsets, source: SourceIdentity, cut: Offsets = NO_OFFSETS
) -> Marker:
    """The marker after a reset. The watermark stays: it never goes back. `cut` is where Kafka's logs were.

    Topics that the stream no longer reads keep their offsets, should they come back; idleness is found out anew.
    """
    before = seen.marker
    if before is None:
        return first_marker(stream, epoch=epoch, offsets=target, source=source)
    return dataclasses.replace(
        before.owned_by(epoch),
        offsets={**of_same_topics(before.offsets, before.source, source), **target},
        source=merged_identity(before.source, source),
        max_event_times_us=of_same_topics(before.max_event_times_us, before.source, source),
        idle=frozenset(),
        leader_epochs=_still_known(before, target, source),
        rewritten=_rewritten(before, target, source, cut),
        given_up=_given_up(seen, before, target, source),
    )


def _still_known(before: Marker, target: Offsets, source: SourceIdentity) -> dict[TopicPartition, int]:
    """Leader epochs of offsets that do not move on: what lies beyond them may be of later leaders."""
    known = of_same_topics(before.leader_epochs, before.source, source)
    return {tp: epoch for tp, epoch in known.items() if target.get(tp, 0) <= before.offsets.get(tp, 0)}


def _rewritten(before: Marker, target: Offsets, source: SourceIdentity, cut: Offsets) -> Spans:
    """Offsets that Kafka gives to a second record, where the stream goes back to where a log was cut."""
    same = of_same_topics(before.offsets, before.source, source)
    begins = {tp: max(at, target.get(tp, at)) for tp, at in cut.items() if tp in same}
    return _with_spans(before.rewritten, {tp: (begin, same[tp]) for tp, begin in begins.items()}, same)


def _given_up(seen: Standing, before: Marker, target: Offsets, source: SourceIdentity) -> Spans:
    """Offsets that a rollback took from the table, and that the stream does not read again."""
    same = of_same_topics(before.offsets, before.source, source)
    held = of_same_topics(seen.held, seen.source, source) if seen.rolled_back and not seen.unknown else {}
    lost = {tp: (held.get(tp, offset), min(offset, same[tp])) for tp, offset in target.items() if tp in same}
    return _with_spans(before.given_up, lost, same)


def _with_spans(
    known: Spans, new: Mapping[TopicPartition, Span], same: Offsets
) -> dict[TopicPartition, tuple[Span, ...]]:
    """Spans of topics that are the same, with the new ones that are not empty."""
    found = {tp: list(spans) for tp, spans in known.items() if tp in same}
    for tp, (start, end) in new.items():
        if start < end:
            found.setdefault(tp, []).append((start, end))
    return {tp: merged_spans(spans) for tp, spans in found.items()}


def merged_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order, with those put together that touch or overlap."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        else:
            whole.append((start, end))
    return tuple(whole)
