"""When a healthy writer counts as stalled, with the partition that causes it: examples and laws."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.commit.marker import BatchKey
from frazil.errors import Failure
from frazil.events import StallBegan, StallEnded, StreamEvent
from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.stream.stall import (
    COMPILE_TIMEOUT_MS,
    MAX_SAMPLE_GAP_MS,
    MIN_STALL_MS,
    ONE_TIME_TIMEOUT_MS,
    START_TIMEOUT_MS,
    SampleHistory,
    StallLimits,
    StallWatch,
    WriterSample,
    add_sample,
    find_stall,
)

SECOND = 1_000
INTERVAL = 60 * SECOND
STILL = 3 * INTERVAL
PERIOD = SECOND
START = 1_800_000_000_000
LIMITS = StallLimits(interval_ms=INTERVAL, idle_timeout_ms=5 * INTERVAL)
TP0, TP1, TP2 = ("t", 0), ("t", 1), ("t", 2)
TIME_US = 1_388_361_600_000_000  # 2013-12-30


class Writer:
    """A writer as its heartbeat sees it; set its fields to change the world. It samples itself once a second."""

    def __init__(self, *, limits: StallLimits = LIMITS, **changes: Any) -> None:
        self.limits = limits
        values: dict[str, Any] = {
            "at_ms": START, "phase": Phase.WAITING, "advanced_at_ms": START, "offsets": {TP0: 100, TP1: 200},
            "planned_at_ms": START, "max_event_times_us": {TP0: TIME_US, TP1: TIME_US + 1}, "watermark_us": TIME_US,
        }  # fmt: skip
        self.now = WriterSample(**{**values, **changes})
        self.planner_runs = True
        self.history: SampleHistory | None = None
        self.stall: Stall | None = None
        self.sample()

    def sample(self) -> Stall | None:
        self.history = add_sample(self.history, self.now, limits=self.limits)
        self.stall = find_stall(self.history, self.now, limits=self.limits, stream="s")
        return self.stall

    def set(self, **changes: Any) -> None:
        self.now = dataclasses.replace(self.now, **changes)

    def works(self, phase: Phase, batch: BatchKey | None, records: int = 0) -> None:
        """The phase, the batch or its records move."""
        self.set(phase=phase, batch=batch, batch_records=records, advanced_at_ms=self.now.at_ms)

    def commits(self, *, watermark_us: int | None = None, **offsets: int) -> None:
        moved = {**self.now.offsets, **{("t", int(k[2:])): v for k, v in offsets.items()}}
        self.works(Phase.WAITING, None)
        self.set(offsets=moved, unread={}, watermark_us=watermark_us or self.now.watermark_us)

    def passes(self, ms: int) -> list[Stall]:
        """The stalls that a sample each second shows while some time passes."""
        seen = []
        for _ in range(ms // PERIOD):
            self.set(at_ms=self.now.at_ms + PERIOD)
            if self.planner_runs and self.now.phase is Phase.WAITING:
                self.set(planned_at_ms=self.now.at_ms)
            if (stall := self.sample()) is not None:
                seen.append(stall)
        return seen


# What is no stall


def test_a_quiet_topic_is_not_a_stall_for_hours():
    assert Writer().passes(2 * 3600 * SECOND) == []


def test_a_quiet_topic_with_an_unknown_watermark_is_not_a_stall():
    assert Writer(watermark_us=None, max_event_times_us={}).passes(10 * INTERVAL) == []


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.JOURNALING, Phase.COMMITTING])
def test_a_batch_slowed_by_a_busy_host_is_not_stalled_even_with_a_short_interval(phase: Phase):
    writer = Writer(limits=StallLimits(interval_ms=SECOND, idle_timeout_ms=INTERVAL), unread={TP0: 5})
    for batch, timeout_ms in ((0, START_TIMEOUT_MS), (1, MIN_STALL_MS)):  # the first batch starts Python workers
        writer.passes(2 * SECOND)
        writer.works(phase, BatchKey(1, batch))
        assert writer.passes(timeout_ms - PERIOD) == []
        writer.commits(tp0=105 + batch, watermark_us=TIME_US + batch + 1)
        assert writer.passes(MIN_STALL_MS) == []
        writer.set(unread={TP0: 5})
    writer.works(phase, BatchKey(1, 2))
    assert writer.passes(MIN_STALL_MS + PERIOD)


def test_a_batch_may_compile_for_minutes_and_then_has_the_usual_stall_limit():
    writer = Writer(limits=StallLimits(interval_ms=SECOND, idle_timeout_ms=INTERVAL), unread={TP0: 5})
    writer.works(Phase.STAGING, BatchKey(1, 0))
    writer.set(compiling=True)
    assert writer.passes(COMPILE_TIMEOUT_MS - PERIOD) == []
    writer.set(compiling=False, advanced_at_ms=writer.now.at_ms)
    assert writer.passes(START_TIMEOUT_MS - PERIOD) == []
    assert writer.passes(PERIOD)


def test_a_planner_delayed_by_a_busy_host_is_not_a_stall_and_a_silent_one_is_reported_after_20_s():
    writer = Writer(limits=StallLimits(interval_ms=SECOND, idle_timeout_ms=INTERVAL), unread={TP0: 5})
    writer.planner_runs = False
    assert writer.passes(MIN_STALL_MS - PERIOD) == []
    assert writer.passes(PERIOD)


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.STAGING])
def test_brokers_that_do_not_answer_are_named_after_20_s_however_long_the_interval(phase: Phase):
    writer = Writer(phase=phase)
    writer.set(silent_since_ms=START)
    assert writer.passes(MIN_STALL_MS - PERIOD) == []
    (stall,) = writer.passes(PERIOD)
    assert (stall.kind, stall.since_ms, stall.held_back_by) == (StallKind.KAFKA, START, None)
    assert "Kafka has not answered since" in stall.reason
    writer.set(silent_since_ms=None)
    assert writer.passes(PERIOD) == []


def test_silent_brokers_are_one_stall_and_not_also_a_silent_planner():
    writer = Writer(limits=StallLimits(interval_ms=SECOND, idle_timeout_ms=INTERVAL))
    writer.planner_runs = False
    writer.passes(2 * PERIOD)
    writer.set(silent_since_ms=START + 2 * PERIOD)
    assert {stall.kind for stall in writer.passes(2 * MIN_STALL_MS)} == {StallKind.KAFKA}


def test_a_deleted_topic_is_reported_although_no_record_waits():
    writer = Writer(limits=StallLimits(interval_ms=SECOND, idle_timeout_ms=INTERVAL))
    writer.planner_runs = False
    writer.set(silent_since_ms=START, missing=Failure("Kafka has no topic t", "Create it"))
    found = writer.passes(2 * MIN_STALL_MS)
    assert {(stall.kind, str(stall.failure)) for stall in found} == {
        (StallKind.TOPIC, "Kafka has no topic t. Create it")
    }


@pytest.mark.parametrize(("unread", "text"), [(12, "(12 of them are known)"), (None, "(how many is unknown)")])
def test_partitions_without_a_leader_are_reported_after_20_s_although_commits_continue(unread: int | None, text: str):
    writer = Writer(leaderless={TP1: unread})
    assert writer.passes(MIN_STALL_MS - PERIOD) == []
    writer.commits(tp0=110)
    (stall,) = writer.passes(PERIOD)
    assert (stall.kind, stall.since_ms, stall.held_back_by) == (StallKind.LEADER, START, "t-1")
    assert stall.reason.startswith("t-1 has had no leader since 2027-01-15 08:00:00Z (20 s): its records from offset")
    assert text in stall.reason
    writer.set(leaderless={TP1: unread, TP0: 0})
    assert "t-1 (and 1 more) has had" in writer.passes(PERIOD)[0].reason
    writer.set(leaderless={TP0: 0})
    assert writer.passes(PERIOD) == []


def test_records_that_wait_for_the_commit_interval_are_not_a_stall():
    writer = Writer(unread={TP0: 5})
    assert writer.passes(STILL - PERIOD) == []
    writer.commits(tp0=105)
    assert writer.passes(10 * INTERVAL) == []


def test_a_writer_whose_offsets_advance_is_not_stalled_although_its_lag_grows():
    writer = Writer(unread={TP0: 10**6, TP1: 10**6})
    for n in range(1, 20):
        writer.set(
            offsets={TP0: 100 + n, TP1: 200 + n}, unread={TP0: 10**6 * n, TP1: 10**6 * n}, watermark_us=TIME_US + n
        )
        assert writer.passes(2 * INTERVAL) == []


def test_one_long_batch_that_keeps_reading_is_not_a_stall():
    writer = Writer(unread={TP0: 10**7})
    for n in range(1, 60):
        writer.works(Phase.STAGING, BatchKey(3, 1), records=n * 10_000)
        assert writer.passes(INTERVAL) == []
    writer.works(Phase.COMMITTING, BatchKey(3, 1))
    assert writer.passes(2 * INTERVAL) == []


def test_one_late_record_in_a_quiet_topic_is_not_reported_as_a_watermark_stall():
    writer = Writer()
    writer.passes(60 * INTERVAL)
    writer.set(unread={TP0: 1})
    writer.passes(INTERVAL)
    writer.commits(tp0=101)
    assert writer.passes(60 * INTERVAL) == []


def test_a_watermark_is_not_stalled_if_only_idle_partitions_could_hold_it():
    writer = Writer(idle=frozenset({TP0, TP1}))
    for n in range(10):
        writer.commits(tp0=101 + n)
        assert writer.passes(INTERVAL) == []


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.TAKING_OVER, Phase.STOPPING, Phase.ENDED])
def test_a_phase_with_its_own_time_limit_is_not_stalled(phase: Phase):
    writer = Writer(unread={TP0: 5})
    writer.works(phase, None)
    assert writer.passes(10 * INTERVAL) == []


def test_records_that_waited_while_the_writer_took_over_count_from_its_first_poll_of_kafka():
    writer = Writer(phase=Phase.TAKING_OVER, unread={TP0: 5}, planned_at_ms=START - 3600 * SECOND)
    writer.passes(10 * INTERVAL)
    writer.works(Phase.WAITING, None)
    assert writer.passes(STILL) == []
    assert writer.passes(2 * PERIOD) != []


# Offsets


def test_records_of_which_no_batch_is_made_are_reported_after_three_intervals():
    writer = Writer(unread={TP0: 5, TP1: 1})
    assert writer.passes(STILL - PERIOD) == []
    (stall,) = writer.passes(PERIOD)
    assert (stall.kind, stall.since_ms, stall.held_back_by) == (StallKind.OFFSETS, START, "t-0")
    for said in (
        "t-0",
        "5 records from offset 100",
        "6 in all",
        "2027-01-15 08:00:00Z (3 min 0 s)",
        "frazil restart s",
    ):
        assert said in stall.reason


def test_a_stall_is_reported_for_one_uncommitted_record_even_if_the_lag_does_not_grow():
    assert Writer(unread={TP0: 1}).passes(STILL)[0].held_back_by == "t-0"


def test_the_partition_that_falls_behind_the_others_is_reported():
    writer = Writer(unread={TP0: 9, TP1: 5})
    for n in range(1, 4):
        writer.passes(INTERVAL)
        writer.set(offsets={TP0: 100 + n, TP1: 200}, watermark_us=TIME_US + n)
        writer.sample()
    assert writer.stall is not None
    assert (writer.stall.kind, writer.stall.held_back_by) == (StallKind.OFFSETS, "t-1")


@pytest.mark.parametrize(("delay_s", "hint"), [(0.2, "brokers and executors"), (40.0, "delays each fetch by 40 s")])
def test_a_stall_is_attributed_to_a_quota_only_if_the_quota_can_stop_a_batch(delay_s: float, hint: str) -> None:
    writer = Writer(unread={TP0: 9})
    writer.works(Phase.STAGING, BatchKey(1, 5))
    writer.set(delay_s=delay_s)
    writer.passes(2 * STILL)
    assert writer.stall is not None
    assert hint in writer.stall.reason


def test_a_stall_during_compilation_names_the_compilation_as_its_reason() -> None:
    writer = Writer(unread={TP0: 9})
    writer.works(Phase.STAGING, BatchKey(1, 0))
    writer.set(compiling=True)
    writer.passes(COMPILE_TIMEOUT_MS)
    assert writer.stall is not None
    assert "the loops over records are being compiled" in writer.stall.reason
    assert "executors" not in writer.stall.reason


@pytest.mark.parametrize(
    ("phase", "hint"),
    [
        (Phase.STAGING, ", has read 1,000 records and makes no progress. Check that brokers and executors answer"),
        (Phase.JOURNALING, " and makes no progress. Check that catalog and storage answer"),
        (Phase.COMMITTING, " and makes no progress. Check that catalog and storage answer"),
    ],
)
def test_a_batch_that_stands_still_is_reported_with_what_it_waits_for(phase: Phase, hint: str):
    """After staging, the heartbeat no longer counts records."""
    writer = Writer(unread={TP0: 5, TP1: 9})
    writer.passes(INTERVAL)
    writer.works(phase, BatchKey(3, 1), records=1_000 if phase is Phase.STAGING else 0)
    assert writer.passes(STILL - PERIOD) == []
    (stall,) = writer.passes(PERIOD)
    assert stall.held_back_by == "t-1"
    assert f"batch 3-1 is {phase}{hint}" in stall.reason


def test_batches_that_are_repeatedly_lost_and_read_again_are_reported_as_a_stall():
    writer = Writer(unread={TP0: 5})
    seen = []
    for epoch in range(3, 9):
        for records in range(1, 4):
            writer.works(Phase.STAGING, BatchKey(epoch, 1), records=records)
            seen += writer.passes(20 * SECOND)
        writer.works(Phase.TAKING_OVER, None)
        seen += writer.passes(5 * SECOND)
    assert seen
    assert "reads again the records that batch 3-1 did not commit" in seen[0].reason
    assert seen[0].since_ms <= START + INTERVAL


def test_a_batch_that_ended_without_the_waiting_records_is_named_in_the_stall():
    writer = Writer(unread={TP0: 5})
    writer.works(Phase.STAGING, BatchKey(3, 1))
    writer.sample()
    writer.works(Phase.WAITING, None)
    assert "batch 3-1 ended without these records" in writer.passes(STILL + PERIOD)[-1].reason


def test_a_partition_that_no_marker_knows_yet_is_reported_as_any_other():
    stall = Writer(unread={TP2: 3}).passes(STILL)[0]
    assert stall.held_back_by == "t-2"
    assert "from its beginning" in stall.reason


def test_a_stall_ends_with_the_commit():
    writer = Writer(unread={TP0: 5})
    assert writer.passes(STILL)
    writer.commits(tp0=105, watermark_us=TIME_US + 5)
    assert writer.passes(10 * INTERVAL) == []


# The planner


def test_a_planner_that_falls_silent_is_reported_even_without_known_unread_records():
    writer = Writer()
    writer.planner_runs = False
    assert writer.passes(STILL - PERIOD) == []
    (stall,) = writer.passes(PERIOD)
    assert (stall.kind, stall.held_back_by, stall.since_ms) == (StallKind.OFFSETS, None, START)
    assert "Kafka has not answered the planner since" in stall.reason


def test_a_silent_planner_is_reported_with_the_partition_that_had_the_most_unread_records():
    writer = Writer(unread={TP0: 1, TP1: 7})
    writer.planner_runs = False
    stall = writer.passes(STILL)[0]
    assert stall.held_back_by == "t-1"
    assert "8 records were unread then, 7 of them in t-1" in stall.reason


def test_the_planner_may_be_silent_while_a_batch_runs_and_is_given_time_after_it():
    writer = Writer()
    writer.works(Phase.STAGING, BatchKey(3, 1))
    assert writer.passes(10 * INTERVAL) == []
    writer.planner_runs = False
    writer.works(Phase.WAITING, None)
    assert writer.passes(STILL - PERIOD) == []
    assert writer.passes(PERIOD)[0].since_ms == START + 10 * INTERVAL


def test_a_planner_without_any_answer_is_stalled_only_after_the_start_timeout():
    quick = StallLimits(interval_ms=SECOND, idle_timeout_ms=INTERVAL)
    sample = WriterSample(at_ms=START, phase=Phase.WAITING, advanced_at_ms=START, offsets={TP0: 1})
    history = add_sample(None, sample, limits=quick)
    stalls = {}
    for after in range(SECOND, START_TIMEOUT_MS + SECOND, SECOND):
        sample = dataclasses.replace(sample, at_ms=START + after)
        history = add_sample(history, sample, limits=quick)
        stalls[after] = find_stall(history, sample, limits=quick, stream="s")
    assert [after for after, stall in stalls.items() if stall] == [START_TIMEOUT_MS]


# The watermark


def commits_of_one_partition(writer: Writer, intervals: int) -> list[Stall]:
    """Partition 0 brings records and newer event times, and a commit each interval."""
    seen = []
    for _ in range(intervals):
        seen += writer.passes(INTERVAL)
        offset = writer.now.offsets[TP0] + 10
        writer.commits(tp0=offset)
        writer.set(max_event_times_us={**writer.now.max_event_times_us, TP0: TIME_US + offset})
    return seen


def test_an_open_transaction_is_reported_although_other_partitions_advance():
    writer = Writer(in_transactions={TP1: 40})
    writer.set(max_event_times_us={TP0: TIME_US, TP1: TIME_US - 1})
    stall = commits_of_one_partition(writer, 4)[0]
    assert (stall.kind, stall.held_back_by, stall.since_ms) == (StallKind.TRANSACTION, "t-1", START)
    assert "t-1 waits for a transaction to end: 40 offsets behind offset 200 have been unreadable since" in stall.reason
    assert "kafka-transactions.sh find-hanging" in stall.reason


def test_an_open_transaction_is_a_stall_although_nothing_else_is_unread():
    writer = Writer(in_transactions={TP0: 40})
    assert writer.passes(STILL - PERIOD) == []
    (stall,) = writer.passes(PERIOD)
    assert (stall.kind, stall.since_ms) == (StallKind.TRANSACTION, START)
    assert len(writer.passes(24 * 3600 * SECOND // 100)) == 24 * 3600 // 100
    assert writer.stall.since_ms == START
    writer.set(in_transactions={}, unread={TP0: 40})
    assert writer.passes(PERIOD) == []
    writer.commits(tp0=140)
    assert writer.passes(10 * INTERVAL) == []


def test_a_stall_on_a_source_transaction_reports_what_is_known_of_the_transaction():
    writer = Writer(in_transactions={TP0: 7}, transaction="transaction 571 of the source has not ended")
    (stall,) = [writer.passes(STILL)[-1]]
    assert stall.kind is StallKind.TRANSACTION
    assert "7 offsets behind offset 100" in stall.reason
    assert "transaction 571 of the source has not ended" in stall.reason
    assert "find-hanging" not in stall.reason


def test_transactions_that_end_while_others_begin_are_not_a_stall():
    writer = Writer(in_transactions={TP0: 40})
    for n in range(1, 20):
        assert writer.passes(STILL - INTERVAL) == []
        writer.commits(tp0=100 + 10 * n, watermark_us=TIME_US + n)


def test_a_partition_that_never_had_a_record_is_reported_within_three_intervals():
    writer = Writer(watermark_us=None, max_event_times_us={TP0: TIME_US}, offsets={TP0: 100, TP1: 0})
    seen = commits_of_one_partition(writer, 4)
    stall = seen[0]
    assert (stall.kind, stall.held_back_by, stall.since_ms) == (StallKind.WATERMARK, "t-1", START)
    for said in ("t-1 holds the watermark back", "has been unknown since", "it has no known event time", "(5 min 0 s)"):
        assert said in stall.reason
    assert writer.now.at_ms - len(seen) * PERIOD < START + STILL


def test_an_empty_partition_whose_first_commit_is_at_offset_0_is_reported_as_empty():
    writer = Writer(watermark_us=None, max_event_times_us={TP0: TIME_US}, offsets={TP0: 100})
    writer.passes(INTERVAL)
    writer.commits(tp0=105, tp1=0)
    reason = commits_of_one_partition(writer, 4)[0].reason
    assert "the partition is empty: no records arrive, and it has no known event time" in reason
    assert "after watermark.idle-timeout (5 min 0 s) without unread records, the partition no longer counts" in reason


def test_a_partition_whose_records_had_no_event_time_is_not_reported_as_empty():
    writer = Writer(watermark_us=None, max_event_times_us={TP0: TIME_US}, offsets={TP0: 100, TP1: 1})
    reason = commits_of_one_partition(writer, 4)[0].reason
    assert "t-1 holds the watermark back" in reason
    assert ": no records arrive, and it has no known event time" in reason
    assert "is empty" not in reason


def test_a_watermark_stall_counts_from_a_slowly_started_writers_first_poll():
    writer = Writer(phase=Phase.TAKING_OVER, watermark_us=None, max_event_times_us={TP0: TIME_US})
    writer.passes(10 * INTERVAL)
    writer.works(Phase.WAITING, None)
    assert commits_of_one_partition(writer, 4)[0].since_ms == START + 10 * INTERVAL


def test_a_partition_with_a_constant_event_time_is_reported_with_others_at_the_same_time():
    times = {TP0: TIME_US + 100, TP1: TIME_US, TP2: TIME_US}
    writer = Writer(offsets={TP0: 100, TP1: 1, TP2: 1}, max_event_times_us=times)
    stall = commits_of_one_partition(writer, 4)[0]
    assert stall.held_back_by == "t-1"
    assert "(and 1 more) holds" in stall.reason
    assert "no records arrive, and its newest event time is 2013-12-30 00:00:00Z" in stall.reason


def commits_with_equal_times(writer: Writer, ms: int, *partitions: int) -> list[Stall]:
    seen = []
    for _ in range(ms // INTERVAL):
        seen += writer.passes(INTERVAL)
        writer.commits(**{f"tp{p}": writer.now.offsets["t", p] + 1 for p in partitions})
    return seen


def test_records_that_all_have_one_event_time_are_no_stall_until_a_clock_has_stood_still_for_long():
    writer = Writer(max_event_times_us={TP0: TIME_US, TP1: TIME_US})
    assert commits_with_equal_times(writer, ONE_TIME_TIMEOUT_MS - INTERVAL, 0, 1) == []
    stall = commits_with_equal_times(writer, 2 * INTERVAL, 0, 1)[0]
    assert (stall.held_back_by, stall.kind) == ("t-0", StallKind.WATERMARK)
    assert "its records arrive, and its newest event time is 2013-12-30 00:00:00Z" in stall.reason
    assert (
        "A load of records with one event time ends by itself. Otherwise, check the producers' clocks" in stall.reason
    )
    assert "dead letters" in stall.reason


def test_the_standing_clock_of_one_producer_is_reported_although_its_records_arrive():
    writer = Writer(max_event_times_us={TP0: TIME_US, TP1: TIME_US + 1})
    stall = commits_with_equal_times(writer, 5 * INTERVAL, 0, 1)[0]
    assert stall.held_back_by == "t-0"
    assert "its records arrive, and its newest event time is 2013-12-30 00:00:00Z" in stall.reason
    assert "one event time" not in stall.reason


def test_records_with_one_event_time_do_not_excuse_a_silent_partition():
    writer = Writer(max_event_times_us={TP0: TIME_US, TP1: TIME_US})
    assert "(and 1 more) holds the watermark back" in commits_with_equal_times(writer, 5 * INTERVAL, 0)[0].reason


def test_an_idle_partition_is_not_reported_as_the_cause():
    writer = Writer(idle=frozenset({TP1}), max_event_times_us={TP0: TIME_US})
    for n in range(1 + ONE_TIME_TIMEOUT_MS // INTERVAL):
        writer.passes(INTERVAL)
        writer.commits(tp0=101 + n)
    assert writer.stall is not None
    assert writer.stall.held_back_by == "t-0"


def test_an_advancing_watermark_or_a_quiet_topic_ends_the_stall():
    writer = Writer(watermark_us=None, max_event_times_us={TP0: TIME_US})
    assert commits_of_one_partition(writer, 4)
    writer.commits(tp0=1000, watermark_us=TIME_US)
    assert writer.passes(PERIOD) == []
    assert commits_of_one_partition(writer, 4)
    writer.passes(STILL + PERIOD)
    assert writer.passes(10 * INTERVAL) == []


def test_long_batches_that_do_not_advance_the_watermark_are_reported_after_their_second_commit():
    writer = Writer(watermark_us=None, max_event_times_us={TP0: TIME_US})
    seen: list[Stall] = []
    for n in range(1, 4):
        writer.set(unread={TP0: 10**6})
        for step in range(10):
            writer.works(Phase.STAGING, BatchKey(1, n), records=step + 1)
            seen += writer.passes(INTERVAL)
        assert bool(seen) is (n > 2)
        writer.commits(tp0=1000 * n + 100)
        writer.sample()
    assert seen[0].kind is StallKind.WATERMARK


def test_a_stall_with_an_event_time_beyond_the_calendar_is_reported():
    writer = Writer(offsets={TP0: 100}, max_event_times_us={TP0: 2**62}, watermark_us=2**62)
    for n in range(1 + ONE_TIME_TIMEOUT_MS // INTERVAL):
        writer.passes(INTERVAL)
        writer.commits(tp0=101 + n)
    assert writer.stall is not None


# Time


@pytest.mark.parametrize("jump", [MAX_SAMPLE_GAP_MS + INTERVAL + PERIOD, 8 * 3600 * SECOND, -3600 * SECOND])
def test_after_a_sleep_or_clock_change_of_the_machine_the_stall_timer_restarts(jump: int):
    writer = Writer(unread={TP0: 5})
    writer.passes(STILL - PERIOD)
    writer.set(at_ms=writer.now.at_ms + jump)
    assert writer.sample() is None
    assert writer.passes(STILL - PERIOD) == []
    assert writer.passes(PERIOD) != []


# Laws

SOME_SECONDS = st.integers(1, STILL // SECOND - 1)


@settings(max_examples=40)
@given(st.lists(st.tuples(SOME_SECONDS, st.sampled_from(list(Phase)), st.booleans()), max_size=30))
def test_no_stall_is_reported_while_offsets_and_watermark_both_move_within_three_intervals(
    steps: list[tuple[int, Phase, bool]],
):
    writer = Writer(unread={TP0: 5, TP1: 5})
    for n, (seconds, phase, lags) in enumerate(steps, start=1):
        writer.works(phase, BatchKey(1, n) if phase in {Phase.STAGING, Phase.COMMITTING} else None)
        assert writer.passes((seconds - 1) * SECOND) == []
        writer.commits(tp0=100 + n, tp1=200 + n, watermark_us=TIME_US + n)
        writer.set(unread={TP0: n, TP1: 5} if lags else {})
        assert writer.passes(SECOND) == []


@settings(max_examples=40)
@given(
    healthy=st.lists(SOME_SECONDS, max_size=5),
    unread=st.dictionaries(st.sampled_from([TP0, TP1, TP2]), st.integers(1, 10**9), min_size=1),
    growth=st.integers(0, 10**6),
    phase=st.sampled_from([Phase.WAITING, Phase.STAGING, Phase.JOURNALING, Phase.COMMITTING]),
    planner_runs=st.booleans(),
)
def test_offsets_that_do_not_move_while_records_are_unread_are_always_reported(
    healthy: list[int], unread: dict[tuple[str, int], int], growth: int, phase: Phase, *, planner_runs: bool
):
    """Within three commit intervals and two heartbeats, whatever happened before and whatever the writer does."""
    writer = Writer()
    for n, seconds in enumerate(healthy, start=1):
        writer.passes(seconds * SECOND)
        writer.commits(tp0=100 + n, watermark_us=TIME_US + n)
    writer.works(phase, None if phase is Phase.WAITING else BatchKey(1, 99))
    writer.planner_runs = planner_runs
    for second in range(STILL // PERIOD + 2):
        writer.set(unread={tp: n + growth * second for tp, n in unread.items()})
        writer.passes(PERIOD)
    assert writer.stall is not None
    assert writer.stall.kind is StallKind.OFFSETS
    assert writer.stall.held_back_by in {f"{topic}-{partition}" for topic, partition in unread}


# The heartbeat


def test_a_heartbeat_contains_the_stall_and_one_of_an_older_version_has_none(tmp_path: Path):
    stall = Stall(StallKind.WATERMARK, START, "t-1", "t-1 holds the watermark back")
    heartbeat = Heartbeat("s", 1, "f", Phase.WAITING, START, START, stall=stall)
    heartbeat.write(tmp_path)
    assert Heartbeat.read(tmp_path) == heartbeat
    file = tmp_path / "status.json"
    older = json.loads(file.read_text())
    del older["stall"]
    file.write_text(json.dumps(older))
    assert Heartbeat.read(tmp_path) == dataclasses.replace(heartbeat, stall=None)


def test_a_stall_of_another_kind_replaces_the_first_which_is_then_not_over():
    said: list[StreamEvent] = []
    watch, writer = StallWatch("s", LIMITS, emit=said.append), Writer(unread={TP0: 5})
    for at_ms in range(START, START + 2 * STILL, SECOND):
        silent_since_ms = START if at_ms - START > STILL + SECOND else None
        writer.set(at_ms=at_ms, planned_at_ms=at_ms, silent_since_ms=silent_since_ms)
        watch.evaluate(writer.now)
    writer.commits(p_0=105)
    writer.set(silent_since_ms=None)
    watch.evaluate(writer.now)
    offsets, kafka = StallKind.OFFSETS, StallKind.KAFKA
    assert [one.stall.kind for one in said if isinstance(one, StallBegan)] == [offsets, kafka]
    ended = [one for one in said if isinstance(one, StallEnded)]
    assert [(one.kind, one.is_over) for one in ended] == [(offsets, False), (kafka, True)]
