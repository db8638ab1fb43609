"""Laws of backfill plans: spans within Kafka's log and below the live marker, and bounded chunks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from frazil.audit.claims import Claims, CommittedRange
from frazil.backfill.estimate import Estimate, estimate_messages
from frazil.backfill.request import check_not_in_future, parse_request
from frazil.backfill.rules import check_not_recreated
from frazil.backfill.source import (
    MAX_SAMPLE_OFFSETS,
    MAX_SAMPLE_POINTS,
    KafkaSource,
    missing_spans,
    requested_spans,
    sample_records,
    split_by_records,
)
from frazil.errors import SpecError
from frazil.offsets.spans import merge_spans, offsets_within, spans_overlap, spans_with_records
from frazil.spec.sinks import APPEND, UPSERT

PARTITIONS = [("t", p) for p in range(3)]
positions = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 60))
held_sets = st.dictionaries(st.sampled_from(PARTITIONS), st.sets(st.integers(0, 70)))
pieces = st.lists(st.tuples(st.sampled_from(PARTITIONS), st.tuples(st.integers(0, 60), st.integers(0, 60))))


def each(spans: Any) -> set[tuple[Any, int]]:
    return {(tp, o) for tp, of in spans.items() for start, end in of for o in range(start, end)}


def count(spans: Any) -> int:
    return sum(end - start for parts in spans.values() for start, end in parts)


@given(positions, positions, positions, positions)
def test_requested_spans_lie_within_kafkas_log_and_below_the_live_marker(start, end, first, live):
    found = each(requested_spans(start, end, first=first, live=live))
    assert found == {
        (tp, o)
        for tp in first.keys() & live.keys()
        for o in range(max(start.get(tp, 0), first[tp]), min(end.get(tp, live[tp]), live[tp]))
    }


@given(pieces, held_sets)
def test_missing_and_existing_spans_together_are_the_whole_and_do_not_overlap(wanted, held):
    spans = merge_spans(wanted)
    left = missing_spans(spans, {tp: BitMap64(of) for tp, of in held.items()})
    there = {(tp, o) for tp, of in held.items() for o in of}
    assert each(left) == each(spans) - there
    assert merge_spans((tp, span) for tp, of in left.items() for span in of) == left, "the fewest spans, in order"


@given(pieces)
def test_a_sample_of_few_offsets_has_all_of_them(wanted):
    spans = merge_spans(wanted)
    assert each(KafkaSource(cast("Any", None), {}).sample(spans)) == each(spans)


def test_a_sample_of_many_offsets_has_a_few_at_several_points_of_each_partition():
    spans = {("t", 0): ((0, 50_000), (60_000, 110_000)), ("t", 1): ((0, 8_000),)}
    sample = KafkaSource(cast("Any", None), {}).sample(spans)
    assert each(sample) <= each(spans)
    for of in sample.values():
        assert [end - start for start, end in of] == [MAX_SAMPLE_OFFSETS] * MAX_SAMPLE_POINTS
    assert sample["t", 0][-1][0] == 97_500, "the points are spread over all offsets"


@given(pieces, st.integers(1, 20))
def test_chunks_are_bounded_and_make_the_whole(wanted, limit):
    spans = merge_spans(wanted)
    cut = KafkaSource(cast("Any", None), {}).chunks(spans, limit=limit)
    assert sum(map(count, cut)) == count(spans)
    assert set().union(*map(each, cut)) == each(spans)
    assert all(0 < count(chunk) <= limit + len(PARTITIONS) for chunk in cut)


@given(pieces, held_sets, st.integers(1, 20))
def test_chunks_of_records_hold_each_known_record_once_and_nothing_outside_of_the_spans(wanted, known, limit):
    spans = merge_spans(wanted)
    records = {tp: BitMap64(known.get(tp, ())) for tp in spans}
    there = {(tp, o) for tp, found in offsets_within(spans, records).items() for o in found}
    assert there == each(spans) & {(tp, o) for tp, of in known.items() for o in of}
    held_in = [each(chunk) for chunk in split_by_records(spans, records, limit=limit)]
    assert sum(len(part & there) for part in held_in) == len(set().union(*held_in) & there) == len(there)
    assert set().union(*held_in) <= each(spans)
    assert all(0 < len(part & there) <= limit + len(PARTITIONS) for part in held_in)
    kept = spans_with_records(spans, records)
    assert each(kept) >= there
    assert all(records[tp].range_cardinality(*span) for tp, of in kept.items() for span in of)
    sample = each(sample_records(spans, records))
    assert there <= sample <= each(spans), "so few records are all in the sample"


@given(pieces, pieces)
def test_spans_overlap_where_they_share_an_offset(some, others):
    a, b = merge_spans(some), merge_spans(others)
    assert spans_overlap(a, b) is bool(each(a) & each(b))


# Requests


def test_a_backfill_request_has_the_same_digest_whatever_happens_to_its_result():
    raw = {"stream": "events", "from-time": "2024-01-01T00:00:00Z", "to-offsets": {"t": {"0": 5}}, "to-time": ""}
    request = parse_request(raw)
    assert request.digest == parse_request({**raw, "target": "branch", "chunk-records": 5}).digest
    assert request.digest == parse_request({**raw, "from-time": "2024-01-01T01:00:00+01:00"}).digest
    assert request.digest != parse_request({**raw, "to-offsets": {"t": {"0": 6}}}).digest
    files = parse_request({"stream": "events", "files": "/archive/", "from-event-time": "2024-01-01T00:00:00Z"})
    assert files.files == "/archive"
    assert files.digest != files.model_copy(update={"listing": "of other files"}).digest
    assert request.offset_bounds("to") == {("t", 0): 5}
    assert parse_request(request.model_dump(mode="json", by_alias=True)) == request


def test_event_times_are_a_half_open_range_of_microseconds():
    request = parse_request({"stream": "events", "from-event-time": "1970-01-01T00:00:01Z"})
    assert request.event_times_us == (1_000_000, 2**63 - 1)
    assert parse_request({"stream": "events", "from-time": datetime(2024, 1, 1, tzinfo=UTC)}).event_times_us is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"from-time": "2024-01-01T00:00:00"}, "from-time: Input should have timezone info"),
        (
            {"from-time": "2024-01-02T00:00:00Z", "to-time": "2024-01-01T00:00:00Z"},
            "cannot be run: to-time .2024-01-01 00:00:00Z. is not after from-time",
        ),
        ({"to-time": "2024-01-02T00:00:00Z", "to-offsets": {"t": {0: 1}}}, "both set where the backfill ends"),
        ({"from-offsets": {"t": {"0": -1}}}, "greater than or equal to 0"),
        (
            {"files": "/archive", "from-time": "2024-01-01T00:00:00Z"},
            "files cannot be combined with Kafka's times or offsets",
        ),
        ({"files": "archive/2024"}, "neither an absolute path nor a URI"),
        ({"target": "elsewhere"}, "target: Input should be 'table' or 'branch'"),
        ({"form-time": "2024-01-01T00:00:00Z"}, "form-time: Extra inputs are not permitted"),
    ],
)
def test_an_inconsistent_backfill_request_is_refused_with_one_sentence(raw: dict[str, Any], said: str):
    with pytest.raises(SpecError, match=said):
        parse_request({"stream": "events", **raw})


def test_a_range_that_lies_in_the_future_is_refused_and_one_that_began_is_not():
    request = parse_request({"stream": "events", "from-time": "2024-01-02T00:00:00+01:00"})
    now_ms = 1_704_150_000_000
    check_not_in_future(request, now_ms)
    with pytest.raises(SpecError, match=r"from-time .* is in the future \(it is now 2024-01-01 22:59:59Z"):
        check_not_in_future(request, now_ms - 1)


def test_a_range_without_records_is_distinguished_from_one_that_the_table_has():
    nothing = Estimate(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, exact=True)
    (said,) = estimate_messages(nothing, stream="ticks", mode=APPEND)
    assert said == "Stream ticks: nothing is missing; Kafka has no records in this range before the stream's position."
    (said,) = estimate_messages(replace(nothing, source_files=2), stream="ticks", mode=APPEND)
    assert "the files have no records in this range" in said
    (said,) = estimate_messages(replace(nothing, requested=5, held=5), stream="ticks", mode=APPEND)
    assert said == "Stream ticks: none of the 5 requested offsets is missing."


def test_a_dry_run_of_an_upsert_backfill_reports_changes_to_compare_instead_of_rows():
    some = Estimate(6, 0, 6, 5, 1, 900, 1, 1, 1, 6, 1, 0, 0, exact=True)
    said = "would add 5 rows and 1 dead letter, counted exactly: about 900 bytes"
    assert said in estimate_messages(some, stream="ticks", mode=APPEND)[1]
    (_, said, _) = estimate_messages(some, stream="ticks", mode=UPSERT)
    assert "would compare 5 changes with the table's rows, and add 1 dead letter, counted exactly:" in said
    assert said.endswith("Only the merge shows how many rows change.")


def test_a_dry_run_shows_that_its_numbers_are_estimated_from_a_sample():
    some = Estimate(900, 0, 900, 461, 3, 900, 1, 1, 2, 90, 1, 0, 0, exact=False)
    (_, size, partitions) = estimate_messages(some, stream="ticks", mode=APPEND)
    assert "would add about 461 rows and 3 dead letters, estimated from a sample of 90 records: " in size
    assert partitions.startswith("The sample falls into 2 partitions of the table, so at least")


def committed(topic_id: str, start: int, end: int) -> CommittedRange:
    return CommittedRange(start, end, end - start, 0, topic_id)


@pytest.mark.parametrize(
    ("read_to", "remedy"),
    [
        (1_500, """Begin after the earlier topic's offsets: --from '{"t": {"0": 1200}}'"""),
        (300, 'the first one after the earlier topic\'s offsets is {"t": {"0": 1200}}, and the stream has not read it'),
    ],
    ids=["some offsets are free", "none is"],
)
def test_a_backfill_across_a_recreated_topic_names_its_offsets_and_the_first_free_ones(read_to: int, remedy: str):
    old, new = committed("old", 0, 1_200), committed("new", 100, read_to)
    ids, other = {"t": "new", "u": "u"}, {("t", 1): (committed("new", 0, 50),), ("u", 0): (committed("old", 0, 9),)}
    claimed = Claims({("t", 0): (old, new), **other})
    wanted: dict[Any, Any] = {("t", 0): ((0, read_to),)}
    with pytest.raises(SpecError) as refused:
        check_not_recreated(wanted, claimed, "t", topic_ids=ids)
    for held in (f"t-0 0 to {min(read_to, 1200) - 1:,} (an earlier topic)", f"t-0 100 to {read_to - 1:,} (this topic)"):
        assert held in str(refused.value)
    assert remedy in str(refused.value)
    check_not_recreated({("t", 0): ((1_200, 1_500),), ("t", 1): ((0, 50),)}, claimed, "t", topic_ids=ids)
