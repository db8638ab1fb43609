"""The recorder turns a stream's events into its history, and survives storage failures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frazil.commit.journal import BatchCost
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import SettleResult
from frazil.events import (
    BatchCommitted,
    ChangesMerged,
    DistributionChosen,
    EpochBegan,
    Event,
    FutureEventTimes,
    LagMeasured,
    NoticeIssued,
    OutageReported,
    PhaseBegan,
    RecordsSkipped,
    StallBegan,
    StallEnded,
    StreamEvent,
    TableEvolved,
    TablesBehind,
    ThrottleEvaluated,
)
from frazil.history.objects import HistoryObject, HistoryStore
from frazil.history.points import EventKind, HistoryPart, Point, StreamHistory
from frazil.history.recorder import (
    EVENT_WRITE_INTERVAL_MS,
    RETRY_INTERVAL_MS,
    WRITE_INTERVAL_MS,
    Recorder,
    RecordingThreads,
)
from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import SourceIdentity
from frazil.table.storage import LocalStore
from tests.polling import eventually

NOW = 1_800_000_000_000
MINUTE_MS = 60_000
MARKER = Marker("s", BatchKey(4, 0), None, {("t", 0): 10}, SourceIdentity("c", {"t": "id"}), watermark_us=5_000_000)


class Storage(LocalStore):
    """A local storage that fails or hangs on request."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.puts_left: int | None = None
        """After that many puts, the process is killed."""
        self.answers = threading.Event()
        self.answers.set()
        self.put_paths: list[str] = []

    def put(self, path: str, data: bytes) -> None:
        self.answers.wait(30)
        if self.fails:
            raise self.fails
        if self.puts_left is not None:
            self.puts_left -= 1
            if self.puts_left < 0:
                raise KeyboardInterrupt
        self.put_paths.append(path)
        super().put(path, data)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.storage, self.location = Storage(), f"{folder}/_frazil/_history/s"
        self.objects = HistoryStore(self.storage, self.location, "uuid-1")

    def writer(self, epoch: int | None, *, at_ms: int = NOW) -> Recorder:
        """The recorder of a writer that took over."""
        recorder = Recorder("s", interval_ms=20_000)
        recorder.opens(lambda: self.objects)
        if epoch is not None:
            self.record(recorder, EpochBegan(epoch, MARKER, SettleResult()), at_ms=at_ms)
        return recorder

    @staticmethod
    def record(recorder: Recorder, *what: StreamEvent, at_ms: int = NOW) -> None:
        for happening in what:
            recorder.take(Event("s", at_ms, happening))

    def stored(self) -> StreamHistory:
        past, problems = self.objects.read(self.objects.list_objects())
        assert problems == []
        return past

    def epochs(self) -> set[int]:
        return {found.epoch for found in self.objects.list_objects()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def batch(records: int = 100, **others: float) -> BatchCommitted:
    times = {"stage_s": 2.0, "commit_s": 0.5, **others}
    cost = BatchCost(cpu_ms=700, writes=5, reads=2)
    return BatchCommitted(BatchKey(4, 1), MARKER, records, 3, 2, bytes=4_096, cost=cost, **times)  # type: ignore[arg-type]


def test_the_batches_of_a_minute_are_one_point(bench: Bench) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, ChangesMerged(0.1), ChangesMerged(0.2), batch(), batch(stage_s=3.0))
    bench.record(recorder, LagMeasured(50, {("t", 0): 50}, 7_000, 400), LagMeasured(20, {("t", 0): 20}, 9_000, 0))
    recorder.write(NOW)
    (point,) = bench.stored().points()
    assert point == Point(
        NOW - NOW % MINUTE_MS,
        batches=2,
        records=200,
        rejected=6,
        files=4,
        bytes=8_192,
        lag=50,
        freshness_ms=9_000,
        backpressure_ms=400,
        stage_ms=5_000,
        commit_ms=1_000,
        merge_ms=300,
        watermark_ms=5_000,
        interval_ms=20_000,
        cpu_ms=1_400,
        writes=10,
        reads=4,
    )


