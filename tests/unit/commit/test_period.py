"""The audit of a window finds the same commits as a whole audit, and reads only the window's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from frazil.audit import stream_audit as audit_run
from frazil.audit.claims import CommittedRange, merge_ranges
from frazil.audit.compare import compare_partition, count_duplicates
from frazil.audit.evidence import Evidence
from frazil.audit.findings import Audit, Finding, FindingKind
from frazil.audit.stream_audit import audit_stream
from frazil.commit.expiry import Pins, plan_expiry
from frazil.commit.history import HOUR_MS, Period, complete_hours, last_period, period_between
from frazil.commit.journal import Journal, JournalStore
from frazil.commit.marker import BatchKey
from frazil.ingest.contract import RangeProgress
from frazil.offsets.tally import OffsetTally
from frazil.spec.load import load_stream
from frazil.spec.maintenance import Expiry
from frazil.table import landed_offsets as landed
from frazil.table.landed_offsets import FileBounds
from tests.made_batches import MadeStream

BEGIN_MS = 2_000_000_000_000 // HOUR_MS * HOUR_MS
"""A full hour, later than this machine's clock: no commit is older than its table."""
FIRST, SECOND, THIRD = (Period(BEGIN_MS + n * HOUR_MS, BEGIN_MS + (n + 1) * HOUR_MS) for n in range(3))
YAML = """
name: made
source: {topics: [made], bootstrap-servers: "127.0.0.1:1"}
table: demo.made
schema: {at: timestamptz, note: string}
event-time: at
"""


# The window itself


def test_the_last_complete_hour_is_over_at_the_moment_that_is_requested():
    at = datetime(2013, 12, 30, 11, 15, 7, tzinfo=UTC)
    assert complete_hours(at) == period_between(at.replace(hour=10, minute=0, second=0), at.replace(minute=0, second=0))
    assert complete_hours(at.replace(minute=0, second=0)) == complete_hours(at)
    assert complete_hours(at, 3).from_ms == complete_hours(at).from_ms - 2 * HOUR_MS


def test_windows_of_neighbouring_hours_share_no_moment_and_leave_none_out():
    assert [BEGIN_MS + HOUR_MS in w for w in (FIRST, SECOND)] == [False, True]
    assert [BEGIN_MS + HOUR_MS - 1 in w for w in (FIRST, SECOND)] == [True, False]


def test_the_last_hour_includes_a_commit_at_the_current_moment():
    now = datetime(2013, 12, 30, 11, tzinfo=UTC)
    assert int(now.timestamp() * 1000) in last_period(timedelta(hours=1), now)


def test_an_audit_window_without_duration_is_refused():
    with pytest.raises(ValueError, match="ends before it begins"):
        Period(5, 5)


# The law: a window's finding is the whole audit's, within the window's ranges


STEPS = ("on", "on", "on", "back", "made again", "skip")


@st.composite
def histories(draw: st.DrawFn, steps: tuple[str, ...] = STEPS) -> tuple[list[CommittedRange], slice, list[int]]:
    """Batches of one topic-partition (with resets back, and recreated topics), a period of them, and rows."""
    ranges = []
    at, topic_id = 0, "id-0"
    for number in range(draw(st.integers(1, 6))):
        step = draw(st.sampled_from(steps))
        at = draw(st.integers(0, at)) if step == "back" else 0 if step == "made again" else at
        at += draw(st.integers(1, 5)) if step == "skip" else 0
        topic_id = f"id-{number}" if step == "made again" else topic_id
        end = at + draw(st.integers(0, 12))
        ranges.append(CommittedRange(at, end, draw(st.integers(0, end - at)), 0, topic_id))
        at = end
    first = draw(st.integers(0, len(ranges) - 1))
    rows = draw(st.lists(st.integers(0, 40)))
    return ranges, slice(first, draw(st.integers(first + 1, len(ranges)))), rows


def evidence(
    ranges: list[CommittedRange],
    rows: list[int],
    topic_id: str,
    *,
    covers_history: bool,
    elsewhere: tuple[Any, ...] = (),
) -> Evidence:
    return Evidence(
        "t",
        0,
        50,
        topic_id,
        tuple(ranges),
        OffsetTally(sorted(rows)),
        OffsetTally(),
        covers_history=covers_history,
        ranges_outside_period=elsewhere,
    )


