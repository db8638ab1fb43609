"""The results of several tasks become one range per partition, or no batch at all."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.commit.marker import BatchKey, LastTransaction
from frazil.errors import CommitUnavailable, Fenced, StaleBatch
from frazil.events import DistributionChosen, NoticeIssued, StreamEvent
from frazil.host.heartbeat import Phase
from frazil.ingest.contract import RangeProgress, StagedFile, StageResult
from frazil.ingest.schema_drift import SchemaDrift
from frazil.offsets.spans import SourceIdentity
from frazil.spec.sinks import APPEND
from frazil.stream.batch import BatchRunner
from frazil.stream.distribution import Distributor
from frazil.stream.engine import TaskAnswer
from frazil.stream.notices import Notices
from frazil.stream.outage import retry_during_outage
from frazil.stream.plan import Rates, join_ranges, read_rates, update_rates, write_rates
from frazil.stream.progress import ProgressFolder, RecordCounts
from frazil.stream.spark_engine import SparkEngine


def piece(start: int, end: int, *, partition: int = 0, newest: int | None = None) -> RangeProgress:
    return RangeProgress("t", partition, start, end, records=end - start, rejected=1, max_event_time_us=newest)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.randoms())
def test_pieces_in_any_order_are_one_range(lengths, random):
    edges = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    pieces = [piece(a, b, newest=b) for a, b in itertools.pairwise(edges)]
    random.shuffle(pieces)
    (whole,) = join_ranges(pieces)
    assert (whole.start, whole.end, whole.records) == (0, edges[-1], edges[-1])
    assert (whole.rejected, whole.max_event_time_us) == (len(pieces), edges[-1])


def test_a_gap_between_staged_ranges_is_never_journaled():
    with pytest.raises(StaleBatch, match="not contiguous"):
        join_ranges([piece(0, 10), piece(11, 20)])


def test_ranges_of_partitions_are_joined_separately_and_no_row_means_no_event_time():
    ranges = join_ranges([piece(5, 9, partition=1), piece(0, 3), piece(3, 4, newest=7)])
    assert [(r.partition, r.start, r.end, r.max_event_time_us) for r in ranges] == [(0, 0, 4, 7), (1, 5, 9, None)]


def test_a_notice_of_a_task_is_given_once():
    emitted: list[StreamEvent] = []
    published = Notices(emitted.append, "a.b")
    answers = [TaskAnswer(StageResult((), (), notices=notices), 0.0) for notices in (("b", "a"), ("a",), ())]
    for _ in range(2):
        published.publish_committed(answers)
    assert emitted == [NoticeIssued("a"), NoticeIssued("b")]


def test_a_notice_is_withdrawn_once_a_later_batch_does_not_repeat_it():
    emitted: list[StreamEvent] = []
    published = Notices(emitted.append, "a.b")
    for notices in (("compiled", "slow"), ("slow",)):
        published.publish_committed([TaskAnswer(StageResult((), (), notices=notices), 0.0)])
    published.publish_committed([])
    assert emitted[2:] == [NoticeIssued("", replaces="compiled")]


def test_a_batch_that_commits_has_a_phase_of_its_own():
    steps: list[Any] = []
    runner: Any = SimpleNamespace(
        emit=lambda what: steps.append(what.phase),
        tables=SimpleNamespace(journals=SimpleNamespace(put=lambda _: True)),
        committer=SimpleNamespace(commit=lambda _: steps.append("commit")),
        route=SimpleNamespace(commit_batch=lambda: steps.append("routed tables")),
        _retry_during_outage=lambda attempt, _: attempt(),
    )
    BatchRunner._journal_and_commit(runner, SimpleNamespace(key=BatchKey(1, 1)))  # type: ignore[arg-type]
    assert steps == [Phase.JOURNALING, Phase.COMMITTING, "commit", "routed tables"]


def test_records_without_any_column_are_counted_over_the_batches_of_a_writer():
    emitted: list[StreamEvent] = []
    published = Notices(emitted.append, "a.b")
    for unknown, names in ((2, ("schema", "payload")), (0, ()), (1, ("x",))):
        drift = SchemaDrift(unknown=unknown, names=names)
        answers = [TaskAnswer(StageResult((), (), drift={"main": drift}), 0.0)]
        published.publish_drift(answers)
        published.publish_committed(answers)
    first, second = emitted
    assert isinstance(first, NoticeIssued)
    assert isinstance(second, NoticeIssued)
    assert first.sentence.startswith(
        "2 records have no field that matches a column of a.b: their fields are 'payload', 'schema'"
    )
    assert second.sentence.startswith(
        "3 records have no field that matches a column of a.b: their fields are 'payload', 'sch"
    )
    assert second.replaces == first.sentence


def test_a_notice_of_changes_without_a_position_repeats_when_the_count_more_than_doubles():
    emitted: list[Any] = []
    published = Notices(emitted.append, "a.b")
    for unplaced in (0, 2, 2, 1):
        answers = [TaskAnswer(StageResult((), (), drift={"main": SchemaDrift(unplaced=unplaced)}), 0.0)]
        published.publish_drift(answers)
        published.publish_committed(answers)
    reported = " no position in the log of a.b's source, so Kafka's order decides"
    assert [notice.sentence.partition(reported)[0] for notice in emitted] == ["2 changes have", "5 changes have"]
    assert [notice.replaces for notice in emitted] == ["", emitted[0].sentence]


def test_a_notice_of_casts_repeats_for_a_new_column_or_when_the_count_doubles():
    emitted: list[Any] = []
    published = Notices(emitted.append, "a.b")
    for cast in ({}, {"x": 2}, {"x": 1}, {"x": 2}, {"y": 1}):
        drift = SchemaDrift(cast=cast)
        answers = [TaskAnswer(StageResult((), (), drift={"main": drift}), 0.0)]
        published.publish_drift(answers)
        published.publish_committed(answers)
    told = "fields of the records were cast to the column types of a.b, as `cast: lenient` allows: "
    assert [notice.sentence.removeprefix(told) for notice in emitted] == ["x 2", "x 5", "x 5, y 1"]
    assert [notice.replaces for notice in emitted] == ["", emitted[0].sentence, emitted[1].sentence]


def test_a_journal_has_the_last_transaction_before_its_end():
    source = SourceIdentity("cluster", {"t": "id-1"})
    table = SimpleNamespace(metadata=SimpleNamespace(table_uuid="u"))
    runner: Any = SimpleNamespace(
        spec=SimpleNamespace(name="s", sinks=SimpleNamespace(mode=APPEND)),
        marker=SimpleNamespace(source=source),
        kafka=SimpleNamespace(describe=lambda: SimpleNamespace(identity=source)),
        tables=SimpleNamespace(main=SimpleNamespace(current=lambda: table), clock_ms=lambda: 7),
        committer=SimpleNamespace(newest_dead_letters=lambda: BatchKey(0, 0)),
    )
    context: Any = SimpleNamespace(topic_ids=source.topic_ids, epoch=1, batch=2, window_us=None)
    end: Any = SimpleNamespace(
        idle=frozenset(), offsets={("t", 0): 3}, leader_epochs={}, transaction=LastTransaction("571", "24")
    )
    journal = BatchRunner._build_journal(runner, context, [TaskAnswer(StageResult((), (piece(0, 3),)), 0.0)], end)
    assert journal.transaction == LastTransaction("571", "24")


def wrote(batch: int, tasks: int, *, partitions: int | None = None, spec_id: int = 0) -> Any:
    none: dict[int, Any] = {}
    files = [
        StagedFile("main", "/f", 1, 10, 0, spec_id, None, (str(p),), none, none, none, none, none, none, ())
        for p in range(50)
        for _ in range(tasks)
    ]
    return SimpleNamespace(key=BatchKey(1, batch), staged_for=lambda _: files, partitions=partitions)


def deciding(records: list[Any], emitted: list[StreamEvent], declared: str = "auto") -> Any:
    """A runner of a new epoch, with these commit records."""
    metadata = SimpleNamespace(spec=lambda: SimpleNamespace(spec_id=0, fields=["one"]))
    return SimpleNamespace(
        spec=SimpleNamespace(distribution=declared),
        tables=SimpleNamespace(
            main=SimpleNamespace(current=lambda: SimpleNamespace(metadata=metadata)),
            journals=SimpleNamespace(records=lambda *, newest_first: iter(records[::-1] if newest_first else records)),
        ),
        emit=emitted.append,
        distributor=Distributor(),
    )


BATCH: Any = SimpleNamespace(epoch=2, batch=1, main=SimpleNamespace(target_file_bytes=1000))


@pytest.mark.parametrize("records", [[wrote(1, 4)], [wrote(1, 1, partitions=200), wrote(2, 1, partitions=200)]])
def test_a_new_writer_decides_from_commit_records_to_shuffle(records: list[Any]):
    emitted: list[StreamEvent] = []
    shuffle = BatchRunner._decide_shuffle(deciding(records, emitted), BATCH, tasks=4)
    assert shuffle is not None
    assert (shuffle.writers, len(shuffle.shares)) == (4, 50)
    (reported,) = emitted
    assert isinstance(reported, DistributionChosen)
    assert (reported.key, reported.partitions, reported.files_alone) == (BatchKey(2, 1), 50, 200)


@pytest.mark.parametrize("records", [[], [wrote(1, 1)], [wrote(1, 4, spec_id=1)]])
def test_a_new_writer_decides_from_commit_records_not_to_shuffle(records: list[Any]):
    emitted: list[StreamEvent] = []
    assert BatchRunner._decide_shuffle(deciding(records, emitted), BATCH, tasks=4) is None
    assert len(emitted) == 1


def test_a_stream_that_asks_for_no_shuffle_reads_and_emits_nothing():
    nothing: Any = SimpleNamespace(spec=SimpleNamespace(distribution="none"))
    assert BatchRunner._decide_shuffle(nothing, BATCH, tasks=4) is None


def test_an_empty_commit_is_not_shuffled():
    empty_commit: Any = SimpleNamespace(spec=SimpleNamespace(distribution="hash"))
    assert BatchRunner._decide_shuffle(empty_commit, BATCH, tasks=0) is None


def test_an_empty_commit_does_not_start_spark():
    nothing: Any = None
    engine = SparkEngine(nothing)
    assert engine.run([], nothing) == ()
    assert engine._started is None


def test_an_empty_commit_does_not_change_the_measured_rates(tmp_path: Path):
    rates = Rates(bytes_per_record=7.0, overhead_s=2.0)
    write_rates(tmp_path, rates)
    empty_commit: Any = SimpleNamespace(records=0, staged_for=lambda _: ())
    update_rates(tmp_path, empty_commit, [], batch_s=9.0)
    assert read_rates(tmp_path) == rates
    update_rates(tmp_path, empty_commit, [], batch_s=9.0, stretch=2.0)
    assert read_rates(tmp_path) == dataclasses.replace(rates, stretch=2.0)


class Swept(BatchRunner):
    """Its files are gone when it comes to journal them."""

    def stage(self, *_: Any, **__: Any) -> Any:
        raise FileNotFoundError("00000-0.parquet")


@pytest.mark.parametrize(("newest", "ends_with"), [(8, Fenced), (6, FileNotFoundError)])
def test_an_error_after_another_writer_took_over_is_reported_as_fenced(newest: int, ends_with: type[Exception]):
    def stands_at(epoch: int) -> Any:
        return SimpleNamespace(key=BatchKey(epoch, 0))

    tables: Any = SimpleNamespace(marker=lambda: stands_at(newest))
    committer: Any = SimpleNamespace(epoch=6)
    nothing: Any = None
    runner = Swept(
        spec=SimpleNamespace(name="rides"),  # type: ignore[arg-type]
        kafka=nothing, kafka_properties={}, tables=tables, committer=committer, marker=stands_at(6),
        emit=lambda _: None, run_folder=nothing, progress=nothing, route=nothing, notices=nothing,
    )  # fmt: skip
    with pytest.raises(ends_with):
        runner.run(nothing, nothing, tasks=1)


def test_a_restaged_batch_starts_its_record_count_at_zero(tmp_path: Path):
    progress, key = ProgressFolder(str(tmp_path / "progress"), {}), BatchKey(3, 1)
    tables: Any = SimpleNamespace(main=SimpleNamespace(io_properties={}))
    rest: Any = None
    parts = (tables, rest, rest, lambda _: None, tmp_path, progress)
    runner = BatchRunner(rest, rest, {}, *parts, wait=lambda _: None, route=rest, notices=rest)
    counts = []

    def staged(*_: Any, **__: Any) -> Any:
        counts.append(progress.count_records(epoch=3, batch=1))
        progress.write("0", RecordCounts(90), epoch=3, batch=1)
        if len(counts) == 1:
            raise CommitUnavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchRunner, "stage", staged)
        runner._stage_with_retries(rest, key, rest, tasks=1)
    assert counts == [RecordCounts(), RecordCounts()]


def test_a_task_of_a_failed_try_that_still_writes_does_not_count(tmp_path: Path):
    failed = ProgressFolder(str(tmp_path / "progress"), {})
    again = dataclasses.replace(failed, attempt=1)
    for task in ("0", "2"):
        failed.write(task, RecordCounts(90), epoch=3, batch=1)
    assert failed.count_records(epoch=3, batch=1) == RecordCounts(180)
    again.write("1", RecordCounts(5), epoch=3, batch=1)
    failed.write("2", RecordCounts(95), epoch=3, batch=1)
    assert failed.count_records(epoch=3, batch=1) == RecordCounts(5)


def test_an_outage_is_reported_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture):
    said: list[tuple[str, int]] = []
    answers: Any = iter([CommitUnavailable("away"), CommitUnavailable("still away"), "staged"])

    def operation() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    with caplog.at_level(logging.INFO):
        report: Any = lambda *failed: said.append(failed)  # noqa: E731
        what = "batch 3-1 cannot be staged"
        assert retry_during_outage(operation, what, wait=lambda _: None, report=report) == "staged"
    reported = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.partition("; trying")[0] for line in reported] == [
        "batch 3-1 cannot be staged: away",
        "the outage is over after 0 s (batch 3-1 cannot be staged)",
    ]
    assert [code for _, code in said] == [21, 21], "`frazil status` has the newest"


def test_a_failing_sweep_does_not_replace_the_current_error(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> Any:
        raise RuntimeError("503 of a catalog's client")

    monkeypatch.setattr("frazil.stream.batch.sweep_batch", fail)
    runner: Any = SimpleNamespace(tables=None)
    BatchRunner._delete_obsolete_files(runner, SimpleNamespace(key=BatchKey(3, 1)))  # type: ignore[arg-type]
