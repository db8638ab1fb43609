"""Gathers the evidence for an audit, by topic-partition: claims, rows, dead letters and Kafka's offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from frazil.audit.claims import Claims
from frazil.audit.ranges import ByTopicId, CommittedRange, Group, by_topic_id, groups
from frazil.commit.marker import Marker
from frazil.offsets.spans import TopicPartition
from frazil.offsets.tally import OffsetTally, Tallies


@dataclass(frozen=True, slots=True)
class InKafka:
    """The offsets that Kafka has in `[first, marker)`, read with `read_committed`."""

    first: int
    offsets: BitMap64
    cut: int | None = None
    """The offset where its log was truncated, below what was committed: from there on, records are new ones."""
    dropped: BitMap64 = field(default_factory=BitMap64)
    """The offsets whose records the transform drops, as it is declared now."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for one topic-partition."""

    topic: str
    partition: int
    marker: int
    topic_id: str
    """The id of the current topic."""
    ranges: tuple[CommittedRange, ...]
    """The audited ranges."""
    rows: OffsetTally
    dead_letters: OffsetTally
    kafka: InKafka | None = None
    """Kafka's records; None if the audit does not compare with them."""
    whole: bool = True
    """False if `ranges`, rows and dead letters cover only a period."""
    elsewhere: tuple[CommittedRange, ...] = ()
    """Ranges committed outside the period, if they were read: they may explain what looks wrong."""
    rewritten: tuple[tuple[int, int], ...] = ()
    """Offsets `[start, end)` that Kafka assigned to a second record.

    Operators accepted that, so rows may occur twice.
    """
    given_up: tuple[tuple[int, int], ...] = ()
    """Committed offsets `[start, end)` whose loss an operator accepted after a rollback."""
    replayed: ByTopicId = field(default_factory=dict)
    """Records that were committed as dead letters and have become rows."""
    tables: str = "the table"
    """What findings call the tables that have `rows`."""
    drops_repeats: bool = False
    """Whether repeats were dropped: then the table may have fewer rows than the commit records count."""
    former_dead_letters: int = 0
    """Number of dead letters of topics that had this name before. `dead_letters` does not have them."""
    groups: list[Group] = field(init=False, repr=False, compare=False)
    """The audited ranges, each with the ranges that overlap it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", groups(self.ranges, self.elsewhere))

    @property
    def generations(self) -> dict[str, list[CommittedRange]]:
        """All known ranges, by topic id."""
        return by_topic_id((*self.ranges, *self.elsewhere))

    def replayed_of(self, r: CommittedRange) -> int:
        """Count the dead letters of a range that have become rows."""
        return self.replayed.get(r.topic_id, BitMap64()).range_cardinality(r.start, r.end)

    @property
    def dead_letter_groups(self) -> list[Group]:
        """Groups of the current topic only: dead letters of a former topic share no offsets with it."""
        current = ([r for r in of if r.topic_id == self.topic_id] for of in (self.ranges, self.elsewhere))
        return groups(*current)


def gather(  # noqa: PLR0913 - what is known, and of what
    marker: Marker,
    claimed: Claims,
    *,
    rows: Tallies,
    dead_letters: Tallies,
    kafka: Mapping[TopicPartition, InKafka],
    whole: bool = True,
    drops_repeats: bool = False,
    tables: str = "the table",
    former_dead_letters: Mapping[TopicPartition, int] | None = None,
) -> tuple[Evidence, ...]:
    """Return the evidence for each topic-partition that is known, or that has claims in the period."""
    known = claimed.ranges.keys() | (marker.offsets.keys() | rows.keys() if whole else set())
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
            whole=whole,
            rewritten=marker.rewritten.get(tp, ()),
            given_up=marker.given_up.get(tp, ()),
            replayed=claimed.replayed.get(tp, {}),
            tables=tables,
            drops_repeats=drops_repeats,
            former_dead_letters=(former_dead_letters or {}).get(tp, 0),
        )
        for tp in sorted(known)
    )


def explained(evidence: tuple[Evidence, ...], every: Claims, mine: Claims) -> tuple[Evidence, ...]:
    """Return a period's evidence together with all claims and replays of other times.

    `mine` are the claims of the period, `every` the claims of all time.
    """
    elsewhere, replayed = every.without(mine), every.replayed
    return tuple(
        replace(e, elsewhere=elsewhere.get(tp, ()), replayed=replayed.get(tp, {}))
        for e in evidence
        for tp in [(e.topic, e.partition)]
    )