def check(ranges: list[CommittedRange], of: slice, rows: list[int]) -> tuple[Evidence, Evidence]:
    """A window's evidence at first sight, and with what was committed elsewhere."""
    spans = merge_ranges(ranges[of])
    inside = [o for o in rows if any(start <= o < end for start, end in spans)]
    others = (*ranges[: of.start], *ranges[of.stop :])
    topic_id = ranges[-1].topic_id
    return (
        evidence(ranges[of], inside, topic_id, covers_history=False),
        evidence(ranges[of], inside, topic_id, covers_history=False, elsewhere=others),
    )


@given(histories())
def test_an_audit_window_finds_the_same_duplicates_in_its_ranges_as_the_whole_audit(history: Any):
    ranges, of, rows = history
    whole = evidence(ranges, rows, ranges[-1].topic_id, covers_history=True)
    _, window_ = check(ranges, of, rows)
    claimed = {o for start, end in merge_ranges(ranges[of]) for o in range(start, end)}
    ids = {o: {r.topic_id for r in ranges if r.start <= o < r.end} for o in range(60)}

    def surplus(offsets: set[int]) -> int:
        """Each topic id may have a row at an offset. Fewer rows at one offset hide surplus rows at another."""
        repeated = {o: rows.count(o) for o in offsets if rows.count(o) > 1}
        certain = sum(len(ids[o]) < 2 for o in repeated)
        return max(certain, sum(count - max(1, len(ids[o])) for o, count in repeated.items()))

    assert count_duplicates(whole) == surplus({*rows})
    assert count_duplicates(window_) == surplus({*rows} & claimed)


@given(histories(steps=("on", "skip")))
def test_an_audit_window_miscounts_the_same_ranges_as_the_whole_audit(history: Any):
    """The ranges do not overlap; the numbers of overlapping ones are only bounded."""
    ranges, of, rows = history
    whole = evidence(ranges, rows, ranges[-1].topic_id, covers_history=True)
    _, window_ = check(ranges, of, rows)
    # The whole audit's own count, of each batch by itself.
    alone = [count(compare_partition(evidence([r], rows, r.topic_id, covers_history=True))) for r in ranges]
    assert count(compare_partition(whole)) == sum(alone)
    assert count(compare_partition(window_)) == sum(alone[of])


@given(histories())
def test_a_range_with_missing_rows_is_reported_whatever_other_ranges_contain(history: Any):
    ranges, of, rows = history
    short = [len({o for o in rows if r.start <= o < r.end}) < r.records for r in ranges]
    first, second = check(ranges, of, rows)
    if any(short[of]):
        assert count(compare_partition(first))
        assert count(compare_partition(second))
    if any(short):
        assert count(compare_partition(evidence(ranges, rows, ranges[-1].topic_id, covers_history=True)))


def count(found: tuple[Finding, ...]) -> int:
    return sum(f.count for f in found if f.kind is FindingKind.MISCOUNTED)


@given(histories())
def test_a_window_that_is_correct_alone_is_correct_within_the_whole_history(history: Any):
    """Unless the topic was created again: then a window is always compared with everything."""
    ranges, of, rows = history
    first, second = check([replace(r, topic_id="id-0") for r in ranges], of, rows)
    if not any(f.kind.is_wrong for f in compare_partition(first)):
        assert not any(f.kind.is_wrong for f in compare_partition(second))


# Which files are read


class _File:
    """A manifest's entry, as far as bounds go; None for what it does not say."""

    def __init__(self, topics: Any, partitions: Any, offsets: Any) -> None:
        bounds = [topics, partitions, offsets]
        encode = [str.encode, lambda n: n.to_bytes(4, "little"), lambda n: n.to_bytes(8, "little")]
        self.lower_bounds = {i + 10: encode[i](b[0]) for i, b in enumerate(bounds) if b is not None}
        self.upper_bounds = {i + 10: encode[i](b[1]) for i, b in enumerate(bounds) if b is not None}


COLUMNS = Schema(
    NestedField(10, "kafka_topic", StringType()),
    NestedField(11, "kafka_partition", IntegerType()),
    NestedField(12, "kafka_offset", LongType()),
)


@given(st.data())
def test_a_file_with_a_row_in_the_offset_ranges_is_never_skipped(data: st.DataObject):
    places = st.tuples(st.sampled_from(["a", "bb", "c"]), st.integers(0, 3), st.integers(0, 30))
    rows = data.draw(st.lists(places, min_size=1, max_size=6))
    known = data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    columns = list(zip(*rows, strict=True))
    file = _File(*[(min(c), max(c)) if k else None for c, k in zip(columns, known, strict=True)])
    topic, partition, start = data.draw(places)
    within = {(topic, partition): [(start, start + data.draw(st.integers(1, 10)))]}
    holds = any((t, p) in within and any(s <= o < e for s, e in within[t, p]) for t, p, o in rows)
    assert FileBounds(COLUMNS, within).may_hold(file) or not holds


