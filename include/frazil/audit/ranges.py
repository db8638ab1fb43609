"""Overlaps of a topic-partition's committed ranges, and the number of records that they allow. Pure.

Ranges overlap after a reset, after a backfill of offsets that were committed before, and when a topic was recreated.
The records of such ranges cannot be counted one by one. But each range gives a minimum number of records, and all
ranges together give a maximum. The two are equal if ranges that together cover the same offsets have no gaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from pyroaring import BitMap64

from frazil.offsets.spans import Span, offset_bitmap

ByTopicId = Mapping[str, BitMap64]
"""Offsets of each topic that had the name."""


@dataclass(frozen=True, slots=True, order=True)
class CommittedRange:
    """One commit record's claim on a topic-partition: the records in `[start, end)` became rows and dead letters,
    or were dropped.
    """

    start: int
    end: int
    records: int
    rejected: int
    topic_id: str
    selects: bool = False
    """Whether a backfill took only some records, by event time. The other records are not missing."""
    dropped: int = 0
    """Number of records that the stream's transform dropped."""
    leader_epoch: int | None = field(default=None, compare=False)
    """The epoch of the leader that had `end`; None if no broker reported it."""

    @property
    def offsets(self) -> BitMap64:
        return offset_bitmap(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Group:
    """Audited ranges that overlap one another, or a single range without overlaps."""

    audited: tuple[CommittedRange, ...]
    others: tuple[CommittedRange, ...]
    """Ranges outside the audit that overlap the audited ranges."""

    @property
    def is_single(self) -> bool:
        """Whether the group is a single range, so that its record counts are exact."""
        return len(self.audited) + len(self.others) == 1

    @property
    def offsets(self) -> BitMap64:
        """The offsets of the audited ranges."""
        return claimed_offsets(self.audited)

    @property
    def generations(self) -> Mapping[str, list[CommittedRange]]:
        return by_topic_id((*self.audited, *self.others))

    def bounds(self, claimed: Callable[[CommittedRange], int]) -> dict[str, tuple[int, int]]:
        """Return the minimum and maximum possible number of records within `offsets`, by topic id.

        `claimed` returns the number of records of a range.
        """
        offsets, found = self.offsets, dict[str, tuple[int, int]]()
        for topic_id, ranges in self.generations.items():
            inside = {r: offsets.range_cardinality(r.start, r.end) for r in ranges}
            outside = {r: r.end - r.start - inside[r] for r in ranges}
            lowest = _heaviest_chain({r: max(0, claimed(r) - outside[r]) for r in ranges})
            highest = sum(min(claimed(r), inside[r]) for r in ranges)
            found[topic_id] = lowest, min(highest, len(claimed_offsets(ranges) & offsets))
        return found

    def lowest(self, claimed: Callable[[CommittedRange], int]) -> int:
        """Return the smallest possible number of records within `offsets`, by the audited ranges of one topic id.

        An offset without a record is a hole of each range that has it. So a cover without holes makes this exact.
        """
        return len(self.offsets) - _lightest_cover({r: r.end - r.start - claimed(r) for r in self.audited})

    def missing(self, short: Callable[[CommittedRange], int]) -> int:
        """Return the minimum number of distinct missing records.

        `short` returns the number of missing records of a range.
        """
        return _heaviest_chain({r: short(r) for r in self.audited})


def groups(audited: Iterable[CommittedRange], others: Iterable[CommittedRange] = ()) -> list[Group]:
    """Group the audited ranges with every range that overlaps them, in order. Leaves out empty ranges."""
    found: list[tuple[list[CommittedRange], list[CommittedRange]]] = []
    reach = -1
    marked = [*((r, True) for r in audited), *((r, False) for r in others)]
    for r, is_audited in sorted((m for m in marked if m[0].end > m[0].start), key=lambda m: m[0]):
        if r.start >= reach:
            found.append(([], []))
        found[-1][0 if is_audited else 1].append(r)
        reach = max(reach, r.end)
    return [Group(tuple(mine), tuple(rest)) for mine, rest in found if mine]


def _heaviest_chain(weights: Mapping[CommittedRange, int]) -> int:
    """Divide the ranges into as few chains without overlaps as possible, and return the largest sum of weights of a
    chain.
    """
    chains: list[tuple[int, int]] = []
    for r, weight in sorted(weights.items()):
        at = next((i for i, (end, _) in enumerate(chains) if end <= r.start), len(chains))
        before = chains[at][1] if at < len(chains) else 0
        chains[at : at + 1] = [(r.end, before + weight)]
    return max((total for _, total in chains), default=0)


def _lightest_cover(weights: Mapping[CommittedRange, int]) -> int:
    """Return the smallest sum of weights of ranges that together cover the same offsets as all of them."""
    total, reach = 0, -1
    covers: list[tuple[int, int]] = []
    for r, weight in sorted(weights.items()):
        if r.start > reach:
            total += _cheapest(covers, reach)
            covers = [(0, r.start)]
        while covers[0][1] < r.start:
            heappop(covers)
        heappush(covers, (covers[0][0] + weight, r.end))
        reach = max(reach, r.end)
    return total + _cheapest(covers, reach)


def _cheapest(covers: Iterable[tuple[int, int]], reach: int) -> int:
    """Return the smallest weight of the covers that end at `reach`; 0 without covers."""
    return min((weight for weight, end in covers if end == reach), default=0)


def by_topic_id(ranges: Iterable[CommittedRange]) -> dict[str, list[CommittedRange]]:
    """Group the ranges by topic id."""
    found: dict[str, list[CommittedRange]] = defaultdict(list)
    for r in ranges:
        found[r.topic_id].append(r)
    return dict(found)


def merged_ranges(ranges: Iterable[CommittedRange]) -> list[Span]:
    """Merge ranges that touch or overlap. Returns the merged ranges in order, as `[start, end)`, without empty
    ranges.
    """
    whole: list[Span] = []
    for r in sorted(r for r in ranges if r.end > r.start):
        if whole and r.start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], r.end))
        else:
            whole.append((r.start, r.end))
    return whole


def covered(spans: Iterable[Span]) -> BitMap64:
    """Return all offsets of the spans, which must not be empty."""
    whole = BitMap64()
    for start, end in spans:
        whole.add_range(start, end)
    return whole


def claimed_offsets(ranges: Iterable[CommittedRange]) -> BitMap64:
    return covered(merged_ranges(ranges))


def claimed_again(ranges: Iterable[CommittedRange]) -> BitMap64:
    """Return the offsets that are in more than one of the ranges."""
    found, reach = list[Span](), 0
    for r in sorted(ranges):
        found.append((r.start, min(r.end, reach)))
        reach = max(reach, r.end)
    return covered(span for span in found if span[0] < span[1])


def accepted_loss(ranges: Iterable[CommittedRange], given_up: Iterable[Span]) -> BitMap64:
    """Return the offsets whose loss an operator accepted after a rollback, without those that were committed again.

    `ranges` are of the current topic, whose offsets `given_up` has.
    """
    return covered(given_up) - claimed_again(ranges)
