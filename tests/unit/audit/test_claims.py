"""Missing commit records that snapshots refer to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import DataScan
from pyiceberg.table.snapshots import Operation, Summary

from frazil.audit import stream_audit
from frazil.audit.claims import (
    MAX_CLOCK_STEP_MS,
    Claims,
    CommittedRange,
    _batches_without_accepted_losses,
    _records_before_history,
)
from frazil.audit.declared_stream import audit_declared_stream
from frazil.audit.findings import FindingKind
from frazil.audit.stream_audit import _describe_change, audit_stream
from frazil.commit.history import Period
from frazil.commit.marker import BatchKey, BatchOutcome
from frazil.commit.marker_changes import adopt, forget
from frazil.errors import SchemaIncompatible
from frazil.ingest.contract import RangeProgress
from frazil.spec.model import StreamSpec
from tests.made_batches import MadeStream

pytestmark = pytest.mark.usefixtures("frazil_home")
DECLARED = {
    "name": "s",
    "table": "demo.t",
    "source": {"topics": ["t"], "bootstrap-servers": "b:9092"},
    "schema": {"id": "long", "at": "timestamptz"},
    "event-time": "at",
}


@pytest.fixture
def made() -> MadeStream:
    return MadeStream(StreamSpec.model_validate(DECLARED), 1_800_000_000_000, partitions=1)


def test_a_deleted_commit_record_is_not_taken_for_a_skipped_range_although_its_batch_left_no_row(
    made: MadeStream,
) -> None:
    made.land({0: (0, 10)})
    made.land({0: (10, 20)}, written={0: []})  # its rows are lost too
    key = made.tables.marker().key  # type: ignore[union-attr]
    made.land({0: (20, 30)}, rejected={0: range(20, 30)})
    made.tables.store.delete([made.tables.journals.path(key)])
    found = audit_stream(made.tables)
    assert not found.clean
    (gone,) = found.errors
    assert gone.kind is FindingKind.RECORD_GONE
    assert made.tables.journals.path(key) in gone.sentence


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        ("kafka_offset >= 70", "removed 30 rows (100 rewritten as 70)"),
        ("kafka_offset >= 0", "removed 100 rows"),
    ],
)
def test_rows_that_another_program_removed_are_counted_apart_from_rewritten_ones(
    made: MadeStream, filter_: str, expected: str
) -> None:
    made.land({0: (0, 100)})
    made.tables.main.refresh().delete(filter_)
    (found,) = [f for f in audit_stream(made.tables).findings if f.kind is FindingKind.CHANGED]
    assert f", {expected}" in found.sentence


def test_the_rows_that_an_overwrite_of_another_program_put_back_are_counted(made: MadeStream) -> None:
    made.land({0: (0, 100)})
    table = made.tables.main.refresh()
    table.overwrite(table.scan("kafka_offset = 7").to_arrow(), "kafka_offset >= 7 and kafka_offset < 10")
    (found,) = [f for f in audit_stream(made.tables).findings if f.kind is FindingKind.CHANGED]
    last = table.current_snapshot()
    assert last is not None
    put_back = f"and the snapshot after it, {last.snapshot_id}, added 1 row"
    assert f", removed 3 rows (100 rewritten as 97), {put_back}" in found.sentence
    made.land({0: (100, 101)})
    (found,) = [f for f in audit_stream(made.tables).findings if f.kind is FindingKind.CHANGED]
    assert put_back in found.sentence


def test_updates_and_merge_on_read_deletes_of_another_program_are_described() -> None:
    for counts, expected in [
        ({"deleted-records": "200", "added-records": "200"}, "replaced 200 rows with 200"),
        ({"added-position-deletes": "30"}, "removed 30 rows"),
        ({"added-position-deletes": "30", "added-records": "30"}, "replaced 30 rows with 30"),
        ({"added-position-deletes": "101", "removed-position-deletes": "100"}, "removed 1 row"),
        ({"added-equality-deletes": "3"}, "wrote 3 equality deletes, each for any number of rows"),
        (
            {"added-equality-deletes": "3", "added-position-deletes": "1", "added-records": "4"},
            "deleted 1 row, added 4, and wrote 3 equality deletes, each for any number of rows",
        ),
        ({"deleted-records": "of another program", "added-position-deletes": "30"}, "removed 30 rows"),
    ]:
        assert _describe_change(Summary(Operation.OVERWRITE, **counts)) == expected


def test_a_table_with_equality_deletes_is_refused_with_the_remedy(
    made: MadeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: DataScan) -> None:
        raise ValueError("PyIceberg does not yet support equality deletes")

    made.land({0: (0, 10)})
    monkeypatch.setattr(DataScan, "plan_files", refuse)
    with pytest.raises(SchemaIncompatible, match=r"not yet support equality deletes[.] Compact the table"):
        audit_stream(made.tables)


def test_rows_of_a_stream_that_drops_repeats_are_counted_against_the_repeats_of_its_commits() -> None:
    schema = {"id": "long not null", "at": "timestamptz not null"}
    spec = StreamSpec.model_validate({**DECLARED, "schema": schema, "dedupe": {"key": "id", "within": "1h"}})
    made = MadeStream(spec, 1_800_000_000_000, partitions=1)
    made.columns = lambda rows: {"id": pa.array(range(rows)), "at": pa.array([made.now_ms * 1000] * rows)}
    made.land({0: (0, 10)})
    made.tables.main.refresh().delete("kafka_offset = 3")
    (found,) = audit_declared_stream(made.spec, window=None, with_source=False).errors
    assert (found.kind, found.where, found.count) == (FindingKind.MISCOUNTED, "s", 1)
    assert found.sentence.startswith(
        "10 records were committed, and 0 of them dropped as repeats. The table has 9 rows"
    )


def test_records_that_frazil_forget_deleted_are_not_missed(made: MadeStream) -> None:
    made.land({0: (0, 10)})
    forget(made.tables, state=made.tables.state)
    adopt(made.tables, offsets={("t", 0): 10}, source=made.source)
    made.begin()
    made.land({0: (10, 20)})
    (found,) = audit_stream(made.tables).findings
    assert found.sentence == "cannot check 10 rows before offset 10, where the first commit record begins"


def test_dead_letters_of_a_topic_whose_commits_were_forgotten_are_not_counted(made: MadeStream) -> None:
    made.land({0: (0, 10)}, rejected={0: range(4, 7)})
    forget(made.tables, state=made.tables.state)
    made.topic_id = "topic-2"
    adopt(made.tables, offsets={("t", 0): 0}, source=made.source)
    made.begin()
    made.land({0: (0, 10)}, rejected={0: range(9, 10)})
    (numbers,) = audit_stream(made.tables).partitions
    assert numbers.dead_letters == 1


def test_the_search_for_commit_records_continues_past_one_dated_by_a_slow_clock() -> None:
    window = Period(10 * MAX_CLOCK_STEP_MS, 11 * MAX_CLOCK_STEP_MS)
    times = [window.to_ms, window.from_ms - MAX_CLOCK_STEP_MS, window.from_ms, window.from_ms - MAX_CLOCK_STEP_MS - 1]
    marker: Any = SimpleNamespace(settled=BatchKey(1, 9), has_committed=lambda _: True)
    records: Any = [
        SimpleNamespace(key=BatchKey(1, 9 - n), created_at_ms=at) for n, at in enumerate([*times, window.from_ms])
    ]
    assert [r.key.batch for r in _records_before_history(records, marker, window)] == [7]


def test_only_batches_that_an_accepted_rollback_removed_are_left_out() -> None:
    claimed = Claims({("t", 0): (CommittedRange(0, 10, 10, 0, "id", epoch=1), CommittedRange(10, 20, 10, 0, "id"))})
    marker: Any = SimpleNamespace(
        given_up={("t", 0): ((0, 10),)}, given_up_epoch=2, source=SimpleNamespace(topic_ids={"t": "id"})
    )

    def batch(*spans: tuple[int, int]) -> Any:
        return SimpleNamespace(progress=[RangeProgress("t", 0, *span, 0, 0, None) for span in spans])

    lost, kept, empty = batch((0, 10)), batch((10, 20)), batch((5, 5))
    assert _batches_without_accepted_losses([lost, kept, empty], claimed, marker) == [kept, empty]


@pytest.mark.parametrize(
    ("path", "outcome", "kind"),
    [
        ("journal/00000001-00000001.json", BatchOutcome.COMMITTED, FindingKind.RECORD_GONE),
        ("journal/00000001-00000001.json", BatchOutcome.UNKNOWN, FindingKind.NOT_COMPARED),
        ("backfills/one.json", BatchOutcome.COMMITTED, FindingKind.NOT_COMPARED),
    ],
)
def test_a_missing_commit_record_is_an_error_unless_the_stream_may_have_been_forgotten(
    monkeypatch: pytest.MonkeyPatch, path: str, outcome: BatchOutcome, kind: FindingKind
) -> None:
    monkeypatch.setattr(stream_audit, "is_rolled_back", lambda *_, **__: False)
    marker: Any = SimpleNamespace(stream="s", outcome_of=lambda _: outcome)
    table: Any = SimpleNamespace(name=lambda: ("a", "b"))
    (found,) = stream_audit.report_metadata_problems(table, marker, Claims(missing_commit_records=(path,)))
    assert found.kind is kind
