"""Laws of the commit room's values: each round-trips, and continuity never admits a record twice."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from frazil.commit.commit_checks import CommitDecision, check_same_source, classify_batch, classify_dead_letters
from frazil.commit.journal import NO_DEAD_LETTERS, BatchCost, Journal, RuleHashes
from frazil.commit.marker import MAX_EPOCHS, BatchKey, BatchOutcome, Marker, read_marker
from frazil.errors import MarkerUnreadable, TopicRecreated
from frazil.ingest.contract import RangeProgress, StagedFile
from frazil.offsets.spans import SourceIdentity

names = st.text(st.characters(categories=["Ll", "Lu", "Nd"], include_characters="._-"), min_size=1, max_size=12)
topic_partitions = st.tuples(names, st.integers(0, 4000))
offsets = st.integers(0, 2**63 - 1)
times_us = st.integers(-(2**62), 2**62)
keys = st.builds(BatchKey, st.integers(1, 10**6), st.integers(0, 10**6))
sources = st.builds(SourceIdentity, names, st.dictionaries(names, names, max_size=4))
texts = st.text(max_size=20)
by_field = st.dictionaries(st.integers(1, 99), st.integers(0, 10**9), max_size=4)
bounds = st.dictionaries(st.integers(1, 99), texts, max_size=4)

offset_spans = st.dictionaries(
    topic_partitions, st.lists(st.tuples(offsets, offsets), min_size=1, max_size=2).map(tuple), max_size=2
)
markers = st.builds(
    Marker,
    stream=names,
    key=keys,
    settled=st.none() | keys,
    offsets=st.dictionaries(topic_partitions, offsets),
    source=sources,
    max_event_times_us=st.dictionaries(topic_partitions, times_us),
    idle=st.frozensets(topic_partitions),
    watermark_us=st.none() | times_us,
    snapshot_id=offsets,
    sequence_number=offsets,
    batches=st.dictionaries(st.integers(1, 10**6), st.integers(0, 10**6)),
    leader_epochs=st.dictionaries(topic_partitions, st.integers(0, 9), max_size=3),
    rewritten=offset_spans,
    given_up=offset_spans,
)
files = st.builds(
    StagedFile,
    target=st.sampled_from(["main", "dead-letters"]),
    path=texts,
    records=offsets,
    bytes=offsets,
    schema_id=st.integers(0, 9),
    spec_id=st.integers(0, 9),
    sort_order_id=st.none() | st.integers(0, 9),
    partition=st.lists(st.none() | texts, max_size=3).map(tuple),
    column_sizes=by_field,
    value_counts=by_field,
    null_value_counts=by_field,
    nan_value_counts=by_field,
    lower_bounds=bounds,
    upper_bounds=bounds,
    split_offsets=st.lists(offsets, max_size=3).map(tuple),
)
ranges = st.builds(
    RangeProgress,
    topic=names,
    partition=st.integers(0, 4000),
    start=offsets,
    end=offsets,
    records=offsets,
    rejected=offsets,
    max_event_time_us=st.none() | times_us,
)
journals = st.builds(
    Journal,
    stream=names,
    key=keys,
    table_uuid=names,
    created_at_ms=offsets,
    source=sources,
    progress=st.lists(ranges, max_size=3).map(tuple),
    files=st.lists(files, max_size=3).map(tuple),
    newest_dead_letters=keys,
    idle=st.frozensets(topic_partitions, max_size=3),
    offsets_after=st.dictionaries(topic_partitions, offsets, max_size=3),
    leader_epochs=st.dictionaries(topic_partitions, st.integers(0, 9), max_size=3),
    windows=st.none() | st.dictionaries(times_us, offsets, max_size=3),
    partitions=st.none() | offsets,
    rules=st.builds(RuleHashes, st.dictionaries(names, names, max_size=3), names),
)


@given(markers)
def test_a_marker_survives_a_round_trip_through_its_table_property(marker: Marker):
    assert read_marker({marker.property_name: marker.to_property()}, marker.stream) == marker


@given(journals)
def test_a_journal_survives_serialization(journal: Journal):
    assert Journal.from_bytes(journal.to_bytes()) == journal


@given(journals)
def test_the_rules_in_a_journal_of_an_earlier_version_are_read(journal: Journal):
    rules = RuleHashes({**journal.rules.columns, "a": "1"}, "2")
    raw = json.loads(dataclasses.replace(journal, rules=rules).to_bytes())
    former = {**raw, "column-rules": {**rules.columns, "": raw.pop("deciding-rules")}}
    former.pop("deciding-rules")
    assert Journal.from_bytes(json.dumps(former).encode()) == dataclasses.replace(journal, rules=rules)


@given(journals)
def test_a_journal_whose_cost_has_numbers_of_a_newer_version_is_read(journal: Journal):
    raw = json.loads(dataclasses.replace(journal, cost=BatchCost(1, 2, 3)).to_bytes())
    found = Journal.from_bytes(json.dumps({**raw, "cost": [*raw["cost"], 4]}).encode())
    assert found == dataclasses.replace(journal, cost=BatchCost(1, 2, 3))


@given(journals, st.data())
def test_a_truncated_journal_is_ignored(journal: Journal, data: st.DataObject):
    whole = journal.to_bytes()
    assert Journal.from_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


@given(markers, st.data())
def test_a_truncated_marker_is_refused_with_its_remedy(marker: Marker, data: st.DataObject):
    whole = marker.to_property()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MarkerUnreadable, match="frazil reset"):
        Marker.from_property(marker.stream, cut)


def test_a_marker_of_a_newer_frazil_is_refused():
    with pytest.raises(MarkerUnreadable, match="has format 2, but this version of frazil reads format 1"):
        Marker.from_property("events", json.dumps({"format": 2}))


# Decisions

PARTITIONS = [("t", p) for p in range(3)]


def journal_of(
    progress: dict[int, tuple[int, int]], *, key: BatchKey | None = None, seen: BatchKey = NO_DEAD_LETTERS
) -> Journal:
    return Journal(
        stream="s",
        key=key or BatchKey(1, 1),
        table_uuid="u",
        created_at_ms=0,
        source=SourceIdentity("c", {"t": "1"}),
        progress=tuple(RangeProgress("t", p, start, end, end - start, 0, None) for p, (start, end) in progress.items()),
        files=(),
        newest_dead_letters=seen,
        idle=frozenset(),
        offsets_after={},
    )


def marker_at(offsets: dict[int, int], settled: BatchKey | None = None) -> Marker:
    where = {("t", p): offset for p, offset in offsets.items()}
    return Marker("s", BatchKey(1, 0), settled=settled, offsets=where, source=SourceIdentity("c", {"t": "1"}))


positions = st.dictionaries(st.integers(0, 2), st.integers(0, 6), min_size=1)
spans = st.dictionaries(
    st.integers(0, 2), st.tuples(st.integers(0, 6), st.integers(1, 4)).map(lambda s: (s[0], s[0] + s[1])), min_size=1
)


@given(positions, spans)
def test_a_batch_that_the_continuity_check_commits_is_new_and_leaves_no_gap(at, progress):
    result = classify_batch(marker_at(at), journal_of(progress))
    if result is CommitDecision.COMMIT:
        assert all(start == at.get(p, start) for p, (start, _) in progress.items())
    elif result is CommitDecision.COMMITTED:
        assert all(end <= at[p] for p, (_, end) in progress.items())
    else:
        assert any(start != at.get(p, start) for p, (start, _) in progress.items())
        assert any(end > at.get(p, -1) for p, (_, end) in progress.items())


@given(positions, spans)
def test_a_batch_that_was_committed_is_never_to_be_committed_again(at, progress):
    assume(classify_batch(marker_at(at), journal_of(progress)) is CommitDecision.COMMIT)
    after = {**at, **{p: end for p, (_, end) in progress.items()}}
    assert classify_batch(marker_at(after), journal_of(progress)) is CommitDecision.COMMITTED


@given(positions)
def test_an_empty_commit_is_committed_once(at):
    empty_commit = journal_of({}, key=BatchKey(1, 4))
    assert classify_batch(marker_at(at), empty_commit) is CommitDecision.COMMIT
    assert classify_batch(marker_at(at, settled=BatchKey(1, 4)), empty_commit) is CommitDecision.COMMITTED


@given(positions, spans, st.none() | st.just(BatchKey(1, 3)), st.sampled_from([NO_DEAD_LETTERS, BatchKey(1, 3)]))
def test_a_batch_commits_if_no_dead_letters_were_added_since_it_was_staged(at, progress, settled, seen):
    """This holds for any position: after a reset, a batch starts below the table's records."""
    result = classify_dead_letters(marker_at(at, settled), journal_of(progress, key=BatchKey(1, 4), seen=seen))
    assert (result is CommitDecision.COMMIT) == (seen == (settled or NO_DEAD_LETTERS))