def test_a_file_whose_bounds_match_no_offset_range_is_skipped():
    within = {("a", 1): [(10, 20)], ("a", 3): [(50, 60)]}
    bounds = FileBounds(COLUMNS, within)
    assert not bounds.may_hold(_File(("a", "a"), (0, 2), (20, 90)))
    assert not bounds.may_hold(_File(("b", "c"), (0, 9), (0, 99)))
    assert bounds.may_hold(_File(("a", "a"), (0, 2), (19, 90)))
    assert bounds.may_hold(_File(None, None, None))


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5), st.integers(0, 2**62))))
def test_coordinates_come_sorted_by_topic_partition_and_none_is_lost(rows: list[tuple[str, int, int]]):
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    arrays = [pa.array(c, t) for c, t in zip(columns, (pa.large_string(), pa.int32(), pa.int64()), strict=True)]
    batch = pa.record_batch(arrays, names=["kafka_topic", "kafka_partition", "kafka_offset"])
    found = {tp: offsets.tolist() for tp, offsets in landed.split_by_partition(batch)}
    wanted: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in sorted(rows):
        wanted.setdefault((topic, partition), []).append(offset)
    assert found == wanted


# Real tables


@pytest.fixture
def made(frazil_home: Path, tmp_path: Path) -> MadeStream:  # noqa: ARG001
    """Three hours with two batches each; a batch has 100 offsets in each of two partitions."""
    (tmp_path / "made.yaml").write_text(YAML)
    stream = MadeStream(load_stream(tmp_path / "made.yaml"), BEGIN_MS, partitions=2)
    for number in range(6):
        stream.now_ms = BEGIN_MS + number * HOUR_MS // 2
        stream.land(dict.fromkeys(range(2), (number * 100, (number + 1) * 100)))
    return stream


def wrong(found: Audit) -> set[tuple[str, str, int]]:
    return {(f.kind.value, f.where, f.count) for f in found.errors}


def uncompared(found: Audit) -> set[tuple[str, int]]:
    return {(f.where, f.count) for f in found.findings if f.kind is FindingKind.NOT_COMPARED}


def test_an_audited_window_counts_only_its_own_rows(made: MadeStream):
    found = audit_stream(made.tables, window=SECOND)
    assert (found.clean, found.findings, found.batches) == (True, (), 2)
    assert [(p.start, p.end, p.rows) for p in found.partitions] == [(200, 400, 200)] * 2
    assert sum(p.rows for p in audit_stream(made.tables).partitions) == 1200


def test_only_files_that_may_hold_the_windows_records_are_read(made: MadeStream, monkeypatch: pytest.MonkeyPatch):
    read = []
    original = landed._read_file
    monkeypatch.setattr(landed, "_read_file", lambda *a: read.append(a[-1].file.file_path) or original(*a))
    audit_stream(made.tables, window=SECOND)
    assert len(read) == 2


def test_only_the_records_of_the_window_are_read(made: MadeStream, monkeypatch: pytest.MonkeyPatch):
    read = count_reads(monkeypatch)
    audit_stream(made.tables, window=SECOND)
    assert len(read) == 3, "those of the window, and the oldest one"


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []
    original = JournalStore.read

    def counted(self: JournalStore, path: str) -> Journal | None:
        read.append(path)
        return original(self, path)

    monkeypatch.setattr(JournalStore, "read", counted)
    return read


def test_copies_that_a_later_commit_wrote_are_found_in_the_hour_of_the_records(made: MadeStream):
    made.now_ms = THIRD.to_ms
    made.land({0: (600, 601)}, written={0: [600, 250, 251]})
    assert wrong(audit_stream(made.tables, window=SECOND)) == {("duplicates", "made-0", 2)}
    assert audit_stream(made.tables, window=FIRST).clean


def test_copies_that_an_earlier_commit_wrote_are_found_as_well(made: MadeStream):
    made.now_ms = THIRD.to_ms
    made.land({0: (600, 601)}, written={0: [600, 650]})
    made.now_ms += HOUR_MS
    made.land({0: (601, 700)})
    found = audit_stream(made.tables, window=Period(made.now_ms, made.now_ms + HOUR_MS))
    assert wrong(found) == {("duplicates", "made-0", 1)}


def test_deleted_rows_are_found_only_in_their_own_hour(made: MadeStream):
    made.tables.main.refresh().delete("kafka_partition = 1 and kafka_offset >= 210 and kafka_offset < 215")
    found = audit_stream(made.tables, window=SECOND)
    assert wrong(found) == {("miscounted", "made-1", 5)}
    assert audit_stream(made.tables, window=FIRST).clean
    assert audit_stream(made.tables, window=THIRD).clean
    assert wrong(audit_stream(made.tables)) == {("miscounted", "made-1", 5)}


