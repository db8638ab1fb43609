"""Plans the effects of a new position, without a table."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from frazil.commit.marker import (
    NO_TRANSACTION,
    BatchKey,
    BatchOutcome,
    LastTransaction,
    Marker,
    first_marker,
    keep_same_topics,
    landed_ends,
)
from frazil.commit.reset_plan import (
    NO_OFFSETS,
    AvailableOffsets,
    Offsets,
    StateBeforeReset,
    clamp_to_available,
    list_moves,
    marker_after_reset,
)
from frazil.offsets.spans import SourceIdentity

SOURCE = SourceIdentity("cluster", {"t": "id-1"})
PARTITIONS = [("t", 0), ("t", 1), ("t", 2)]
offsets = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 100))


@st.composite
def availables(draw: st.DrawFn) -> AvailableOffsets:
    first = {tp: draw(st.integers(0, 100)) for tp in PARTITIONS}
    return AvailableOffsets(SOURCE, first, {tp: first[tp] + draw(st.integers(0, 100)) for tp in PARTITIONS})


@given(offsets, availables())
def test_a_clamped_position_is_readable_in_every_partition(wanted, now: AvailableOffsets):
    target = clamp_to_available(wanted, now)
    assert target.keys() == now.first.keys()
    for tp, offset in target.items():
        assert now.first[tp] <= offset <= now.end[tp]
        if now.first[tp] <= wanted.get(tp, -1) <= now.end[tp]:
            assert offset == wanted[tp]


@given(offsets, availables(), st.data())
def test_a_reset_move_either_skips_or_repeats_offsets_and_reports_how_many(
    held, now: AvailableOffsets, data: st.DataObject
):
    target = {tp: data.draw(st.integers(now.first[tp], now.end[tp])) for tp in PARTITIONS}
    for move in list_moves(target, current=held, available=now):
        known = held.get((move.topic, move.partition))
        if known is None:
            assert (move.skipped, move.deleted, move.repeated) == (0, 0, 0)
            continue
        assert known + move.skipped - move.repeated == move.target
        assert move.skipped == 0 or move.repeated == 0
        assert 0 <= move.deleted <= move.skipped
        assert move.deleted == len([o for o in range(known, move.target) if o < move.first])


def test_a_reset_takes_the_epoch_and_keeps_the_watermark():
    source = SourceIdentity("cluster", {"t": "id-1", "old": "o"})
    before = Marker(
        "s", BatchKey(3, 7), BatchKey(3, 7), {("t", 0): 10, ("old", 0): 5}, source,
        max_event_times_us={("t", 0): 99}, idle=frozenset({("t", 0)}), watermark_us=99, batches={3: 7},
        transaction=LastTransaction("571", "24"),
    )  # fmt: skip
    seen = StateBeforeReset(before, "text", before.offsets, before.source, rolled_back=False)
    after = marker_after_reset(seen, stream="s", epoch=4, target={("t", 0): 2}, source=SOURCE)
    assert after.key == BatchKey(4, 0)
    assert after.offsets == {("t", 0): 2, ("old", 0): 5}
    assert (after.watermark_us, after.idle, after.settled) == (99, frozenset(), BatchKey(3, 7))
    assert after.transaction == NO_TRANSACTION
    assert after.outcome_of(BatchKey(3, 8)) is BatchOutcome.NOT_COMMITTED


def test_a_recreated_topic_drops_its_offsets_and_event_times_from_the_marker():
    remade = SourceIdentity("cluster", {"t": "id-2"})
    before = Marker("s", BatchKey(1, 1), None, {("t", 0): 10}, SOURCE, max_event_times_us={("t", 0): 99})
    seen = StateBeforeReset(before, "text", before.offsets, before.source, rolled_back=False)
    after = marker_after_reset(seen, stream="s", epoch=2, target={("t", 0): 0}, source=remade)
    assert after.max_event_times_us == {}
    assert after.source == remade
    assert keep_same_topics({("t", 0): 10}, SOURCE, remade) == {}
    assert keep_same_topics({("t", 0): 10}, SOURCE, SourceIdentity("another", {"t": "id-1"})) == {}


def test_a_reset_to_a_recreated_topic_records_where_offsets_of_the_former_topic_end():
    def after(before: Marker, target: Offsets, *, truncated_at: Offsets = NO_OFFSETS) -> Marker:
        seen = StateBeforeReset(before, "text", before.offsets, before.source, rolled_back=False)
        found = marker_after_reset(
            seen, stream="s", epoch=before.key.epoch + 1, target=target, source=remade, truncated_at=truncated_at
        )
        return Marker.from_property("s", found.to_property())

    remade, at = SourceIdentity("cluster", {"t": "id-2", "u": "id-1"}), {("t", 0): 10, ("t", 1): 4, ("u", 0): 7}
    before = Marker("s", BatchKey(1, 1), None, at, SourceIdentity("cluster", {"t": "id-1", "u": "id-1"}))
    again = after(before, {("t", 0): 0, ("t", 1): 0})
    assert again.landed == {("t", 0): 0, ("t", 1): 0}
    back = after(dataclasses.replace(again, offsets={**at, ("t", 0): 6}), {("t", 0): 2, ("u", 0): 1})
    assert back.landed == {("t", 0): 6, ("t", 1): 4}
    truncated = after(back, {("t", 0): 2, ("u", 0): 1}, truncated_at={("t", 0): 3, ("u", 0): 1})
    assert truncated.landed == {("t", 0): 3, ("t", 1): 4, ("u", 0): 1}
    # A table may have fewer batches than the main one, and some of a former topic.
    assert landed_ends(before, again) == {("t", 0): 0, ("t", 1): 0}
    assert landed_ends(dataclasses.replace(again, offsets={("t", 0): 5}), again) == {("t", 0): 5, ("t", 1): 0}
    assert landed_ends(dataclasses.replace(back, offsets={("t", 0): 2}), back) == back.landed


def test_a_marker_without_a_past_commits_no_journal_of_earlier_epochs():
    seen = StateBeforeReset(None, "edited", {}, None, rolled_back=False)
    after = marker_after_reset(seen, stream="s", epoch=9, target={("t", 0): 2}, source=SOURCE)
    assert after.outcome_of(BatchKey(8, 1)) is BatchOutcome.UNKNOWN
    assert after.offsets == {("t", 0): 2}


def test_a_reset_to_a_truncation_point_records_which_offsets_have_two_records():
    source = SourceIdentity("cluster", {"t": "id-1"})
    before = dataclasses.replace(
        first_marker("s", epoch=3, offsets={("t", 0): 100, ("t", 1): 40}, source=source),
        leader_epochs={("t", 0): 2, ("t", 1): 2},
    )
    seen = StateBeforeReset(before, "text", before.offsets, source, rolled_back=False)
    target = {("t", 0): 90, ("t", 1): 45}
    after = marker_after_reset(seen, stream="s", epoch=4, target=target, source=source, truncated_at={("t", 0): 90})
    assert after.rewritten == {("t", 0): ((90, 100),)}
    # Beyond the offset that a leader had, later ones may have written.
    assert after.leader_epochs == {("t", 0): 2}
    assert after.given_up == {}


def test_a_reset_after_a_rollback_records_the_abandoned_offsets():
    source = SourceIdentity("cluster", {"t": "id-1"})
    before = first_marker("s", epoch=3, offsets={("t", 0): 100, ("t", 1): 40}, source=source)
    seen = StateBeforeReset(before, "text", {("t", 0): 70, ("t", 1): 40}, source, rolled_back=True)
    accepted = marker_after_reset(seen, stream="s", epoch=4, target=before.offsets, source=source)
    assert accepted.given_up == {("t", 0): ((70, 100),)}
    assert marker_after_reset(seen, stream="s", epoch=4, target=seen.held, source=source).given_up == {}
