"""The heartbeat's thread: what it derives from the marker, the current batch and the planner's report."""

from __future__ import annotations

import dataclasses
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import SettleResult
from frazil.events import (
    BatchCommitted,
    DistributionChosen,
    EpochBegan,
    Event,
    EventDispatcher,
    FutureEventTimes,
    NoticeIssued,
    OutageReported,
    PhaseBegan,
)
from frazil.host.heartbeat import Heartbeat, Phase, StallKind
from frazil.json_files import replace_json
from frazil.offsets.spans import SourceIdentity
from frazil.stream import reporter as reporter_module
from frazil.stream.plan import PlannerReport
from frazil.stream.progress import ProgressFolder, RecordCounts, writer_task_name
from frazil.stream.recording import log_event
from frazil.stream.reporter import Reporter
from frazil.stream.stall import COMPILE_TIMEOUT_MS, StallLimits, StallWatch
from tests.polling import eventually

INTERVAL_S = 20
STILL_S = 3 * INTERVAL_S
TP0, TP1 = ("flights", 0), ("flights", 1)
SOURCE = SourceIdentity("c1", {"flights": "id-1"})
MARKER = Marker(
    "s", BatchKey(4, 0), None, {TP0: 10, TP1: 20}, SOURCE, {TP0: 5_000_000, TP1: 6_000_000}, watermark_us=5_000_000
)


