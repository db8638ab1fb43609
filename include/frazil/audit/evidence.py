"""Gathers an audit's evidence by topic-partition: commit records, rows, dead letters, and Kafka's offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyroaring import BitMap64

from frazil.audit.claims import (
    ByTopicId,
    Claims,
    CommittedRange,
    OverlappingRanges,
    claimed_offsets,
    group_by_topic_id,
    group_overlapping_ranges,
)
from frazil.commit.marker import Marker
from frazil.offsets.spans import Span, TopicPartition, covered_offsets
from frazil.offsets.tally import OffsetTally, Tallies


@dataclass(frozen=True, slots=True)
class RemainingOffsets:
    """The offsets from `first` to the marker that Kafka still has (`read_committed`)."""

    first: int
    offsets: BitMap64
    truncated_at: int | None = None
    """Offset from which Kafka has other records after a truncation, if the log was truncated."""
    dropped: BitMap64 = field(default_factory=BitMap64)
    """Records that the current transform drops."""


@dataclass(frozen=True)
class Evidence:
    """One topic-partition's evidence, and the offsets that several comparisons derive from it."""

    topic: str
    partition: int
    marker: int
    topic_id: str
    """The id of the current topic with this name."""
    ranges: tuple[CommittedRange, ...]
    rows: OffsetTally
    dead_letters: OffsetTally
    kafka: RemainingOffsets | None = None
    covers_history: bool = True
    """False if ranges, rows and dead letters cover only a period."""
    ranges_outside_period: tuple[CommittedRange, ...] = ()
    """Ranges outside the audited period, which may explain differences; empty if they were not read."""
    rewritten: tuple[Span, ...] = ()
    """Offsets that Kafka assigned to a second record. They may have two rows."""
    given_up: tuple[Span, ...] = ()
    """Committed offsets that a rollback removed. An operator accepted their loss."""
    given_up_epoch: int = 0
    """Epoch of the first reset that accepted a loss in `given_up`."""
    replayed: ByTopicId = field(default_factory=dict)
    """Dead letters that have become rows."""
    tables: str = "the table"
    """How findings refer to the tables of `rows`."""
    drops_repeats: bool = False
    """Whether the stream drops repeats. It may then have fewer rows than records."""
    former_dead_letters: int = 0
    """Dead letters of earlier topics with the same name. `dead_letters` omits them."""
    reset_times: Mapping[int, int] = field(default_factory=dict)
    """See `frazil.commit.history.reset_times`."""

    @property
    def topic_partition(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def partition_label(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def seen(self) -> BitMap64:
        return self.rows.seen | self.dead_letters.seen

    @cached_property
    def groups(self) -> list[OverlappingRanges]:
        return group_overlapping_ranges(self.ranges, self.ranges_outside_period)

    @cached_property
    def dead_letter_groups(self) -> list[OverlappingRanges]:
        current = ([r for r in rs if r.topic_id == self.topic_id] for rs in (self.ranges, self.ranges_outside_period))
        return group_overlapping_ranges(*current)

    @property
    def current_ranges(self) -> list[CommittedRange]:
        """The audited ranges of the current topic."""
        return [r for r in self.ranges if r.topic_id == self.topic_id]

    @property
    def ranges_by_topic_id(self) -> dict[str, list[CommittedRange]]:
        return group_by_topic_id((*self.ranges, *self.ranges_outside_period))

    def replayed_of(self, r: CommittedRange) -> int:
        """Return how many of a range's dead letters have become rows."""
        return self.replayed.get(r.topic_id, BitMap64()).range_cardinality(r.start, r.end)

    @cached_property
    def rewritten_offsets(self) -> BitMap64:
        return covered_offsets(self.rewritten)

    @cached_property
    def accepted(self) -> BitMap64:
        """The offsets in no table whose loss an operator accepted."""
        return covered_offsets(self.given_up) - self.seen

    @cached_property
    def ambiguous(self) -> BitMap64:
        """The offsets that may have a second record: of an earlier topic, or from before a truncation."""
        committed_ranges = (*self.ranges, *self.ranges_outside_period)
        return claimed_offsets(r for r in committed_ranges if r.topic_id != self.topic_id) | self.rewritten_offsets

    @cached_property
    def rows_with_dead_letters(self) -> BitMap64:
        return (self.rows.seen & self.dead_letters.seen) - self.ambiguous

    @cached_property
    def in_no_table(self) -> BitMap64:
        """The offsets in Kafka and in a commit record that have no row, dead letter or accepted loss."""
        if self.kafka is None:
            return BitMap64()
        claimed = claimed_offsets(r for r in self.current_ranges if not r.selects)
        return (self.kafka.offsets & claimed) - self.seen - covered_offsets(self.given_up)

    @cached_property
    def missing(self) -> BitMap64:
        """The offsets that Kafka and a commit record have, but no table. Omits records that a transform drops."""
        lost = self.in_no_table
        if self.kafka is None or not lost:
            return lost
        for r in self.ranges:
            if r.dropped and len(lost & r.offsets) <= r.dropped:
                lost = lost - r.offsets
        return lost - self.kafka.dropped


def gather_evidence(  # noqa: PLR0913 - each kind of evidence is an argument
    marker: Marker,
    claimed: Claims,
    *,
    rows: Tallies,
    dead_letters: Tallies,
    kafka: Mapping[TopicPartition, RemainingOffsets],
    covers_history: bool = True,
    drops_repeats: bool = False,
    tables: str = "the table",
    former_dead_letters: Mapping[TopicPartition, int] | None = None,
    reset_times: Mapping[int, int] | None = None,
) -> tuple[Evidence, ...]:
    """Return the evidence of each claimed partition. With `covers_history`, includes partitions without claims."""
    tps = claimed.ranges.keys() | (marker.offsets.keys() | rows.keys() if covers_history else set())
    return tuple(
        Evidence(
            topic=tp[0],
            partition=tp[1],
            marker=marker.offsets.get(tp, 0),
            topic_id=marker.source.topic_ids.get(tp[0], ""),
            ranges=claimed.ranges.get(tp, ()),
            rows=rows.get(tp) or OffsetTally(),
            dead_letters=dead_letters.get(tp) or OffsetTally(),
            kafka=kafka.get(tp),
            covers_history=covers_history,
            rewritten=marker.rewritten.get(tp, ()),
            given_up=marker.given_up.get(tp, ()),
            given_up_epoch=marker.given_up_epoch,
            replayed=claimed.replayed.get(tp, {}),
            tables=tables,
            drops_repeats=drops_repeats,
            former_dead_letters=(former_dead_letters or {}).get(tp, 0),
            reset_times=reset_times or {},
        )
        for tp in sorted(tps)
    )


def with_other_claims(evidence: tuple[Evidence, ...], all_claims: Claims, period: Claims) -> tuple[Evidence, ...]:
    """Return a period's evidence, with all claims outside the period added. `period` has the period's claims."""
    elsewhere, replayed = all_claims.without(period), all_claims.replayed
    by_partition = ((e, e.topic_partition) for e in evidence)
    return tuple(
        replace(e, ranges_outside_period=elsewhere.get(tp, ()), replayed=replayed.get(tp, {})) for e, tp in by_partition
    )