def test_an_empty_commit_moves_the_recorded_watermark_but_is_not_counted_as_a_batch(bench: Bench) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, BatchCommitted(BatchKey(4, 1), MARKER, 0, 0, 0, stage_s=9.0, commit_s=9.0))
    recorder.write(NOW)
    (point,) = bench.stored().points()
    assert (point.batches, point.stage_ms, point.watermark_ms) == (0, 0, 5_000)


def test_the_time_of_an_abandoned_merge_of_an_earlier_epoch_counts_for_no_batch(bench: Bench) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, ChangesMerged(9.0), EpochBegan(5, MARKER, SettleResult()), ChangesMerged(0.5), batch())
    recorder.write(NOW)
    assert bench.stored().points()[0].merge_ms == 500


def test_history_records_the_stretched_interval(bench: Bench) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, ThrottleEvaluated("the metadata grows", 3.0, was_under_pressure=False), batch())
    recorder.write(NOW)
    assert bench.stored().points()[0].interval_ms == 60_000


STALL = Stall(StallKind.OFFSETS, NOW, "t-0", "nothing moves")


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        (EpochBegan(5, MARKER, SettleResult()), EventKind.EPOCH, "a writer took over (epoch 5)"),
        (RecordsSkipped("t-0: 1..9", MARKER), EventKind.SKIP, "t-0: 1..9"),
        (StallBegan(STALL), EventKind.STALL, "nothing moves"),
        (StallEnded(StallKind.OFFSETS, 60_000), EventKind.STALL, "over after 1 min 0 s"),
        (TableEvolved(BatchKey(4, 1), ("added column gate string",)), EventKind.EVOLUTION, "added column gate string"),
        (NoticeIssued("reads in a slower way"), EventKind.NOTICE, "reads in a slower way"),
        (
            FutureEventTimes(BatchKey(4, 1), {("t", 0): 7}, "10m", 4_102_444_800_000),
            EventKind.FUTURE,
            "7 rows of batch 4-1 had event times more than 10m in the future, the newest 2100-01-01 00:00:00Z",
        ),
        (DistributionChosen(BatchKey(4, 1), True, "it pays", 9, 90, 9), EventKind.DECISION, "it pays"),
        (
            ThrottleEvaluated("the metadata grows", 2.0, was_under_pressure=False),
            EventKind.THROTTLE,
            "the metadata grows",
        ),
        (OutageReported("the catalog is away"), EventKind.OUTAGE, "the catalog is away"),
        (TablesBehind(frozenset({"a.b"}), "a.b is missing 1 row"), EventKind.OUTAGE, "a.b is missing 1 row"),
    ],
)
def test_stream_events_are_recorded_in_words(bench: Bench, what: StreamEvent, kind: EventKind, said: str) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, what, at_ms=NOW + 5)
    recorder.write(NOW)
    (reported,) = (h for h in bench.stored().events if h.at_ms == NOW + 5)
    assert (reported.kind, said in reported.sentence) == (kind, True)


def test_a_stall_that_another_follows_is_not_reported_as_over(bench: Bench) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, StallEnded(StallKind.OFFSETS, 1, is_over=False), StallBegan(STALL), at_ms=NOW + 5)
    recorder.write(NOW)
    assert [h.sentence for h in bench.stored().events if h.at_ms == NOW + 5] == ["stalled (offsets): nothing moves"]


def test_events_repeated_by_each_batch_are_recorded_only_when_they_change(bench: Bench) -> None:
    recorder = bench.writer(4)
    for n in range(5):
        bench.record(
            recorder,
            OutageReported(f"the catalog is away, try {n}"),
            DistributionChosen(BatchKey(4, n), True, f"{n} partitions", 9, 90, 9),
            ThrottleEvaluated(f"the metadata has {n} MiB", 2.0, was_under_pressure=n > 0),
            at_ms=NOW + n * 1_000,
        )
    bench.record(recorder, PhaseBegan(Phase.WAITING), PhaseBegan(Phase.WAITING), at_ms=NOW + 6_000)
    bench.record(recorder, ThrottleEvaluated(None, 1.0, was_under_pressure=True), at_ms=NOW + 6_000)
    recorder.write(NOW)
    reported = [(h.kind, h.sentence) for h in bench.stored().events if h.kind is not EventKind.EPOCH]
    assert reported == [
        (EventKind.OUTAGE, "the catalog is away, try 0"),
        (EventKind.DECISION, "rows are shuffled from now on: 0 partitions"),
        (EventKind.THROTTLE, "the metadata has 0 MiB"),
        (EventKind.OUTAGE, "the outage is over after 6.0 s"),
        (EventKind.THROTTLE, "the table's metadata no longer grows; commits follow the declared interval"),
    ]