class Bench:
    """A reporter over a real run folder. Tests write its heartbeats and move its clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_ms = folder, 1_800_000_000_000
        self.planner_runs = True
        self.ends = {TP0: 10, TP1: 20}
        self.marker = MARKER
        limits = StallLimits(interval_ms=INTERVAL_S * 1000, idle_timeout_ms=300_000)
        self.events = EventDispatcher("s", log_event, clock_ms=lambda: self.now_ms)
        self.reporter = Reporter(self.events, fingerprint="f", folder=folder, limits=limits)

    def waits(self) -> None:
        self.reporter.set_marker(self.marker, at_ms=None)
        self.reporter.set_phase(Phase.WAITING)

    def commits(self, **changes: Any) -> None:
        at = BatchKey(self.marker.key.epoch, self.marker.key.batch + 1)
        self.reporter.set_phase(Phase.COMMITTING, key=at)
        self.marker = dataclasses.replace(self.marker, key=at, **changes)
        self.reporter.set_marker(self.marker, at_ms=self.now_ms)
        # The thread may look between the two.
        self.reporter.send_heartbeat()
        self.reporter.set_phase(Phase.WAITING)

    def after(self, seconds: int) -> Heartbeat:
        """The heartbeat after some seconds of a planner that reports, and a reporter that beats, once a second."""
        for _ in range(seconds):
            self.now_ms += 1_000
            if self.planner_runs:
                self.reporter.set_planner_report(PlannerReport(self.ends, observed_at_ms=self.now_ms))
            self.reporter.send_heartbeat()
        found = Heartbeat.read(self.folder)
        assert found is not None
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_the_lag_is_the_number_of_records_after_the_marker_that_the_planner_saw(bench: Bench):
    bench.waits()
    bench.ends = {TP0: 14, TP1: 15}
    assert bench.after(1).lag == 4


def test_each_phase_change_is_in_the_heartbeat_at_once_and_otherwise_the_thread_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    sent: list[int] = []
    monkeypatch.setattr(reporter_module, "HEARTBEAT_INTERVAL_S", 600)
    monkeypatch.setattr(Reporter, "_rotate_log", lambda _: sent.append(1))

    def phase() -> Phase:
        found = Heartbeat.read(bench.folder)
        assert found is not None
        return found.phase

    with bench.reporter as reporter:
        for each in (Phase.STAGING, Phase.COMMITTING, Phase.WAITING):
            reporter.set_phase(each)
            eventually(lambda each=each: phase() is each)
        assert len(sent) <= 3, "one for each change"


def test_before_a_planner_has_seen_anything_the_lag_is_unknown(bench: Bench):
    bench.waits()
    bench.reporter.send_heartbeat()
    assert (heartbeat := Heartbeat.read(bench.folder)) is not None
    assert heartbeat.lag is None


def test_the_lag_of_a_new_partition_counts_from_its_first_offset(bench: Bench):
    bench.waits()
    bench.reporter.set_planner_report(
        PlannerReport({("flights", 2): 1005}, first_offsets={("flights", 2): 1000}, observed_at_ms=1)
    )
    bench.reporter.send_heartbeat()
    assert (heartbeat := Heartbeat.read(bench.folder)) is not None
    assert heartbeat.lag == 5


@pytest.mark.parametrize(("end", "lag"), [(20, None), (23, 3)])
def test_the_lag_of_a_partition_without_a_leader_is_unknown_unless_records_are_unread(
    bench: Bench, end: int, lag: int | None
):
    bench.waits()
    ends = {TP0: 10, TP1: end}
    bench.reporter.set_planner_report(PlannerReport(ends, observed_at_ms=1, leaderless=frozenset({TP1})))
    bench.reporter.send_heartbeat()
    assert (heartbeat := Heartbeat.read(bench.folder)) is not None
    assert (heartbeat.lag, heartbeat.caught_up_at_ms) == (lag, None)


def test_a_stall_of_offsets_and_its_end_are_each_reported_once_in_heartbeat_and_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    bench.waits()
    bench.ends = {TP0: 15, TP1: 20}
    assert bench.after(STILL_S).stall is None
    bench.ends = {TP0: 30, TP1: 20}
    stall = bench.after(10).stall
    assert stall is not None
    assert (stall.kind, stall.held_back_by) == (StallKind.OFFSETS, "flights-0")
    assert "20 records from offset 10" in stall.reason
    (said,) = warnings(caplog)
    assert "stream s: stalled (offsets): flights-0 holds the offsets back" in said
    bench.commits(offsets={TP0: 30, TP1: 20}, watermark_us=6_000_000)
    assert bench.after(1).stall is None
    assert len(warnings(caplog)) == 1
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.INFO] == [
        "stream s: the stall (offsets) is over after 1 min 9 s"
    ]


def test_records_after_a_long_quiet_period_do_not_count_as_time_without_progress(bench: Bench):
    """Its supervisor ends a writer that makes no progress while records wait."""
    bench.waits()
    began_ms, quiet_s = bench.now_ms, 3_600
    assert bench.after(quiet_s).advanced_at_ms == began_ms
    bench.ends = {TP0: 13, TP1: 20}
    came = bench.after(1)
    assert (came.lag, came.advanced_at_ms) == (3, bench.now_ms)
    bench.ends = {TP0: 99, TP1: 20}
    assert bench.after(50).advanced_at_ms == came.advanced_at_ms, "more of them is no progress"


def test_a_watermark_that_one_partition_holds_reaches_the_heartbeat(bench: Bench, caplog: pytest.LogCaptureFixture):
    bench.waits()
    for n in range(1, 5):
        bench.ends = {TP0: 10, TP1: 20 + n}
        heartbeat = bench.after(INTERVAL_S - 1)
        bench.commits(offsets=dict(bench.ends), max_event_times_us={TP0: 5_000_000, TP1: 6_000_000 + n})
        bench.after(1)
    assert heartbeat.stall is not None
    assert (heartbeat.stall.kind, heartbeat.stall.held_back_by) == (StallKind.WATERMARK, "flights-0")
    assert "its newest event time is 1970-01-01 00:00:05Z" in heartbeat.stall.reason
    assert len(warnings(caplog)) == 1


def test_a_planner_that_hangs_is_seen_by_the_age_of_its_report(bench: Bench):
    bench.waits()
    assert bench.after(100).stall is None
    bench.planner_runs = False
    assert bench.after(STILL_S - 1).stall is None
    stall = bench.after(1).stall
    assert stall is not None
    assert "Kafka has not answered the planner" in stall.reason


def test_a_batch_longer_than_three_intervals_is_not_stalled_while_its_records_advance(bench: Bench, tmp_path: Path):
    progress = ProgressFolder(str(tmp_path / "progress"), {})
    bench.reporter.set_progress(progress)
    bench.waits()
    bench.ends = {TP0: 10**6, TP1: 20}
    bench.after(1)
    bench.reporter.set_phase(Phase.STAGING, key=BatchKey(4, 1))
    for n in range(1, 4):
        progress.write("0", RecordCounts(n * 1000), epoch=4, batch=1)
        assert bench.after(STILL_S - 1).stall is None
    stall = bench.after(2).stall
    assert stall is not None
    assert "batch 4-1 is staging, has read 3,000 records and makes no progress" in stall.reason


def test_a_stall_reports_a_compiling_task_until_it_stops_compiling(bench: Bench, tmp_path: Path):
    progress = ProgressFolder(str(tmp_path / "progress"), {})
    bench.reporter.set_progress(progress)
    bench.waits()
    bench.ends = {TP0: 10**6, TP1: 20}
    bench.after(1)
    bench.reporter.set_phase(Phase.STAGING, key=BatchKey(4, 1))
    for compiling, seconds in ((True, COMPILE_TIMEOUT_MS // 1000), (False, STILL_S)):
        progress.write("0", RecordCounts(compiling=compiling), epoch=4, batch=1)
        assert bench.after(1).stall is None
        stall = bench.after(seconds).stall
        assert stall is not None
        assert ("are being compiled" in stall.reason) is compiling
        assert ("brokers and executors" in stall.reason) is not compiling


def test_a_batch_is_not_stalled_while_its_shuffle_writers_advance(bench: Bench, tmp_path: Path):
    progress = ProgressFolder(str(tmp_path / "progress"), {})
    bench.reporter.set_progress(progress)
    bench.waits()
    bench.ends = {TP0: 10**6, TP1: 20}
    bench.after(1)
    bench.reporter.set_phase(Phase.STAGING, key=BatchKey(4, 1))
    progress.write("0", RecordCounts(5000), epoch=4, batch=1)
    for n in range(1, 4):
        progress.write(writer_task_name(0), RecordCounts(n * 1000), epoch=4, batch=1)
        assert bench.after(STILL_S - 1).stall is None
    stall = bench.after(2).stall
    assert stall is not None
    assert "has read 5,000 records and makes no progress" in stall.reason


def test_a_batch_that_reads_records_left_by_a_commit_is_not_reported_as_stalled(bench: Bench, tmp_path: Path):
    """A sample between a commit and the next phase must not take the landed batch for one that still reads."""
    progress = ProgressFolder(str(tmp_path / "progress"), {})
    bench.reporter.set_progress(progress)
    bench.waits()
    bench.ends = {TP0: 10**6, TP1: 20}
    bench.after(1)
    bench.commits(offsets={TP0: 500, TP1: 20}, watermark_us=6_000_000)
    bench.reporter.set_phase(Phase.STAGING, key=BatchKey(4, 2))
    for n in range(1, 10):
        progress.write("0", RecordCounts(n * 1000), epoch=4, batch=2)
        assert bench.after(STILL_S // 2).stall is None


def test_a_stall_is_still_reported_while_the_writer_begins_another_epoch(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    bench.waits()
    bench.ends = {TP0: 15, TP1: 20}
    assert bench.after(STILL_S + 1).stall is not None
    bench.reporter.set_phase(Phase.TAKING_OVER)
    assert bench.after(5).stall is not None
    bench.waits()
    assert bench.after(5).stall is not None
    assert len(warnings(caplog)) == 1


def test_an_outage_is_never_a_stall_and_the_stall_timer_restarts_after_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    bench.waits()
    bench.ends = {TP0: 14, TP1: 20}
    bench.reporter.set_phase(Phase.STAGING, key=BatchKey(4, 1))
    bench.events.emit(OutageReported("batch 4-1 cannot be staged: the object store fails"))
    found = bench.after(5 * STILL_S)
    assert (found.stall, found.outage, found.lag, warnings(caplog)) == (None, bench.reporter._state.outage, 4, [])
    bench.reporter.set_phase(Phase.STAGING, key=BatchKey(4, 1))
    assert bench.after(STILL_S - 2).stall is None
    assert bench.after(4).stall is not None


def test_a_planner_that_is_replaced_ends_no_stall(bench: Bench):
    bench.waits()
    bench.ends = {TP0: 15, TP1: 20}
    before = bench.after(STILL_S + 1)
    assert before.stall is not None
    bench.planner_runs = False
    bench.reporter.set_phase(Phase.STOPPING)
    bench.reporter.set_planner_report(None)
    after = bench.after(1)
    assert (after.stall, after.lag) == (before.stall, 5)


def test_the_reading_thread_passes_the_interval_stretch_to_the_stall_watch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    reported: list[float] = []
    monkeypatch.setattr(StallWatch, "set_stretch", lambda _, stretch: reported.append(stretch))
    bench.waits()
    bench.reporter.set_throttle("the metadata grows", stretch=3.0)
    assert reported == []
    bench.after(1)
    assert reported == [3.0]


def test_a_throttled_writer_is_reported_as_stalled_later(bench: Bench):
    bench.waits()
    bench.after(1)
    bench.reporter.set_throttle("the metadata grows", stretch=3.0)
    bench.ends = {TP0: 14, TP1: 20}
    waits = bench.after(3 * STILL_S - 10)
    assert (waits.stall, waits.throttle) == (None, "the metadata grows")
    assert (stalls := bench.after(20).stall) is not None
    assert stalls.kind is StallKind.OFFSETS
    bench.commits(offsets={TP0: 14, TP1: 20})
    bench.reporter.set_throttle(None, stretch=1.0)
    assert (again := bench.after(1)).stall is None
    assert again.throttle is None


def test_an_unresponsive_storage_delays_no_heartbeat(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    answered = threading.Event()
    monkeypatch.setattr(Reporter, "_update_counts", lambda _: answered.wait(60))
    first = bench.after(1)
    assert bench.after(1).written_at_ms > first.written_at_ms
    answered.set()


def test_a_notice_stays_in_the_heartbeat_and_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture):
    bench.events.emit(NoticeIssued("reads in the slower way, because there is no compiler"))
    assert bench.after(2).notices == ("reads in the slower way, because there is no compiler",)
    assert warnings(caplog) == ["stream s: reads in the slower way, because there is no compiler"]


def test_event_times_in_the_future_are_a_notice_that_counts_all_rows(bench: Bench, caplog: pytest.LogCaptureFixture):
    bench.events.emit(FutureEventTimes(BatchKey(4, 1), {("t", 0): 45, ("t", 1): 40}, "10m", 32_472_144_000_000))
    bench.events.emit(FutureEventTimes(BatchKey(4, 2), {("t", 1): 6}, "10m", 4_102_444_800_000))
    (notice,) = bench.after(2).notices
    assert notice == (
        "91 rows have an event time more than 10m ahead of Kafka's timestamp, 46 of them in t-1, the newest "
        "2999-01-01 00:00:00Z: such rows land, but do not advance the watermark. Check the producers' clocks"
    )
    assert [text.partition(": ")[0] for text in warnings(caplog)] == ["batch 4-1", "batch 4-2"]


def test_a_notice_that_replaces_another_is_only_in_the_heartbeat(bench: Bench, caplog: pytest.LogCaptureFixture):
    bench.events.emit(NoticeIssued("3 records have no column"))
    bench.events.emit(NoticeIssued("look"))
    bench.events.emit(NoticeIssued("5 records have no column", replaces="3 records have no column"))
    assert bench.after(2).notices == ("look", "5 records have no column")
    bench.events.emit(NoticeIssued("", replaces="look"))
    assert bench.after(2).notices == ("5 records have no column",)
    assert warnings(caplog) == ["stream s: 3 records have no column", "stream s: look"]


def test_the_last_decision_about_a_shuffle_is_in_the_heartbeat_and_each_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    assert bench.after(1).distribution is None
    for shuffled, reason in ((True, "400 files without it"), (False, "too few are saved")):
        bench.events.emit(DistributionChosen(BatchKey(1, 2), shuffled, reason, 100, 400, 100))
    assert bench.after(2).distribution == "not shuffled: too few are saved"
    reported = [record.getMessage() for record in caplog.records if "rows are" in record.getMessage()]
    assert reported == [
        "batch 1-2: rows are shuffled: 400 files without it",
        "batch 1-2: rows are not shuffled: too few are saved",
    ]


def test_a_heartbeat_of_another_version_is_read(bench: Bench):
    heartbeat = bench.after(1)
    older = {k: v for k, v in dataclasses.asdict(heartbeat).items() if k not in {"notices", "throttle", "stall"}}
    for raw in (older, {**dataclasses.asdict(heartbeat), "of-a-later-version": 1}):
        replace_json(bench.folder / "status.json", raw)
        assert Heartbeat.read(bench.folder) == heartbeat


def test_a_batch_longer_than_its_interval_reports_the_excess_until_a_batch_is_on_time(bench: Bench):
    def batch(number: int, *, takes_s: int) -> Heartbeat:
        key = BatchKey(MARKER.key.epoch, number)
        bench.events.emit(PhaseBegan(Phase.STAGING, key))
        running = bench.after(takes_s)
        marker = dataclasses.replace(MARKER, key=key)
        bench.events.emit(BatchCommitted(key, marker, 1, 0, 1, stage_s=takes_s - 1.0, commit_s=1.0))
        bench.events.emit(PhaseBegan(Phase.WAITING))
        return running

    late_ms = 5_000
    bench.ends = {TP0: 10, TP1: 21}  # one waits
    assert batch(1, takes_s=INTERVAL_S).backpressure_ms == 0
    assert batch(2, takes_s=INTERVAL_S + 5).backpressure_ms == late_ms
    assert bench.after(1).backpressure_ms == late_ms
    assert batch(3, takes_s=INTERVAL_S - 1).backpressure_ms == late_ms, (
        "the last batch was late, and this one is not yet"
    )
    assert bench.after(1).backpressure_ms == 0
    batch(4, takes_s=INTERVAL_S + 5)
    assert bench.after(1).backpressure_ms == late_ms
    bench.ends = MARKER.offsets
    bench.planner_runs = False
    assert bench.after(1).backpressure_ms == late_ms, "whether anything waits is not known anew"
    bench.planner_runs = True
    assert bench.after(1).backpressure_ms == 0, "nothing waits: the next records meet a writer that is free"


def test_a_record_on_a_quiet_topic_counts_as_waiting_from_its_arrival_not_from_the_last_commit(bench: Bench):
    bench.commits()
    assert bench.after(1_800).caught_up_at_ms == bench.now_ms
    came_ms, bench.ends = bench.now_ms, {TP0: 15, TP1: 20}
    assert bench.after(7).caught_up_at_ms == came_ms
    bench.ends = {TP0: 18, TP1: 21}
    bench.after(3)
    bench.commits(offsets={TP0: 15, TP1: 20})
    assert bench.after(1).caught_up_at_ms == came_ms + 7_000, "what came later waits since then"
    bench.ends = {TP0: 20, TP1: 21}
    bench.after(400)
    assert Bench(bench.folder).after(1).caught_up_at_ms == came_ms + 7_000, "the next writer of this host goes on"


def test_a_writer_far_behind_never_understates_how_long_records_have_waited(bench: Bench):
    bench.waits()
    began_ms = bench.after(1).caught_up_at_ms
    for n in range(1, 500):
        bench.ends = {TP0: 10 + n, TP1: 20}
        bench.after(1)
    bench.commits(offsets={TP0: 310, TP1: 20})
    found = bench.after(1).caught_up_at_ms
    assert began_ms is not None
    assert found is not None
    assert began_ms + 290_000 <= found <= began_ms + 300_000


def test_a_kafka_that_never_responded_is_reported_and_the_lag_stays_unknown(bench: Bench):
    bench.waits()
    bench.reporter.set_planner_report(PlannerReport({}, silent_since_ms=bench.now_ms))
    bench.planner_runs = False
    found = bench.after(30)
    assert (found.lag, found.caught_up_at_ms, found.stall and found.stall.kind) == (None, None, StallKind.KAFKA)


def test_the_log_names_each_epoch_that_a_writer_begins(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        log_event(Event("s", 1, EpochBegan(5, MARKER, SettleResult())))
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["a writer took over (epoch 5)"]
