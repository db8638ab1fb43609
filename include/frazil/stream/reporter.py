"""The heartbeat's thread: reports the writer's status every second, and finds stalls."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from frazil.commit.marker import BatchKey, Marker
from frazil.errors import explain
from frazil.events import (
    BatchCommitted,
    DistributionChosen,
    EpochBegan,
    Event,
    EventDispatcher,
    FutureEventTimes,
    LagMeasured,
    NoticeIssued,
    OutageReported,
    PhaseBegan,
    RecordsSkipped,
    TablesBehind,
    ThrottleEvaluated,
)
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.records import StoredError
from frazil.host.writer_log import rotate_full_log
from frazil.offsets.spans import Offsets, TopicPartition
from frazil.stream.hosting import Heartbeats
from frazil.stream.plan import PlannerReport
from frazil.stream.progress import ProgressFolder, RecordCounts
from frazil.stream.stall import StallLimits, StallWatch, WriterSample

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
LAG_INTERVAL_MS = 10_000
"""Interval at which sinks receive lag measurements."""
LOG_CHECK_INTERVAL_MS = 60_000
COUNT_TIMEOUT_S = 0.5
"""How long (s) a heartbeat waits for the record count. Heartbeats from a shared thread do not wait."""
BATCH_PHASES = frozenset({Phase.STAGING, Phase.JOURNALING, Phase.COMMITTING})
MAX_INHERITED_AGE_MS = 3_600_000
"""Maximum age (ms) of an earlier writer's heartbeat whose `caught_up_at_ms` is still used."""
MERGE_PHASES = frozenset({Phase.TAKING_OVER, Phase.COMMITTING})
"""Phases in which an upsert stream merges. A take-over also merges earlier batches."""
MAX_REPORTS = 120
"""Maximum number of kept reports. Above it, every second report is dropped, so the result may be earlier."""