def test_gaps_of_compacted_and_transactional_topics_are_legal(made: MadeStream):
    made.now_ms = THIRD.to_ms
    made.land({0: (600, 700), 1: (600, 700)}, records={0: range(601, 700, 3), 1: [699]}, rejected={0: [601]})
    found = audit_stream(made.tables, window=Period(THIRD.to_ms, THIRD.to_ms + HOUR_MS))
    assert (found.clean, found.findings) == (True, ())
    assert [(p.rows, p.dead_letters) for p in found.partitions] == [(32, 1), (1, 0)]


def test_a_missing_dead_letter_is_found(made: MadeStream):
    made.now_ms = THIRD.to_ms
    made.land({0: (600, 700), 1: (600, 700)}, rejected={0: [601, 650]})
    made.tables.dead_letters.refresh().delete("kafka_offset = 601")
    found = audit_stream(made.tables, window=Period(THIRD.to_ms, THIRD.to_ms + HOUR_MS))
    assert wrong(found) == {("miscounted", "made-0", 1)}


def test_compaction_does_not_change_query_results(made: MadeStream):
    table = made.tables.main.refresh()
    table.overwrite(table.scan().to_arrow())
    for hour in (FIRST, SECOND, THIRD):
        assert audit_stream(made.tables, window=hour).clean
    assert audit_stream(made.tables, window=SECOND).partitions[0].rows == 200


def test_an_overwrite_by_another_program_is_a_note_in_the_hour_of_its_commit(made: MadeStream):
    table = made.tables.main.refresh()
    before = {hour: audit_stream(made.tables, window=hour).findings for hour in (FIRST, SECOND, THIRD)}
    assert not any(found.kind is FindingKind.CHANGED for findings in before.values() for found in findings)
    table.overwrite(table.scan().to_arrow())
    last = table.metadata.snapshots[-2:]
    at_ms = last[0].timestamp_ms
    hour = Period(at_ms, at_ms + HOUR_MS)
    (note,) = (found for found in audit_stream(made.tables).findings if found.kind is FindingKind.CHANGED)
    assert (note.count, note.kind.is_wrong) == (1, False)
    change = f"removed 1,200 rows, and the snapshot after it, {last[1].snapshot_id}, added 1,200 rows"
    assert note.sentence.endswith(f"{change}. Windows already signalled stay signalled")
    (without,) = (f for f in audit_stream(made.tables, signals=False).findings if f.kind is FindingKind.CHANGED)
    assert without.sentence.endswith(change)
    assert note in audit_stream(made.tables, window=hour).findings
    assert {hour: audit_stream(made.tables, window=hour).findings for hour in before} == before


def test_where_history_was_expired_records_are_searched_newest_first(made: MadeStream, monkeypatch: pytest.MonkeyPatch):
    table = made.tables.main.refresh()
    head = table.metadata.current_snapshot_id
    gone = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != head]
    table.catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=gone),))
    read = count_reads(monkeypatch)
    found = audit_stream(made.tables, window=THIRD)
    assert (found.clean, found.batches) == (True, 2)
    assert [(p.start, p.end, p.rows) for p in found.partitions] == [(400, 600, 200)] * 2
    # Its own two, and those of an hour before, where the writer's clock may have been wrong; one more ends the search,
    # and the oldest names the topic's first id.
    assert len(read) <= 6


def test_a_batch_that_waited_for_its_writer_belongs_to_the_hour_it_was_committed_in(made: MadeStream):
    made.now_ms = THIRD.to_ms
    journal = made.stage([RangeProgress("made", 0, 600, 700, 100, 0, None)], {0: range(600, 700)}, {})
    made.now_ms = THIRD.to_ms + 5 * HOUR_MS
    made.committer.commit(journal)
    assert audit_stream(made.tables, window=Period(THIRD.to_ms, THIRD.to_ms + HOUR_MS)).batches == 0
    assert audit_stream(made.tables, window=Period(made.now_ms, made.now_ms + HOUR_MS)).batches == 1


def test_a_loss_by_retention_is_a_note_in_its_hour_and_not_an_error(made: MadeStream):
    made.now_ms = THIRD.from_ms
    made.committer.skip({("made", 0): 700}, lost="made-0 offsets 600 to 699")
    found = audit_stream(made.tables, window=THIRD)
    assert found.clean
    (note,) = found.findings
    assert (note.count, "made-0 offsets 600 to 699" in note.sentence) == (1, True)
    assert audit_stream(made.tables, window=SECOND).findings == ()