def test_dead_letters_that_landed_are_not_committed_twice():
    journal = journal_of({0: (0, 5)}, key=BatchKey(1, 4), seen=NO_DEAD_LETTERS)
    assert classify_dead_letters(marker_at({}).with_batch(BatchKey(1, 4)), journal) is CommitDecision.COMMITTED


def test_a_marker_of_an_earlier_or_a_later_version_is_read():
    marker = marker_at({0: 5})
    written = {
        "format": 1,
        "epoch": 1,
        "batch": 0,
        "settled": None,
        "offsets": {"t": {"0": 5}},
        "max-event-times-us": {},
        "idle": {},
        "watermark-us": None,
        "cluster-id": "c",
        "topic-ids": {"t": "1"},
        "snapshot-id": marker.snapshot_id,
        "sequence-number": marker.sequence_number,
        "batches": {},
    }
    for raw in (written, {**written, "of-a-later-version": 1}):
        assert Marker.from_property("s", json.dumps(raw)) == marker


# Epochs and batches

steps = st.lists(st.one_of(st.just("epoch"), st.just("batch")), max_size=40)


@given(steps)
def test_a_marker_knows_the_fate_of_every_batch_of_the_epochs_it_remembers(walk):
    marker = dataclasses.replace(marker_at({0: 0}), batches={1: 0})
    committed = set()
    for step in walk:
        if step == "epoch":
            marker = marker.with_epoch(marker.key.epoch + 1)
        else:
            key = BatchKey(marker.key.epoch, marker.key.batch + 1)
            marker = marker.with_batch(key)
            committed.add(key)
    for epoch in range(1, marker.key.epoch + 1):
        for batch in range(1, 42):
            expected = BatchOutcome.COMMITTED if (epoch, batch) in committed else BatchOutcome.NOT_COMMITTED
            assert marker.outcome_of(BatchKey(epoch, batch)) is expected
    assert marker.outcome_of(BatchKey(0, 1)) is BatchOutcome.UNKNOWN
    skipped = marker.with_epoch(marker.key.epoch + 2)
    assert skipped.outcome_of(BatchKey(skipped.key.epoch - 1, 1)) is BatchOutcome.NOT_COMMITTED


def test_a_marker_remembers_a_bounded_number_of_epochs():
    marker = marker_at({0: 0})
    for epoch in range(1, MAX_EPOCHS + 50):
        marker = marker.with_epoch(epoch)
    assert len(marker.batches) == MAX_EPOCHS
    assert marker.outcome_of(BatchKey(49, 1)) is BatchOutcome.UNKNOWN
    assert marker.outcome_of(BatchKey(50, 1)) is BatchOutcome.NOT_COMMITTED
    assert len(json.dumps(marker.batches)) < 4096


# Sources


def test_known_topics_may_be_missing_and_new_ones_may_appear():
    known = SourceIdentity("c", {"a": "1", "b": "2"})
    check_same_source(known, SourceIdentity("c", {"b": "2", "new": "3"}), stream="s")


@pytest.mark.parametrize("found", [SourceIdentity("other", {"a": "1"}), SourceIdentity("c", {"a": "9"})])
def test_another_cluster_and_a_recreated_topic_are_refused(found):
    with pytest.raises(TopicRecreated, match="--to marker"):
        check_same_source(SourceIdentity("c", {"a": "1"}), found, stream="s")