class Reporter:
    def __init__(  # noqa: PLR0913 - the parts of a heartbeat
        self,
        events: EventDispatcher,
        *,
        fingerprint: str,
        table: str = "",
        folder: Path,
        limits: StallLimits,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        now_ms = events.clock_ms()
        self._emit, self._began_ms, self._measured_ms = events.emit, now_ms, 0
        self._watch = StallWatch(events.stream, limits, emit=events.emit)
        events.add(self.take)
        self._folder, self._clock_ms = folder, events.clock_ms
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._marker: Marker | None = None
        self._future: FutureEventTimes | None = None  # of all batches so far
        self._report: PlannerReport | None = None
        self._arrivals = CaughtUpTracker(_read_caught_up_at_ms(self._folder, now_ms))
        self._progress: ProgressFolder | None = None
        self._stretch, self._interval_ms = 1.0, limits.interval_ms
        self._staging_since_ms: int | None = None
        self._checked_log_ms = now_ms
        self._counted_at = float("-inf")
        self._merges = False
        self._counts = RecordCounts()  # of the current batch
        self._phase_since_ms = now_ms
        self._state = Heartbeat(
            stream=events.stream,
            pid=os.getpid(),
            spec_fingerprint=fingerprint,
            table=table,
            phase=Phase.STARTING,
            written_at_ms=now_ms,
            advanced_at_ms=now_ms,
            caught_up_at_ms=self._arrivals.caught_up_at_ms,
        )
        self._counting: threading.Thread | None = None
        self._heartbeats = heartbeats
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._write()
        if self._heartbeats is None:
            self._thread.start()
        else:
            self._heartbeats.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        self._wake.set()
        if self._heartbeats is None:
            self._thread.join()
        else:
            self._heartbeats.remove(self)
        self._update(phase=Phase.ENDED, **StoredError.fields_of(explain(error) if error else None))
        self._write()

    def take(self, event: Event) -> None:
        match event.payload:
            case PhaseBegan(phase, key):
                if phase not in BATCH_PHASES:
                    self._staging_since_ms = None
                elif phase is Phase.STAGING:
                    self._staging_since_ms = event.at_ms
                self.set_phase(phase, key=key)
            case EpochBegan(marker=marker) | RecordsSkipped(marker=marker):
                # Records that retention deleted do not count as lag, because they can no longer be read.
                self.set_marker(marker, at_ms=None)
            case BatchCommitted(marker=marker, stage_s=stage_s, commit_s=commit_s):
                self._update(backpressure_ms=self._beyond_interval_ms(round((stage_s + commit_s) * 1000)))
                self.set_marker(marker, at_ms=event.at_ms)
            case ThrottleEvaluated(reason, stretch):
                self.set_throttle(reason, stretch=stretch)
            case DistributionChosen(shuffled=shuffled, reason=reason):
                self._update(distribution=f"{'shuffled' if shuffled else 'not shuffled'}: {reason}")
            case OutageReported(sentence, code):
                self._update(outage=sentence, outage_code=code)
            case TablesBehind(names=names, sentence=sentence):
                self._update(outage=sentence if names else None, outage_code=None)
            case NoticeIssued(sentence, replaces):
                self._add_notice(sentence, replaces=replaces)
            case FutureEventTimes() as future:
                previous, self._future = self._future, self._future + future if self._future else future
                self._add_notice(self._future.describe(), replaces=previous.describe() if previous else "")

    def _add_notice(self, sentence: str, *, replaces: str) -> None:
        with self._lock:
            other_notices = tuple(notice for notice in self._state.notices if notice not in {sentence, replaces})
            notices = (*other_notices, sentence) if sentence else other_notices
            self._state = dataclasses.replace(self._state, notices=notices)

    def set_phase(self, phase: Phase, *, key: BatchKey | None = None) -> None:
        batch = {} if key is None else {"epoch": key.epoch, "batch": key.batch, "batch_records": 0}
        self._counts = RecordCounts()
        self._phase_since_ms = self._clock_ms()
        self._update(phase=phase, outage=None, merged_rows=0, **batch)

    def set_progress(self, progress: ProgressFolder, *, merges: bool = False) -> None:
        self._progress, self._merges = progress, merges

    def set_marker(self, marker: Marker, *, at_ms: int | None) -> None:
        with self._lock:
            self._marker = marker
        commit = {} if at_ms is None else {"last_commit_at_ms": at_ms, "last_commit_snapshot": marker.snapshot_id}
        self._update(epoch=marker.key.epoch, batch=marker.key.batch, watermark_ms=marker.watermark_ms, **commit)

    def set_planner_report(self, report: PlannerReport | None) -> None:
        with self._lock:
            self._report = report

    def set_throttle(self, reason: str | None, *, stretch: float) -> None:
        with self._lock:
            self._stretch = stretch
            self._state = dataclasses.replace(self._state, throttle=reason)

    def _update(self, **values: object) -> None:
        """Set fields of the heartbeat, and send it soon. Counts as progress."""
        with self._lock:
            self._state = dataclasses.replace(self._state, advanced_at_ms=self._clock_ms(), **values)  # type: ignore[arg-type]
        self._wake.set()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(HEARTBEAT_INTERVAL_S)
            if self._closing:
                return
            try:
                self.send_heartbeat()
            except Exception as error:  # a full disk must not end this thread
                log.warning("cannot write the heartbeat: %r", error)

    def send_heartbeat(self) -> None:
        """Sample the writer's state, write the heartbeat, and rotate a full log."""
        self._wake.clear()
        self._count_records()
        self._evaluate_backpressure()
        self._update_stall()
        self._write()
        self._rotate_log()

    @property
    def is_changed(self) -> bool:
        return self._wake.is_set()

    def _count_records(self) -> None:
        """Count the batch's records in a daemon thread, because storage may not respond."""
        if not (self._state.phase is Phase.STAGING or (self._merges and self._state.phase in MERGE_PHASES)):
            return
        if self._counting is None or not self._counting.is_alive():
            self._counting = threading.Thread(target=self._try_count, name="records", daemon=True)
            self._counting.start()
        if self._heartbeats is None:
            self._counting.join(COUNT_TIMEOUT_S)

    def _try_count(self) -> None:
        try:
            self._update_counts()
        except Exception as error:
            log.info("the progress of the current batch cannot be read: %s", error)

    def _update_counts(self) -> None:
        state, progress = self._state, self._progress
        if progress and time.monotonic() - self._counted_at < progress.period_s:
            return
        if progress and self._merges and state.phase in MERGE_PHASES:
            self._counted_at = time.monotonic()
            rows = progress.count_merged_rows(since=self._phase_since_ms)
            with self._lock:
                is_new = self._state.phase is state.phase and rows != self._state.merged_rows
            if is_new:
                self._update(merged_rows=rows)
        elif state.phase is Phase.STAGING and progress and state.epoch is not None and state.batch is not None:
            self._counted_at = time.monotonic()
            counts = progress.count_records(epoch=state.epoch, batch=state.batch)
            previous, self._counts = self._counts, counts
            changed = counts.written > previous.written or counts.compiling is not previous.compiling
            if changed or counts.read > state.batch_records:
                self._update(batch_records=counts.read)

    def _beyond_interval_ms(self, batch_ms: int) -> int:
        """Return by how much (ms) a batch of this duration exceeds the commit interval."""
        return max(0, batch_ms - round(self._interval_ms * self._stretch))

    def _evaluate_backpressure(self) -> None:
        if (since_ms := self._staging_since_ms) is None:
            return
        beyond_ms = self._beyond_interval_ms(self._clock_ms() - since_ms)
        with self._lock:
            if beyond_ms > self._state.backpressure_ms:
                self._state = dataclasses.replace(self._state, backpressure_ms=beyond_ms)

    def _update_stall(self) -> None:
        # Read all under one lock: with a phase older than the report, later records would count for the batch.
        with self._lock:
            state, marker, report, stretch = self._state, self._marker, self._report, self._stretch
        if marker is None:
            return
        silent_since_ms, missing = (report.silent_since_ms, report.missing) if report else (None, None)
        report = report if report and report.observed_at_ms else None  # without an answer, nothing is known
        unread, counts = report.unread(marker.offsets) if report else {}, self._counts
        sample = _build_sample(state, marker, report, unread, at_ms=self._clock_ms())
        sample = dataclasses.replace(
            sample, silent_since_ms=silent_since_ms, missing=missing, delay_s=counts.delay_s, compiling=counts.compiling
        )
        is_known = report is not None and report.is_complete and bool(unread or not report.leaderless)
        lag = (sum(unread.values()) if is_known else None) if report else state.lag
        caught_up_at_ms = self._arrivals.update(report, marker.offsets)
        self._watch.set_stretch(stretch)
        # During an outage no stall is evaluated, because the outage is reported. The history begins again afterwards.
        stall = self._watch.evaluate(sample) if state.outage is None else state.stall
        with self._lock:
            waiting = sum(sample.in_transactions.values())
            self._state = dataclasses.replace(
                self._state, lag=lag, in_transactions=waiting, stall=stall, caught_up_at_ms=caught_up_at_ms
            )
            if lag and not state.lag and state.phase is Phase.WAITING:
                # Until now the writer had no records, so this time does not count as time without progress.
                advanced_ms = max(self._state.advanced_at_ms, sample.at_ms)
                self._state = dataclasses.replace(self._state, advanced_at_ms=advanced_ms)
            if report is not None and lag == 0 and state.phase is Phase.WAITING and self._marker is marker:
                # The writer has caught up, even if it was late.
                self._state = dataclasses.replace(self._state, backpressure_ms=0)
        if report is not None:
            self._report_lag(sample, unread)

    def _report_lag(self, sample: WriterSample, unread: Mapping[TopicPartition, int]) -> None:
        if abs(sample.at_ms - self._measured_ms) < LAG_INTERVAL_MS:
            return
        self._measured_ms, state, lag = sample.at_ms, self._state, sum(unread.values())
        since_ms = sample.at_ms - (state.caught_up_at_ms or state.last_commit_at_ms or self._began_ms)
        may_wait = lag or state.in_transactions or sample.leaderless
        freshness_ms = max(since_ms, 0) if may_wait else 0
        self._emit(LagMeasured(lag, unread, freshness_ms, state.backpressure_ms, state.in_transactions))

    def _write(self) -> None:
        with self._lock:
            dataclasses.replace(self._state, written_at_ms=self._clock_ms()).write(self._folder)

    def _rotate_log(self) -> None:
        now_ms = self._clock_ms()
        if abs(now_ms - self._checked_log_ms) < LOG_CHECK_INTERVAL_MS:
            return
        self._checked_log_ms = now_ms
        try:
            rotate_full_log(self._folder)
        except OSError as error:
            log.warning("the log cannot be rotated and keeps growing: %s", error)


def _build_sample(
    state: Heartbeat, marker: Marker, report: PlannerReport | None, unread: Mapping[TopicPartition, int], *, at_ms: int
) -> WriterSample:
    leaderless, batch = report.leaderless if report else (), None
    if state.phase in BATCH_PHASES and state.epoch is not None and state.batch is not None:
        current = BatchKey(state.epoch, state.batch)
        batch = None if current == marker.key else current  # the marker has it once it is committed
    return WriterSample(
        at_ms=at_ms,
        phase=state.phase,
        advanced_at_ms=state.advanced_at_ms,
        offsets=marker.offsets,
        unread={tp: count for tp, count in unread.items() if tp not in leaderless},
        leaderless={tp: unread.get(tp, 0) if report and tp in report.ends else None for tp in leaderless},
        in_transactions=report.in_transactions if report else {},
        transaction=report.transaction if report else "",
        planned_at_ms=report.observed_at_ms if report else None,
        batch=batch,
        batch_records=state.batch_records,
        max_event_times_us=marker.max_event_times_us,
        idle=marker.idle,
        watermark_us=marker.watermark_us,
    )


def _read_caught_up_at_ms(folder: Path, now_ms: int) -> int | None:
    try:
        heartbeat = Heartbeat.read(folder)
    except (ValueError, TypeError, KeyError, OSError):
        return None
    return heartbeat.caught_up_at_ms if heartbeat and now_ms - heartbeat.written_at_ms <= MAX_INHERITED_AGE_MS else None


class CaughtUpTracker:
    def __init__(self, caught_up_at_ms: int | None = None) -> None:
        self.caught_up_at_ms = caught_up_at_ms
        self._reports: list[PlannerReport] = []

    def update(self, report: PlannerReport | None, offsets: Offsets) -> int | None:
        """Add a report. Return the time of the newest report whose unread records are now committed (`offsets`)."""
        before_ms = self._reports[-1].observed_at_ms if self._reports else -1
        # A partition may have got records between the last known end and the loss of its leader.
        if report is not None and not report.leaderless and report.observed_at_ms > before_ms:
            last = self._reports[-1] if self._reports else None
            if last and (last.ends, last.in_transactions) == (report.ends, report.in_transactions):
                self._reports.pop()
            self._reports.append(report)
        while self._reports:
            oldest = self._reports[0]
            ends = {tp: end + oldest.in_transactions.get(tp, 0) for tp, end in oldest.ends.items()}
            if dataclasses.replace(oldest, ends=ends).unread(offsets):
                break
            self.caught_up_at_ms = self._reports.pop(0).observed_at_ms
        if len(self._reports) > MAX_REPORTS:
            del self._reports[1::2]
        return self.caught_up_at_ms
