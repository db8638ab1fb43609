"""The audit's comparison: it accepts a table with each record once, and identifies each kind of damage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from frazil.audit.claims import Claims, CommittedRange, OverlappingRanges
from frazil.audit.compare import (
    compare_counts,
    compare_partition,
    compare_repeats,
    count_repeats,
    is_counted_once,
)
from frazil.audit.evidence import Evidence, RemainingOffsets
from frazil.audit.findings import Audit, Finding, FindingKind
from frazil.audit.stream_audit import _count_partition
from frazil.audit.upserts import _count_partitions
from frazil.offsets.spans import offset_bitmap
from frazil.offsets.tally import OffsetTally, first_spans

TOPIC_ID = "id-1"


@dataclass(frozen=True)
class World:
    """A topic-partition whose records landed exactly once."""

    kafka: frozenset[int]
    rejected: frozenset[int]
    bounds: tuple[int, ...]

    def evidence(self, *, rows: list[int] | None = None, dead_letters: list[int] | None = None) -> Evidence:
        landed = sorted(self.kafka - self.rejected) if rows is None else rows
        return Evidence(
            topic="t",
            partition=0,
            marker=self.bounds[-1],
            topic_id=TOPIC_ID,
            ranges=tuple(self._range(a, b) for a, b in zip(self.bounds, self.bounds[1:], strict=False)),
            rows=OffsetTally(landed),
            dead_letters=OffsetTally(sorted(self.rejected) if dead_letters is None else dead_letters),
            kafka=RemainingOffsets(0, BitMap64(sorted(self.kafka))),
        )

    def _range(self, start: int, end: int) -> CommittedRange:
        here = {o for o in self.kafka if start <= o < end}
        return CommittedRange(start, end, len(here - self.rejected), len(here & self.rejected), TOPIC_ID)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    end = draw(st.integers(1, 60))
    kafka = draw(st.frozensets(st.integers(0, end - 1)))
    rejected = draw(st.frozensets(st.sampled_from(sorted(kafka)))) if kafka else frozenset()
    inner = draw(st.sets(st.integers(1, end)))
    return World(kafka, rejected, (0, *sorted(inner | {end})))


def wrong(found: tuple[Finding, ...]) -> list[tuple[FindingKind, int]]:
    return [(f.kind, f.count) for f in found if f.kind.is_wrong]


@given(worlds())
def test_rows_that_landed_exactly_once_are_clean_with_and_without_kafka(world: World):
    assert compare_partition(world.evidence()) == ()
    assert compare_partition(replace(world.evidence(), kafka=None)) == ()


@given(worlds(), st.data())
def test_rows_that_exist_twice_are_reported_only_as_duplicates(world: World, data: st.DataObject):
    landed = sorted(world.kafka - world.rejected)
    assume(landed)
    again = data.draw(st.lists(st.sampled_from(landed), min_size=1))
    assert wrong(compare_partition(world.evidence(rows=landed + again))) == [(FindingKind.DUPLICATES, len(again))]


@given(worlds(), st.data())
def test_deleted_rows_are_missing_by_kafka_and_miscounted_by_the_commit_records(world: World, data: st.DataObject):
    landed = sorted(world.kafka - world.rejected)
    assume(landed)
    gone = data.draw(st.sets(st.sampled_from(landed), min_size=1))
    harmed = world.evidence(rows=[o for o in landed if o not in gone])
    assert wrong(compare_partition(harmed)) == [(FindingKind.MISSING, len(gone))]
    assert set(harmed.missing) == gone
    assert wrong(compare_partition(replace(harmed, kafka=None))) == [(FindingKind.MISCOUNTED, len(gone))]


@given(worlds(), st.data())
def test_deleted_dead_letters_are_reported_as_missing(world: World, data: st.DataObject):
    assume(world.rejected)
    gone = data.draw(st.sets(st.sampled_from(sorted(world.rejected)), min_size=1))
    harmed = world.evidence(dead_letters=sorted(world.rejected - gone))
    assert (FindingKind.MISSING, len(gone)) in wrong(compare_partition(harmed))
    assert wrong(compare_partition(replace(harmed, kafka=None))) == [(FindingKind.MISCOUNTED, len(gone))]


@given(worlds(), st.data())
def test_a_record_that_is_both_a_row_and_a_dead_letter_is_reported(world: World, data: st.DataObject):
    assume(world.rejected)
    both = data.draw(st.sets(st.sampled_from(sorted(world.rejected)), min_size=1))
    harmed = world.evidence(rows=sorted((world.kafka - world.rejected) | both))
    assert wrong(compare_partition(harmed)) == [(FindingKind.ROW_AND_DEAD_LETTER, len(both))]


@pytest.mark.parametrize(
    ("rows", "dead_letters", "with_kafka", "where"),
    [
        ([0, 3, 4, 5], [], True, "first between offsets 2 and 6"),
        ([0, 4, 5], [3, 6], False, "first between offsets 2 and 6; `--source` names them"),
    ],
    ids=["a dead letter that Kafka names", "a row that became a dead letter"],
)
def test_an_offset_gap_is_not_reported_as_a_missing_record(
    rows: list[int], dead_letters: list[int], with_kafka: bool, where: str
) -> None:
    world = World(frozenset({0, 3, 4, 5, 6}), frozenset({6}), (0, 2, 7))
    harmed = world.evidence(rows=rows, dead_letters=dead_letters)
    found = compare_partition(harmed if with_kafka else replace(harmed, kafka=None))
    assert [f.sentence.partition("count, ")[2] for f in found if " is missing " in f.sentence] == [where]


def test_a_row_with_a_dead_letter_does_not_hide_another_surplus_row() -> None:
    world = World(frozenset({0, 1, 3}), frozenset(), (0, 4))
    harmed = replace(world.evidence(rows=[0, 1, 2, 3], dead_letters=[1]), kafka=None)
    assert wrong(compare_partition(harmed)) == [(FindingKind.ROW_AND_DEAD_LETTER, 1), (FindingKind.MISCOUNTED, 1)]


@given(worlds(), st.sets(st.integers(0, 20), min_size=1))
def test_rows_beyond_the_marker_are_reported_as_unclaimed(world: World, beyond: set[int]):
    landed = sorted(world.kafka - world.rejected) + [world.bounds[-1] + n for n in sorted(beyond)]
    assert wrong(compare_partition(world.evidence(rows=landed))) == [(FindingKind.UNCLAIMED, len(beyond))]


def test_offsets_skipped_by_a_reset_are_a_note_and_rows_at_them_would_be_unclaimed():
    skipping = Evidence(
        topic="t",
        partition=0,
        marker=30,
        topic_id=TOPIC_ID,
        ranges=(CommittedRange(0, 10, 10, 0, TOPIC_ID), CommittedRange(20, 30, 10, 0, TOPIC_ID)),
        rows=OffsetTally([*range(10), *range(20, 30)]),
        dead_letters=OffsetTally(),
        kafka=RemainingOffsets(0, offset_bitmap(0, 30)),
    )
    (note,) = compare_partition(skipping)
    assert (note.kind, note.count, "10 to 19" in note.sentence) == (FindingKind.SKIPPED, 10, True)
    assert wrong(compare_partition(replace(skipping, rows=OffsetTally(range(30))))) == [(FindingKind.UNCLAIMED, 10)]
    (first, *_) = skipping.ranges
    at_once = replace(skipping, ranges=(first,), rows=OffsetTally(range(10)))
    (note,) = compare_partition(at_once)
    assert (note.kind, note.count, "10 to 29" in note.sentence) == (FindingKind.SKIPPED, 20, True), "before a commit"
    assert compare_partition(replace(at_once, marker=5)) == (), "back is no skip"


def test_a_skipped_and_accepted_gap_is_reported_and_counted_once():
    ranges = (CommittedRange(0, 50, 50, 0, TOPIC_ID), CommittedRange(70, 80, 10, 0, TOPIC_ID))
    evidence = Evidence(
        "t", 0, 80, TOPIC_ID, ranges, OffsetTally([*range(50), *range(70, 80)]), OffsetTally(), given_up=((50, 70),)
    )
    (note,) = compare_partition(evidence)
    assert (note.kind, note.count) == (FindingKind.SKIPPED, 20)
    assert note.sentence.endswith("on-gap: 50 to 69")
    (wider,) = compare_partition(
        replace(evidence, rows=OffsetTally([*range(48), *range(70, 80)]), given_up=((48, 70),))
    )
    assert (wider.count, wider.sentence.endswith("on-gap: 48 to 69")) == (22, True)


def test_records_deleted_by_retention_are_reported_as_unchecked_and_still_counted():
    evidence = Evidence(
        topic="t",
        partition=0,
        marker=100,
        topic_id=TOPIC_ID,
        ranges=(CommittedRange(0, 100, 100, 0, TOPIC_ID),),
        rows=OffsetTally(range(100)),
        dead_letters=OffsetTally(),
        kafka=RemainingOffsets(60, offset_bitmap(60, 100)),
    )
    (note,) = compare_partition(evidence)
    assert (note.kind, note.count) == (FindingKind.UNCHECKED, 60)
    assert note.sentence == (
        "Kafka no longer has offsets before 60: 60 committed offsets were checked against commit records only"
    )
    lacking = replace(evidence, rows=OffsetTally([*range(50), *range(55, 100)]))
    assert wrong(compare_partition(lacking)) == [(FindingKind.MISCOUNTED, 5)]


def test_an_offset_may_occur_once_for_each_topic_that_had_the_name():
    ranges = (CommittedRange(0, 5, 5, 0, "old"), CommittedRange(0, 3, 3, 0, TOPIC_ID))
    evidence = Evidence(
        "t",
        0,
        3,
        TOPIC_ID,
        ranges,
        OffsetTally([*range(5), *range(3)]),
        OffsetTally(),
        RemainingOffsets(0, offset_bitmap(0, 3)),
    )
    assert wrong(compare_partition(evidence)) == []
    assert wrong(compare_partition(replace(evidence, rows=OffsetTally([*range(5), *range(3), 4])))) == [
        (FindingKind.DUPLICATES, 1)
    ]


def test_surplus_rows_are_no_distinct_records():
    ranges = (CommittedRange(0, 5, 5, 0, TOPIC_ID),)
    evidence = Evidence("t", 0, 5, TOPIC_ID, ranges, OffsetTally([*range(5), 2, 3]), OffsetTally())
    assert [(n.rows, n.distinct, n.duplicates) for n in [_count_partition(evidence)]] == [(7, 5, 2)]


def test_only_offsets_of_surplus_rows_are_named_where_a_former_topic_had_the_same_offsets():
    """People delete what is named."""
    ranges = (CommittedRange(0, 43, 43, 0, "old"), CommittedRange(0, 7, 7, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 7, TOPIC_ID, ranges, OffsetTally([*range(43), *range(7)]), OffsetTally())
    assert compare_partition(evidence) == ()
    copied = replace(evidence, rows=OffsetTally([*range(43), *range(7), 17]))
    (found,) = compare_partition(copied)
    assert (found.kind, found.sentence) == (FindingKind.DUPLICATES, "1 row too many in the table, at offset 17")
    thrice = replace(evidence, rows=OffsetTally([*range(43), *range(7), 3, 17]))
    (found,) = compare_partition(thrice)
    assert (found.count, found.sentence) == (
        2,
        "2 rows too many in the table, at offset 17, or at offsets that a former topic of this name also had",
    )


def test_rows_of_a_former_topic_are_compared_only_with_commit_records():
    ranges = (CommittedRange(0, 43, 42, 0, "old"), CommittedRange(0, 7, 7, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 7, TOPIC_ID, ranges, OffsetTally([*range(42), *range(7)]), OffsetTally())
    assert compare_partition(evidence) == (), "commit records alone say nothing of Kafka"
    with_kafka = replace(evidence, kafka=RemainingOffsets(0, offset_bitmap(0, 7)))
    (note,) = compare_partition(with_kafka)
    assert (note.kind, note.count) == (FindingKind.UNCHECKED, 42)
    assert note.sentence == (
        "42 rows are of a former topic of this name and cannot be compared with Kafka: they were checked against "
        "commit records only"
    )
    assert Audit("s", (), (note,), 1).clean
    missing = compare_partition(replace(with_kafka, rows=OffsetTally([*range(41), *range(7)])))
    assert wrong(missing) == [(FindingKind.MISCOUNTED, 1)]


def test_rows_of_a_former_topic_whose_offsets_were_read_twice_are_not_compared():
    ranges = (
        CommittedRange(0, 43, 30, 0, "old"),
        CommittedRange(0, 7, 5, 0, "old"),
        CommittedRange(0, 7, 7, 0, TOPIC_ID),
    )
    evidence = Evidence("t", 0, 7, TOPIC_ID, ranges, OffsetTally([*range(30), *range(7)]), OffsetTally())
    found = compare_partition(replace(evidence, kafka=RemainingOffsets(0, offset_bitmap(0, 7))))
    assert not Audit("s", (), found, 1).complete


def test_offsets_that_kafka_gave_twice_are_not_named_as_surplus():
    evidence = Evidence(
        "t", 0, 10, TOPIC_ID, (CommittedRange(0, 10, 10, 0, TOPIC_ID),), OffsetTally([*range(10), 2, 8]),
        OffsetTally(), rewritten=((5, 10),),
    )  # fmt: skip
    (found, _) = compare_partition(evidence)
    assert (found.count, found.sentence) == (1, "1 row too many in the table, at offset 2")


def test_rows_before_the_first_commit_record_are_reported_as_a_note():
    evidence = Evidence(
        "t", 0, 20, TOPIC_ID, (CommittedRange(10, 20, 10, 0, TOPIC_ID),), OffsetTally(range(5, 20)), OffsetTally()
    )
    (note,) = compare_partition(evidence)
    assert (note.kind, note.count) == (FindingKind.NOT_COMPARED, 5)


def test_one_offset_that_a_backfill_read_again_hides_no_row_of_its_batch():
    ranges = (CommittedRange(0, 100, 100, 0, TOPIC_ID), CommittedRange(19, 20, 1, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 100, TOPIC_ID, ranges, OffsetTally(range(100)), OffsetTally())
    assert compare_partition(evidence) == ()
    lacking = replace(evidence, rows=OffsetTally(range(19, 100)))
    assert wrong(compare_partition(lacking)) == [(FindingKind.MISCOUNTED, 19)]
    retained = replace(lacking, kafka=RemainingOffsets(50, offset_bitmap(50, 100)))
    assert wrong(compare_partition(retained)) == [(FindingKind.MISCOUNTED, 19)]


def test_overlapping_ranges_of_sparse_offsets_are_not_compared_unless_kafka_has_them():
    ranges = (CommittedRange(0, 100, 50, 0, TOPIC_ID), CommittedRange(40, 60, 10, 0, TOPIC_ID))
    even = BitMap64(range(0, 100, 2))
    evidence = Evidence("t", 0, 100, TOPIC_ID, ranges, OffsetTally(list(even)), OffsetTally())
    (note,) = compare_partition(evidence)
    assert (note.kind, note.count) == (FindingKind.NOT_COMPARED, 10)
    assert note.sentence.endswith("; use `--source`")
    assert compare_partition(replace(evidence, kafka=RemainingOffsets(0, even))) == ()
    retained = compare_partition(replace(evidence, kafka=RemainingOffsets(50, even & offset_bitmap(50, 100))))
    assert [f.sentence.rpartition("; ")[2] for f in retained if f.kind is FindingKind.NOT_COMPARED] == [
        "Kafka no longer has all of them"
    ]


def test_overlapping_ranges_without_holes_are_compared_row_for_row():
    ranges = (CommittedRange(0, 100, 98, 2, TOPIC_ID), CommittedRange(50, 150, 100, 0, TOPIC_ID))
    dead_letters = OffsetTally([10, 20])
    evidence = Evidence("t", 0, 150, TOPIC_ID, ranges, OffsetTally(sorted(set(range(150)) - {10, 20})), dead_letters)
    assert compare_partition(evidence) == ()
    lacking = replace(evidence, rows=OffsetTally(sorted(set(range(150)) - {5, 10, 20, 140})))
    assert [(f.kind, f.count) for f in compare_partition(lacking)] == [(FindingKind.MISCOUNTED, 2)]


def test_missing_rows_are_located_as_narrowly_as_ranges_and_rows_allow():
    """Two batches; the second has a gap of transaction markers at 160 to 169."""
    ranges = (CommittedRange(0, 100, 100, 0, TOPIC_ID), CommittedRange(100, 200, 90, 0, TOPIC_ID))

    def where(*missing: int) -> str:
        rows = OffsetTally(sorted(set(range(200)) - {*range(160, 170), *missing}))
        (found,) = compare_partition(Evidence("t", 0, 200, TOPIC_ID, ranges, rows, OffsetTally()))
        return found.sentence.partition("count, ")[2]

    assert where(7, 8, 9, 30) == "at offsets 7 to 9, 30"
    assert where(150, 151) == "first between offsets 150 and 169; `--source` names them"
    assert where(30, 150) == "first at offset 30; `--source` names them"


def test_ranges_of_which_some_cover_the_others_without_holes_are_compared():
    sparse = CommittedRange(10, 90, 20, 0, TOPIC_ID)
    ranges = (CommittedRange(0, 50, 50, 0, TOPIC_ID), sparse, CommittedRange(50, 100, 50, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 100, TOPIC_ID, ranges, OffsetTally(range(100)), OffsetTally())
    assert compare_partition(evidence) == ()
    assert wrong(compare_partition(replace(evidence, rows=OffsetTally(range(97))))) == [(FindingKind.MISCOUNTED, 3)]


@given(worlds(), st.data())
def test_missing_rows_are_never_clean_however_ranges_overlap(world: World, data: st.DataObject):
    end = world.bounds[-1]
    spans_ = data.draw(st.lists(st.tuples(st.integers(0, end - 1), st.integers(1, end)), max_size=4))
    again = [world._range(a, b) for a, b in spans_ if a < b]
    evidence = replace(world.evidence(), kafka=None)
    evidence = replace(evidence, ranges=(*evidence.ranges, *again))
    assert wrong(compare_partition(evidence)) == []
    landed = sorted(world.kafka - world.rejected)
    assume(landed)
    gone = data.draw(st.sets(st.sampled_from(landed), min_size=1))
    found = compare_partition(replace(evidence, rows=OffsetTally([o for o in landed if o not in gone])))
    assert [f for f in found if f.kind.is_wrong or f.kind is FindingKind.NOT_COMPARED]
    assert sum(f.count for f in found) >= len(gone), "the finding, or what was not compared, covers every missing row"


def test_an_empty_range_does_not_make_a_range_around_it_inexact():
    ranges = (CommittedRange(0, 10, 8, 0, TOPIC_ID), CommittedRange(5, 5, 0, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 10, TOPIC_ID, ranges, OffsetTally(range(8)), OffsetTally())
    assert is_counted_once(evidence)
    assert compare_partition(evidence) == ()
    assert wrong(compare_partition(replace(evidence, rows=OffsetTally(range(9))))) == [(FindingKind.MISCOUNTED, 1)]


def test_a_range_beyond_the_audited_offsets_counts_at_least_the_records_that_do_not_fit_outside():
    group = OverlappingRanges((CommittedRange(10, 20, 10, 0, "a"),), (CommittedRange(15, 25, 8, 0, "b"),))
    assert group.bounds(lambda r: r.records) == {"a": (10, 10), "b": (3, 5)}


def of_dedupe(rows: int, **more: Any) -> Evidence:
    ranges = (CommittedRange(0, 10, 10, 0, TOPIC_ID),)
    return Evidence("t", 0, 10, TOPIC_ID, ranges, OffsetTally(range(rows)), OffsetTally(), drops_repeats=True, **more)


def compare_dedupe(evidence: list[Evidence], repeats: int | None, **more: Any) -> tuple[Finding, ...]:
    return compare_repeats(evidence, count_repeats(evidence, Claims(repeats=repeats)), **more)


def test_rows_of_a_stream_that_drops_repeats_are_as_many_as_its_records_less_the_dropped_ones():
    assert compare_dedupe([of_dedupe(8)], 2, stream="s") == ()
    assert wrong(compare_dedupe([of_dedupe(7)], 2, stream="s")) == [(FindingKind.MISCOUNTED, 1)]
    assert wrong(compare_dedupe([of_dedupe(9)], 2, stream="s")) == [(FindingKind.MISCOUNTED, 1)]


@pytest.mark.parametrize(
    ("evidence", "repeats"),
    [(of_dedupe(7), None), (of_dedupe(7, given_up=((8, 10),)), 2), (of_dedupe(7, rewritten=((8, 10),)), 2)],
)
def test_where_the_number_of_repeats_is_not_known_missing_rows_are_not_compared(
    evidence: Evidence, repeats: int | None
):
    (note,) = compare_dedupe([evidence], repeats, stream="s")
    assert (note.kind, note.count) == (FindingKind.NOT_COMPARED, 3)
    assert compare_dedupe([evidence], repeats, stream="s", by_source=True) == ()


def test_a_rolled_back_and_discarded_batch_is_not_counted_in_repeats_or_rows():
    ranges = (CommittedRange(0, 10, 10, 0, TOPIC_ID), CommittedRange(10, 20, 10, 0, TOPIC_ID))
    lost = Evidence(
        "t", 0, 20, TOPIC_ID, ranges, OffsetTally(range(8)), OffsetTally(), drops_repeats=True, given_up=((10, 20),)
    )
    assert compare_dedupe([lost], 2, stream="s") == ()
    read_again = replace(lost, ranges=(*ranges, CommittedRange(10, 20, 10, 0, TOPIC_ID)))
    assert [f.kind for f in compare_dedupe([read_again], 2, stream="s")] == [FindingKind.NOT_COMPARED]


@pytest.mark.parametrize(("epochs", "notes"), [((1, 2), 0), ((1, 3), 1), ((1, None), 1)])
def test_offsets_that_were_committed_twice_before_their_loss_was_accepted_are_given_up(
    epochs: tuple[int, int | None], notes: int
):
    """An epoch from that of the reset on, or a backfill, committed them again."""
    again = tuple(CommittedRange(10, 20, 10, 0, TOPIC_ID, epoch=epoch) for epoch in epochs)
    lost = replace(of_dedupe(8), ranges=(*of_dedupe(8).ranges, *again), given_up=((10, 20),), given_up_epoch=3)
    assert len(compare_dedupe([lost], 2, stream="s")) == notes


def test_rows_replayed_in_another_period_are_not_counted_in_this_period():
    period = replace(of_dedupe(10), covers_history=False, replayed={TOPIC_ID: BitMap64([8])})
    assert compare_dedupe([period], 2, stream="s") == ()
    assert wrong(compare_dedupe([replace(period, replayed={})], 2, stream="s")) == [(FindingKind.MISCOUNTED, 2)]


def test_a_backfill_of_a_deleted_row_is_not_counted_as_records_without_a_row():
    """Its chunk claims a record that a batch claims too."""
    ranges = (CommittedRange(0, 40, 40, 0, TOPIC_ID), CommittedRange(7, 8, 1, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 40, TOPIC_ID, ranges, OffsetTally(range(20)), OffsetTally(), drops_repeats=True)
    (note,) = compare_dedupe([evidence], None, stream="s")
    assert (note.count, note.sentence.startswith("20 committed records have no row")) == (20, True)


def test_overlapping_ranges_and_offsets_that_kafka_assigned_twice_share_one_note():
    ranges = (CommittedRange(0, 100, 50, 0, TOPIC_ID), CommittedRange(40, 60, 10, 0, TOPIC_ID))
    evidence = Evidence(
        "t", 0, 100, TOPIC_ID, ranges, OffsetTally(range(0, 100, 2)), OffsetTally(), rewritten=((50, 60),)
    )
    assert [(f.kind, f.count) for f in compare_partition(evidence)] == [(FindingKind.NOT_COMPARED, 10)]


def test_rows_beyond_the_count_of_overlapping_ranges_are_reported_as_surplus():
    ranges = (CommittedRange(0, 10, 4, 0, TOPIC_ID), CommittedRange(5, 15, 4, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 15, TOPIC_ID, ranges, OffsetTally(range(15)), OffsetTally())
    assert wrong(compare_partition(evidence)) == [(FindingKind.MISCOUNTED, 7)]
    assert wrong(compare_partition(replace(evidence, rewritten=((0, 15),)))) == []


def test_a_missing_row_that_only_the_former_topic_had_is_reported():
    ranges = (CommittedRange(0, 5, 5, 0, "old"), CommittedRange(0, 3, 3, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 3, TOPIC_ID, ranges, OffsetTally([*range(5), *range(3)]), OffsetTally())
    assert compare_partition(evidence) == ()
    assert wrong(compare_partition(replace(evidence, rows=OffsetTally([0, 0, 1, 2, 2, 3, 4])))) == [
        (FindingKind.MISCOUNTED, 1)
    ]


def test_rows_of_a_rolled_back_batch_are_not_missing_from_the_batch_that_read_them_again():
    rolled_back, again = CommittedRange(0, 10, 10, 0, TOPIC_ID), CommittedRange(0, 10, 6, 4, TOPIC_ID)
    evidence = Evidence(
        "t",
        0,
        10,
        TOPIC_ID,
        (again,),
        OffsetTally(range(6)),
        OffsetTally(range(6, 10)),
        ranges_outside_period=(rolled_back,),
    )
    assert wrong(compare_partition(evidence)) == []


@given(st.lists(st.lists(st.integers(0, 200))))
def test_an_offset_tally_counts_like_a_list_however_its_input_is_split(pieces: list[list[int]]):
    tally = OffsetTally()
    whole: list[int] = []
    for piece in pieces:
        tally.add(piece)
        whole += piece
    assert set(tally.seen) == set(whole)
    assert set(tally.repeated) == {o for o in whole if whole.count(o) > 1}
    assert (tally.rows, tally.copies) == (len(whole), len(whole) - len(set(whole)))


@given(st.sets(st.integers(0, 60)))
def test_spans_name_every_offset_once_and_no_other(offsets: set[int]):
    found = list(first_spans(BitMap64(sorted(offsets)), limit=100))
    assert [o for start, end in found for o in range(start, end)] == sorted(offsets)
    assert list(first_spans(BitMap64(sorted(offsets)), limit=2)) == found[:2]


def test_without_coordinates_counts_are_compared_only_if_no_other_stream_writes_the_table():
    assert wrong(compare_counts(rows=10, claimed=10, other_streams=0, stream="s")) == []
    assert wrong(compare_counts(rows=12, claimed=10, other_streams=0, stream="s")) == [(FindingKind.MISCOUNTED, 2)]
    assert wrong(compare_counts(rows=12, claimed=10, other_streams=1, stream="s")) == []


@given(worlds(), st.data())
def test_a_truncated_log_is_reported_with_the_count_of_records_that_no_table_has(world: World, data: st.DataObject):
    cut = data.draw(st.integers(0, world.bounds[-1] - 1))
    evidence = world.evidence()
    harmed = replace(evidence, kafka=RemainingOffsets(0, evidence.kafka.offsets, cut))
    others = sum(o >= cut for o in world.kafka)
    assert wrong(compare_partition(harmed)) == [(FindingKind.LOG_TRUNCATED, max(others, 1))]


@pytest.mark.parametrize(
    ("declared", "said"), [(False, "coordinates: false"), (True, "its table does not have the columns")]
)
def test_the_reason_why_a_stream_cannot_be_audited_by_offset_is_accurate(declared: bool, said: str):
    (found,) = compare_counts(rows=1, claimed=1, other_streams=0, stream="s", has_coordinates=declared)
    assert f"stores no Kafka coordinates ({said})" in found.sentence


def test_adopted_rows_are_counted_in_addition_to_the_commit_records():
    def findings(rows: int) -> list[tuple[FindingKind, int]]:
        return wrong(compare_counts(rows=rows, claimed=7, other_streams=0, stream="s", adopted=1000))

    assert findings(1007) == []
    assert findings(1005) == [(FindingKind.MISCOUNTED, 2)]


@given(worlds(), st.data())
def test_offsets_that_kafka_assigned_twice_may_have_two_rows_and_are_reported(world: World, data: st.DataObject):
    cut, end = data.draw(st.integers(0, world.bounds[-1] - 1)), world.bounds[-1]
    landed = sorted(world.kafka - world.rejected)
    evidence = world.evidence(rows=landed + [o for o in landed if o >= cut])
    again = CommittedRange(cut, end, sum(o >= cut for o in landed), sum(o >= cut for o in world.rejected), TOPIC_ID)
    found = compare_partition(replace(evidence, ranges=(*evidence.ranges, again), rewritten=((cut, end),)))
    assert wrong(found) == []
    assert [(f.kind, f.count) for f in found] == [(FindingKind.NOT_COMPARED, end - cut)]


@given(worlds(), st.data())
def test_a_loss_accepted_by_a_reset_after_a_rollback_is_a_note_with_and_without_kafka(
    world: World, data: st.DataObject
):
    """Commit records still claim the rows that the rollback removed."""
    held, end = data.draw(st.integers(0, world.bounds[-1] - 1)), world.bounds[-1]
    rows = [o for o in sorted(world.kafka - world.rejected) if o < held]
    dead_letters = [o for o in sorted(world.rejected) if o < held]
    evidence = replace(world.evidence(rows=rows, dead_letters=dead_letters), given_up=((held, end),))
    for kafka in (evidence.kafka, None):
        assert [(f.kind, f.count) for f in compare_partition(replace(evidence, kafka=kafka))] == [
            (FindingKind.SKIPPED, end - held)
        ]


def filtered(world: World, dropped: frozenset[int], *, now: frozenset[int], lost: frozenset[int]) -> Evidence:
    """A world whose transform dropped records. `now` are those that it drops as declared now, and `lost` lost rows."""
    landed = world.kafka - world.rejected - dropped
    evidence = world.evidence(rows=sorted(landed - lost), dead_letters=sorted(world.rejected))
    ranges = tuple(
        replace(
            r,
            records=len([o for o in landed if o in r.offsets]),
            dropped=len([o for o in dropped if o in r.offsets]),
        )
        for r in evidence.ranges
    )
    kafka = replace(evidence.kafka or RemainingOffsets(0, BitMap64()), dropped=BitMap64(now))
    return replace(evidence, ranges=ranges, kafka=kafka)


@given(worlds(), st.data())
def test_records_dropped_by_a_transform_are_not_missing_and_hide_no_missing_row(world: World, data: st.DataObject):
    landed = sorted(world.kafka - world.rejected)
    dropped = data.draw(st.frozensets(st.sampled_from(landed))) if landed else frozenset()
    clean = filtered(world, dropped, now=dropped, lost=frozenset())
    assert compare_partition(clean) == ()
    assert compare_partition(replace(clean, kafka=None)) == ()
    left = sorted(set(landed) - dropped)
    assume(left)
    lost = data.draw(st.frozensets(st.sampled_from(left), min_size=1))
    found = compare_partition(filtered(world, dropped, now=dropped, lost=lost))
    assert wrong(found) == [(FindingKind.MISSING, len(lost))]


def test_records_that_only_a_former_transform_dropped_are_not_compared():
    world = World(frozenset(range(10)), frozenset(), (0, 10))
    former = filtered(world, frozenset({3, 4}), now=frozenset({4}), lost=frozenset())
    assert [(f.kind, f.count) for f in compare_partition(former)] == [(FindingKind.NOT_COMPARED, 1)]


def test_dead_letters_that_a_replay_landed_are_rows_that_their_batch_claims():
    ranges = (CommittedRange(0, 10, 6, 4, TOPIC_ID),)
    replayed, left = {TOPIC_ID: BitMap64([7, 8])}, OffsetTally([6, 9])
    rows = [*range(6), 7, 8]
    found = [
        compare_partition(Evidence("t", 0, 10, TOPIC_ID, ranges, OffsetTally(there), left, replayed=replayed))
        for there in (rows, rows[:-1])
    ]
    assert [wrong(of) for of in found] == [[], [(FindingKind.MISCOUNTED, 1)]]


@pytest.mark.parametrize(("kafka", "gaps"), [(None, None), (RemainingOffsets(0, offset_bitmap(0, 10)), 2)])
def test_gaps_are_counted_only_where_kafka_was_asked(kafka: RemainingOffsets | None, gaps: int | None):
    ranges = (CommittedRange(0, 10, 10, 0, TOPIC_ID),)
    evidence = Evidence("t", 0, 10, TOPIC_ID, ranges, OffsetTally(range(8)), OffsetTally(), kafka)
    assert _count_partition(evidence).gaps == gaps


def test_more_records_than_a_range_can_have_are_miscounted():
    world = World(frozenset(range(10)), frozenset(), (0, 10))
    evidence = filtered(world, frozenset({3}), now=frozenset({3}), lost=frozenset())
    doubled = replace(evidence, rows=OffsetTally(range(10)), ranges=(replace(evidence.ranges[0], records=10),))
    assert wrong(compare_partition(doubled)) == [(FindingKind.MISCOUNTED, 1)]


def test_records_that_a_backfill_dropped_again_count_once():
    ranges = (
        CommittedRange(0, 50, 30, 2, TOPIC_ID, dropped=18),
        CommittedRange(50, 100, 40, 0, TOPIC_ID, dropped=10),
        CommittedRange(10, 20, 1, 0, TOPIC_ID, dropped=9),
        CommittedRange(60, 70, 4, 0, TOPIC_ID, dropped=6),
    )
    rows = [o for o in range(100) if not (11 <= o < 29 or 60 <= o < 70)]
    evidence = Evidence("t", 0, 100, TOPIC_ID, ranges, OffsetTally(rows[2:]), OffsetTally(rows[:2]))
    assert len(rows) + _count_partition(evidence).dropped == 100
    again = (*ranges, CommittedRange(11, 29, 18, 0, TOPIC_ID))
    landed = replace(evidence, ranges=again, rows=OffsetTally([*range(2, 60), *range(70, 100)]))
    assert _count_partition(landed).dropped == 10, "the transform of the backfill keeps the others"


@pytest.mark.parametrize(
    ("own", "of_former", "missing", "unknown"),
    [
        (range(100), range(90), 0, 0),
        (range(100), range(50), 0, 40),
        (range(100), range(0), 0, 90),
        (range(95), range(90), 5, 0),
        (range(10, 100), range(90), 0, 10),
        (range(95), range(50), 5, 40),
        (range(0), range(0), 100, 90),
    ],
)
def test_rows_that_a_former_topic_may_have_lost_are_no_loss_of_a_later_period(
    own: range, of_former: range, missing: int, unknown: int
):
    new, old = CommittedRange(0, 100, 100, 0, TOPIC_ID), CommittedRange(0, 90, 90, 0, "old")
    rows = OffsetTally([*own, *of_former])
    period = Evidence(
        "t", 0, 100, TOPIC_ID, (new,), rows, OffsetTally(), covers_history=False, ranges_outside_period=(old,)
    )
    found = compare_partition(period)
    assert wrong(found) == ([(FindingKind.MISCOUNTED, missing)] if missing else [])
    assert [f.count for f in found if "may be of a former topic" in f.sentence] == ([unknown] if unknown else [])
    whole = replace(period, ranges=(old, new), ranges_outside_period=(), covers_history=True)
    assert sum(count for _, count in wrong(compare_partition(whole))) == missing + unknown


def test_a_period_counts_its_own_rows_at_offsets_that_a_former_topic_had_too():
    new, old = CommittedRange(0, 100, 100, 0, TOPIC_ID), CommittedRange(0, 400, 390, 10, "old")
    rows = OffsetTally([*range(100), *range(90)])
    period = Evidence(
        "t", 0, 100, TOPIC_ID, (new,), rows, OffsetTally(), covers_history=False, ranges_outside_period=(old,)
    )
    assert [(n.rows, n.distinct, n.of_former_topics) for n in [_count_partition(period)]] == [(100, 100, 0)]
    former = replace(period, ranges=(replace(old, end=100, records=90),), ranges_outside_period=(new,))
    assert [(n.rows, n.of_former_topics) for n in [_count_partition(former)]] == [(90, 90)]


def test_offsets_of_a_former_topic_are_no_part_of_the_committed_range():
    new, old = CommittedRange(5, 14, 9, 0, TOPIC_ID), CommittedRange(0, 58, 58, 0, "old")
    whole = Evidence("t", 0, 14, TOPIC_ID, (old, new), OffsetTally(range(58)), OffsetTally())
    period = replace(whole, covers_history=False)
    for evidence, expected in [(whole, (5, 14)), (period, (5, 14)), (replace(period, ranges=(old,)), (0, 58))]:
        counted = _count_partition(evidence)
        assert (counted.start, counted.end) == expected
    claimed = Claims({("t", 0): (old, new)})
    (changes,) = _count_partitions(claimed, {"t": TOPIC_ID})
    assert (changes.start, changes.end, changes.rows) == (5, 14, 67)


def test_a_replayed_dead_letter_of_an_upsert_counts_as_a_change():
    once = (CommittedRange(0, 10, 7, 3, TOPIC_ID),)
    claimed = Claims({("t", 0): once}, replayed={("t", 0): {TOPIC_ID: BitMap64([1, 2])}})
    assert [(n.rows, n.dead_letters) for n in _count_partitions(claimed, {"t": TOPIC_ID})] == [(9, 1)]


def test_ranges_that_touch_are_counted_together():
    ranges = (
        CommittedRange(0, 10, 10, 0, TOPIC_ID),
        CommittedRange(5, 15, 1, 0, TOPIC_ID),
        CommittedRange(10, 20, 10, 0, TOPIC_ID),
    )
    assert OverlappingRanges(ranges, ()).bounds(lambda r: r.records) == {TOPIC_ID: (20, 20)}


def test_a_range_with_more_rows_than_offsets_counts_at_most_one_record_per_offset():
    several_rows_a_record = (CommittedRange(10, 12, 5, 0, TOPIC_ID), CommittedRange(10, 12, 5, 0, TOPIC_ID))
    evidence = Evidence("t", 0, 12, TOPIC_ID, several_rows_a_record, OffsetTally([10, 11]), OffsetTally())
    assert compare_partition(evidence) == ()


def test_each_reset_to_before_committed_offsets_is_named_with_the_offsets_that_are_read_again():
    first, again = (CommittedRange(0, 10, 10, 0, TOPIC_ID, epoch=1), CommittedRange(0, 5, 5, 0, TOPIC_ID, epoch=3))
    backfill, minute = CommittedRange(8, 10, 2, 0, TOPIC_ID), 60_000
    rows = OffsetTally([*range(10), *range(5), 8, 9])
    evidence = Evidence("t", 0, 5, TOPIC_ID, (first, again, backfill), rows, OffsetTally(), reset_times={2: minute})

    def notes(evidence: Evidence) -> list[tuple[int, str]]:
        found = compare_partition(evidence)
        return [(f.count, f.sentence) for f in found if f.kind is FindingKind.READ_AGAIN]

    sentence = "since the reset of 1970-01-01 00:01:00Z, the stream reads committed offsets again: 0 to 9"
    assert notes(evidence) == [(10, sentence)], "offsets from the position on will be read again"
    assert [count for count, _ in notes(replace(evidence, marker=10))] == [5]
    two = replace(evidence, marker=3, reset_times={4: 2 * minute, 2: minute})
    assert [count for count, _ in notes(two)] == [7, 5], "the newest explains the position"
    assert notes(replace(evidence, reset_times={})) == []
    assert notes(replace(evidence, covers_history=False)) == [(5, sentence.replace("0 to 9", "0 to 4"))]
    skipped = CommittedRange(20, 30, 10, 0, TOPIC_ID, epoch=3)
    later = replace(evidence, marker=30, ranges=(first, skipped, replace(again, epoch=5)), reset_times={4: 2, 2: 1})
    assert [count for count, _ in notes(later)] == [5], "the first reset moved the position forward"
    forward = replace(evidence, marker=8, ranges=(first, replace(again, end=2)), reset_times={4: minute, 2: 0})
    assert notes(forward)[0] == (2, sentence.replace("0 to 9", "8 to 9")), "back to 0, read up to 2, then on to 8"