def test_routed_tables_with_missing_rows_are_reported_when_the_set_changes_or_becomes_empty(bench: Bench) -> None:
    recorder = bench.writer(4)
    a, both, none = frozenset({"a"}), frozenset({"a", "b"}), frozenset[str]()
    for names, sentence in ((a, "1 row"), (a, "2 rows"), (both, "3 rows"), (none, "all have all"), (a, "4 rows")):
        bench.record(recorder, TablesBehind(names, sentence), PhaseBegan(Phase.STAGING))
    recorder.write(NOW)
    reported = [h.sentence for h in bench.stored().events if h.kind is EventKind.OUTAGE]
    assert reported == ["1 row", "3 rows", "all have all", "4 rows"]


def test_no_history_write_is_due_before_a_table_and_an_epoch_exist(bench: Bench) -> None:
    recorder = Recorder("s", interval_ms=20_000)
    bench.record(recorder, OutageReported("Kafka is away"))
    assert not recorder.is_due(NOW)
    recorder.opens(lambda: bench.objects)
    assert not recorder.is_due(NOW)
    bench.record(recorder, EpochBegan(4, MARKER, SettleResult()))
    assert recorder.is_due(NOW)


def test_history_is_written_once_a_minute_and_earlier_after_an_event(bench: Bench) -> None:
    recorder = bench.writer(4)
    recorder.write(NOW)
    assert not recorder.is_due(NOW + WRITE_INTERVAL_MS)  # nothing changed
    bench.record(recorder, batch())
    assert not recorder.is_due(NOW + WRITE_INTERVAL_MS - 1)
    assert recorder.is_due(NOW + WRITE_INTERVAL_MS)
    assert recorder.is_due(NOW - 10 * WRITE_INTERVAL_MS)  # the clock was set back
    bench.record(recorder, NoticeIssued("look"))
    assert not recorder.is_due(NOW + EVENT_WRITE_INTERVAL_MS - 1)
    assert recorder.is_due(NOW + EVENT_WRITE_INTERVAL_MS)


def test_only_changed_history_objects_are_written(bench: Bench) -> None:
    recorder = bench.writer(4)
    recorder.write(NOW)
    bench.storage.put_paths.clear()
    bench.record(recorder, batch())
    recorder.write(NOW + WRITE_INTERVAL_MS)
    assert bench.storage.put_paths == [f"{bench.location}/00000004-minutes.json"]


def test_a_new_epoch_continues_the_history_of_the_last_and_leaves_three_objects(bench: Bench) -> None:
    for epoch in range(1, 20):  # such as a crash loop of one start a minute
        recorder = bench.writer(epoch, at_ms=NOW + epoch * MINUTE_MS)
        bench.record(recorder, batch(), at_ms=NOW + epoch * MINUTE_MS)
        recorder.write(NOW + epoch * MINUTE_MS)
        assert (bench.epochs(), len(bench.objects.list_objects())) == ({epoch}, 3)
    assert sum(p.records for p in bench.stored().points()) == 19 * 100
    assert len(bench.stored().events) == 19


def test_the_next_epoch_of_the_same_process_counts_nothing_twice(bench: Bench) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, batch())
    recorder.write(NOW)
    bench.record(recorder, EpochBegan(5, MARKER, SettleResult()), batch())
    recorder.write(NOW + WRITE_INTERVAL_MS)
    assert bench.epochs() == {5}
    assert sum(p.records for p in bench.stored().points()) == 200