def test_a_loss_by_retention_is_reported_even_if_expiry_kept_only_its_snapshot(made: MadeStream):
    made.now_ms = THIRD.from_ms
    made.committer.skip({("made", 0): 700}, lost="made-0 offsets 600 to 699")
    made.now_ms = THIRD.to_ms
    made.land({0: (700, 701)})
    table = made.tables.main.refresh()
    now_ms, settings = THIRD.to_ms + HOUR_MS // 2, Expiry(keep=timedelta(minutes=1), at_least=1, at_most=1)
    plan = plan_expiry(table.metadata, settings, Pins(), table="demo.made", now_ms=now_ms)
    assert len(table.metadata.snapshots) - len(plan.expire) == 2
    table.catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=list(plan.expire)),))
    found = audit_stream(made.tables, window=THIRD)
    assert ["made-0 offsets 600 to 699" in f.sentence for f in found.findings] == [True]


def test_an_expired_commit_record_is_reported(made: MadeStream):
    made.tables.journals.delete([BatchKey(1, 3)])
    found = audit_stream(made.tables, window=SECOND)
    assert wrong(found) == {("record gone", "made", 1)}
    assert "cannot be audited" in found.findings[0].sentence
    assert audit_stream(made.tables, window=FIRST).clean


def test_rows_of_a_former_topic_are_not_duplicates(made: MadeStream):
    made.topic_id = "topic-2"
    made.reset({0: 0, 1: 0})
    made.now_ms = THIRD.to_ms
    made.land({0: (0, 100), 1: (0, 100)})
    found = audit_stream(made.tables, window=Period(THIRD.to_ms, THIRD.to_ms + HOUR_MS))
    assert found.clean
    assert [p.duplicates for p in found.partitions] == [0, 0]
    assert found.findings == ()


def test_dead_letters_of_a_former_topic_are_counted_in_one_scan(made: MadeStream, monkeypatch: pytest.MonkeyPatch):
    made.land({0: (600, 700)}, rejected={0: [601, 650]})
    made.topic_id = "topic-2"
    made.reset({0: 0, 1: 0})
    made.land({0: (0, 100)}, rejected={0: [7]})
    scanned: list[str] = []
    original = audit_run.tally_rows

    def tally_rows(table: Table, *wanted: Any, **more: Any) -> Any:
        scanned.append(".".join(table.name()))
        return original(table, *wanted, **more)

    monkeypatch.setattr(audit_run, "tally_rows", tally_rows)
    found = audit_stream(made.tables)
    assert [p.dead_letters for p in found.partitions] == [3, 0]
    assert found.errors == ()
    assert scanned == [made.tables.main.identifier, made.tables.dead_letters.identifier]


def test_missing_rows_are_not_compared_if_a_former_topic_had_the_same_offsets(made: MadeStream):
    made.topic_id = "topic-2"
    made.reset({0: 0, 1: 0})
    made.now_ms = THIRD.to_ms
    before = {task.file.file_path for task in made.tables.main.refresh().scan().plan_files()}
    made.land({0: (0, 100), 1: (0, 100)})
    with made.tables.main.refresh().transaction() as taken, taken.update_snapshot().overwrite() as update:
        for task in made.tables.main.refresh().scan().plan_files():
            if task.file.file_path not in before:
                update.delete_data_file(task.file)
    hour = Period(THIRD.to_ms, THIRD.to_ms + HOUR_MS)
    found = audit_stream(made.tables, window=hour)
    assert (uncompared(found), found.errors) == ({("made-0", 100), ("made-1", 100)}, ())


def test_a_missing_row_of_a_former_topic_is_not_compared_if_the_new_topic_has_its_offset(made: MadeStream):
    made.tables.main.refresh().delete("kafka_partition = 0 and kafka_offset = 0")
    made.topic_id = "topic-2"
    made.reset({0: 0, 1: 0})
    made.now_ms = THIRD.to_ms
    made.land({0: (0, 1), 1: (0, 1)})
    found = audit_stream(made.tables, window=FIRST)
    assert (uncompared(found), found.errors) == ({("made-0", 1)}, ())


def test_an_hour_without_commits_is_clean_and_reads_no_file(made: MadeStream):
    found = audit_stream(made.tables, window=Period(BEGIN_MS + 9 * HOUR_MS, BEGIN_MS + 10 * HOUR_MS))
    assert (found.clean, found.batches, found.partitions) == (True, 0, ())
