"""Computes the minimum and maximum number of records in overlapping committed ranges. Ranges overlap after a reset, a
backfill or the recreation of a topic. A record in several ranges counts once, so the sum of their counts is only an
upper bound. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from pyroaring import BitMap64

from frazil.offsets.spans import Span, covered_offsets, join_spans, offset_bitmap

ByTopicId = Mapping[str, BitMap64]
"""Offsets by topic id. Recreated topics have several ids for one name."""


@dataclass(frozen=True, slots=True, order=True)
class CommittedRange:
    """A claim of one commit record: the records in `[start, end)` became rows or dead letters, or were dropped."""

    start: int
    end: int
    records: int
    rejected: int
    topic_id: str
    selects: bool = False
    """Whether a backfill read only certain event times. Other records are then not missing."""
    dropped: int = 0
    """Records that the stream's transform dropped."""
    epoch: int | None = field(default=None, compare=False)
    """The writer's epoch; None for a backfill."""
    leader_epoch: int | None = field(default=None, compare=False)
    """Epoch of the leader that served the records before `end`, if known."""

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
        """Return the lowest and highest number of records within `offsets`, by topic id."""
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

        `claimed` returns the number of a range's records according to its commit record. Its other offsets are gaps. Of
        all selections of ranges that cover all offsets, one has the fewest gaps. The result is the number of offsets
        minus these gaps. It is exact without gaps.
        """
        return len(self.offsets) - _min_cover_weight({r: r.end - r.start - claimed(r) for r in self.audited})

    def missing(self, short: Callable[[CommittedRange], int]) -> int:
        """Return the minimum number of distinct missing records. `short` returns how many one range is missing."""
        return _max_chain_weight({r: short(r) for r in self.audited})


def group_overlapping_ranges(
    audited: Iterable[CommittedRange], others: Iterable[CommittedRange] = ()
) -> list[OverlappingRanges]:
    """Group each audited range with all ranges that overlap it, in order. Skips empty ranges."""
    grouped: list[tuple[list[CommittedRange], list[CommittedRange]]] = []
    reach = -1
    marked = [*((r, True) for r in audited), *((r, False) for r in others)]
    for r, is_audited in sorted((m for m in marked if m[0].end > m[0].start), key=lambda m: m[0]):
        if r.start >= reach:
            grouped.append(([], []))
        grouped[-1][0 if is_audited else 1].append(r)
        reach = max(reach, r.end)
    return [OverlappingRanges(tuple(own), tuple(rest)) for own, rest in grouped if own]


def _max_chain_weight(weights: Mapping[CommittedRange, int]) -> int:
    """Divide the ranges into the fewest chains without overlaps. Return the weight of the heaviest chain."""
    chains: list[tuple[int, int]] = []
    for r, weight in sorted(weights.items()):
        at = next((i for i, (end, _) in enumerate(chains) if end <= r.start), len(chains))
        before = chains[at][1] if at < len(chains) else 0
        chains[at : at + 1] = [(r.end, before + weight)]
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
    """Return the topic's offsets whose loss was accepted. Omits offsets that were committed again since `epoch`."""
    since = claimed_offsets(r for r in ranges if r.epoch is None or r.epoch >= epoch)
    return covered_offsets(given_up) - (offsets_claimed_again(ranges) & since)