def test_history_written_by_a_replaced_writer_is_ignored_and_deleted(bench: Bench) -> None:
    old = bench.writer(4)
    bench.record(old, batch())
    old.write(NOW)
    new = bench.writer(5)
    bench.record(new, batch(records=1))
    new.write(NOW)
    bench.record(old, batch(records=1_000_000), NoticeIssued("I am still here"))
    old.write(NOW + WRITE_INTERVAL_MS)
    assert bench.epochs() == {4, 5}
    assert sum(p.records for p in bench.stored().points()) == 101
    assert all(h.kind is EventKind.EPOCH for h in bench.stored().events)
    later = NOW + 8 * 3_600_000
    bench.record(new, batch(records=1), at_ms=later)
    new.write(later)
    assert bench.epochs() == {5}


@pytest.mark.parametrize("puts", range(4))
def test_a_kill_between_any_two_writes_of_a_history_take_over_loses_nothing(bench: Bench, puts: int) -> None:
    first = bench.writer(4)
    bench.record(first, batch())
    first.write(NOW)
    killed, bench.storage.puts_left = bench.writer(5, at_ms=NOW + 1), puts
    bench.record(killed, batch(records=10))
    with killed_if(puts < len(HistoryPart)):
        killed.write(NOW)
    bench.storage.puts_left = None
    for epoch, seen in ((None, {100, 110}), (6, {100, 110})):
        if epoch is not None:
            bench.writer(epoch).write(NOW)
        assert sum(p.records for p in bench.stored().points()) in seen
    assert bench.epochs() == {6}
    assert {h.at_ms for h in bench.stored().events} >= {NOW}


@contextmanager
def killed_if(expected: bool) -> Iterator[None]:
    if expected:
        with pytest.raises(KeyboardInterrupt):
            yield
    else:
        yield


def test_a_kill_between_folding_and_writing_the_minutes_counts_no_record_twice(bench: Bench) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, batch())
    recorder.write(NOW)
    later = NOW + 8 * 3_600_000
    bench.record(recorder, batch(records=1), at_ms=later)
    bench.storage.puts_left = 1  # the tens
    with pytest.raises(KeyboardInterrupt):
        recorder.write(later)
    assert sum(p.records for p in bench.stored().points()) == 100


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format":99}', b'{"format":1,"table-uuid":"uuid-1"}'])
def test_an_unreadable_history_object_loses_only_its_own_part(bench: Bench, content: bytes) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, batch())
    recorder.write(NOW)
    bench.storage.put(f"{bench.location}/00000004-minutes.json", content)
    past, problems = bench.objects.read(bench.objects.list_objects())
    assert (past.points(), len(past.events), len(problems)) == ((), 1, 1)
    bench.writer(5).write(NOW)
    assert bench.epochs() == {5}
    assert [h.sentence for h in bench.stored().events] == [
        f"a writer took over (epoch {n}): no unfinished batch" for n in (4, 5)
    ]


def test_an_earlier_history_object_replaces_an_unreadable_one(bench: Bench) -> None:
    recorder = bench.writer(4)
    bench.record(recorder, batch())
    recorder.write(NOW)
    bench.storage.put(f"{bench.location}/00000005-minutes.json", b"torn")
    past, problems = bench.objects.read(bench.objects.list_objects())
    assert sum(p.records for p in past.points()) == 100
    assert problems == [f"{bench.location}/00000005-minutes.json: " + problems[0].split(": ", 1)[1]]


def test_history_entries_added_by_a_later_version_are_ignored(bench: Bench) -> None:
    bench.storage.put(
        f"{bench.location}/00000004-minutes.json",
        b'{"format":1,"table-uuid":"uuid-1","more":1,"columns":["at_ms","new","records"],"points":[[60000,"x",7]]}',
    )
    bench.storage.put(
        f"{bench.location}/00000004-happened.json",
        b'{"format":1,"table-uuid":"uuid-1","happened":[[1,"unheard-of","x"],[2,"notice","y"]]}',
    )
    past = bench.stored()
    assert past.points() == (Point(60_000, records=7),)
    assert [h.sentence for h in past.events] == ["y"]


def test_the_history_of_another_table_in_the_folder_is_ignored_and_deleted(bench: Bench) -> None:
    other = bench.writer(9)
    bench.record(other, batch())
    other.write(NOW)
    bench.objects = HistoryStore(bench.storage, bench.location, "uuid-2")
    assert bench.stored().points() == ()
    bench.writer(1).write(NOW)
    assert bench.epochs() == {1}


def test_a_stream_that_was_forgotten_begins_at_epoch_one_with_its_history(bench: Bench) -> None:
    before = bench.writer(9)
    bench.record(before, batch())
    before.write(NOW)
    bench.writer(1).write(NOW)
    assert bench.epochs() == {1}
    assert sum(p.records for p in bench.stored().points()) == 100


def test_a_failing_history_storage_is_logged_once_and_gets_everything_later(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, bench.storage.fails = bench.writer(4), OSError("no route")
    for n in range(5):
        at = NOW + n * RETRY_INTERVAL_MS
        bench.record(recorder, batch(), at_ms=at)
        assert recorder.is_due(at)
        recorder.write(at)
        assert not recorder.is_due(at + RETRY_INTERVAL_MS - 1)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    bench.storage.fails = None
    recorder.write(NOW + 6 * RETRY_INTERVAL_MS)
    assert sum(p.records for p in bench.stored().points()) == 500


def test_the_writer_never_waits_for_a_storage_that_hangs(bench: Bench, tmp_path: Path) -> None:
    recording_threads = RecordingThreads(clock_ms=lambda: NOW, poll_interval_s=0.01)
    stuck, other = bench.writer(4), Bench(tmp_path / "other")
    bench.storage.answers.clear()
    recording_threads.add(stuck, storage="s3://hangs")
    well = other.writer(4)
    recording_threads.add(well, storage="s3://answers")
    eventually(lambda: other.epochs() == {4})
    for n in range(1_000):  # the writer goes on
        bench.record(stuck, batch(), NoticeIssued(f"notice {n}"), at_ms=NOW + n * MINUTE_MS)
    recording_threads.remove(stuck, wait_s=0.01)
    assert bench.objects.list_objects() == []
    bench.storage.answers.set()
    eventually(lambda: sum(p.records for p in bench.stored().points()) > 0)
    recording_threads.remove(well)


def test_a_stopping_writer_records_its_last_minute_and_the_reason(bench: Bench) -> None:
    recording_threads, recorder = RecordingThreads(clock_ms=lambda: NOW, poll_interval_s=0.01), bench.writer(4)
    recording_threads.add(recorder, storage="file://")
    eventually(lambda: bench.epochs() == {4})
    bench.record(recorder, batch())
    recorder.ended("Fenced: another writer took over", at_ms=NOW)
    recording_threads.remove(recorder)
    assert bench.stored().events[-1].sentence == "the writer ended: Fenced: another writer took over"
    assert bench.stored().points()[-1].records == 100
    eventually(lambda: "history" not in {thread.name for thread in threading.enumerate()})


def test_a_recording_thread_serves_streams_that_arrive_after_all_others_left(bench: Bench, tmp_path: Path) -> None:
    recording_threads, second = RecordingThreads(clock_ms=lambda: NOW, poll_interval_s=0.01), Bench(tmp_path / "second")
    for one in (bench, second):
        recorder = one.writer(4)
        recording_threads.add(recorder, storage="file://")
        recording_threads.remove(recorder)
        assert one.epochs() == {4}
    recording_threads.remove(recorder)  # a second time, and nothing is written


def test_objects_with_unknown_names_are_ignored() -> None:
    assert HistoryObject.from_path("x/00000004-tens.json") == HistoryObject(4, HistoryPart.TENS, "x/00000004-tens.json")
    for name in ("supervision.json", "4-tens.json", "00000004-days.json", ".00000004-tens.json.frazil-tmp"):
        assert HistoryObject.from_path(f"x/{name}") is None
