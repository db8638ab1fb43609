"""The planner's plans over time: ends advance, partitions appear and fall silent, and Kafka is unavailable."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from frazil.commit.marker import LastTransaction
from frazil.errors import AccessDenied, KafkaUnavailable, OffsetGap, SpecError, TopicMissing, TopicRecreated
from frazil.ingest.contract import StageTask
from frazil.kafka.admin import Topics
from frazil.kafka.logs import MAX_OUTDATED_POLLS, MIN_SHORT_POLLS, LogEnd
from frazil.offsets.spans import SourceIdentity
from frazil.partitions.completeness import watermark_us
from frazil.spec.source import TopicPattern
from frazil.stream.plan import BatchPolicy, PlannerReport, Position, Rates, write_rates
from frazil.stream.planner import UNREACHABLE_TIMEOUT_S, BatchPlanner, PlannerSettings
from frazil.stream.reporter import CaughtUpTracker

TP0, TP1, TP2 = ("t", 0), ("t", 1), ("t", 2)
OLD = ("old", 0)
U = ("u", 0)


class StandInKafka:
    """Answers as a broker would; set its fields to change the world."""

    def __init__(self) -> None:
        self.end = {TP0: 0, TP1: 0}
        self.high: dict[tuple[str, int], int] = {}
        """High watermarks that differ from the end: the records of an open transaction lie between."""
        self.leader_epoch: int | None = None
        self.log_cut: dict[tuple[str, int], int] = {}
        """Offsets at which logs were truncated that have grown again."""
        self.requested: set[tuple[str, int]] = set()
        self.begin = {TP0: 0, TP1: 0}
        self.identity = SourceIdentity("c1", {"t": "id-1"})
        self.down = False
        self.gone: set[str] = set()
        """Topics of which no leader answers, because they were deleted."""
        self.described = 0
        self.leaderless: set[tuple[str, int]] = set()
        self.hidden: set[str] = set()
        """Topics that the stream may not describe (now)."""

    def check_not_hidden(self, topics):
        self._answer()
        if hidden := self.hidden & set(topics):
            raise AccessDenied(f"may not describe {hidden}")

    def describe(self) -> Topics:
        self.described += 1
        self._answer()
        partitions = tuple(tp for tp in self.end if tp[0] in self.identity.topic_ids)
        return Topics(self.identity, partitions, frozenset(self.leaderless))

    def earliest(self, partitions):
        self._answer(partitions)
        return {tp: self.begin[tp] for tp in partitions}

    def log_ends(self, partitions):
        self._answer(partitions)
        if self.gone & {topic for topic, _ in partitions}:
            raise TopicMissing("a topic does not exist")
        self.requested |= set(partitions)
        return {tp: LogEnd(self.end[tp], self.high.get(tp, self.end[tp]), self.leader_epoch) for tp in partitions}

    def truncation_offsets(self, positions):
        self._answer()
        return {tp: at for tp, at in self.log_cut.items() if tp in positions and positions[tp][0] > at}

    def _answer(self, partitions=()) -> None:
        if self.down or self.leaderless & set(partitions):
            raise KafkaUnavailable("no brokers, or no leader")


class World:
    """A planner, its Kafka, and a clock that only tests move."""

    def __init__(self, folder: Path, **policy: object) -> None:
        self.now = 1000.0
        self.reports: list[PlannerReport] = []
        self.kafka = StandInKafka()
        settings = PlannerSettings(
            stream="s",
            topics=("t",),
            policy=BatchPolicy(
                **{
                    "interval_s": 60.0,
                    "size_bytes": 2**30,
                    "max_records": 1000,
                    "target_file_bytes": 2**29,
                    "parallelism": 2,
                    **policy,
                }
            ),
            idle_timeout_s=300.0,
            run_folder=folder,
        )
        self.planner = BatchPlanner(
            settings=settings,
            kafka=self.kafka,  # type: ignore[arg-type]
            source=self.kafka.identity,
            position=Position({TP0: 0, TP1: 0}),
            report=self.reports.append,
            clock=lambda: self.now,
        )

    def after(self, seconds: float) -> Position:
        """Return the position after some seconds of one poll per second."""
        position = self.planner.position
        for _ in range(int(seconds)):
            self.now += 1.0
            position = self.planner.next_position()
        return position


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_due_batch_takes_all_arrived_records_so_that_the_next_is_not_early(tmp_path: Path):
    world, starts = World(tmp_path, interval_s=2.0), list[float]()
    write_rates(tmp_path, Rates(overhead_s=0.4))
    world.planner.next_position()
    for _ in range(200):
        world.now += 0.1
        world.kafka.end[TP0] += 1
        before = world.planner.position
        if (found := world.planner.next_position()) != before:
            starts.append(world.now)
            assert found.offsets[TP0] == world.kafka.end[TP0]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert (min(gaps), max(gaps)) == (pytest.approx(1.6), pytest.approx(1.6))


def test_without_a_due_batch_kafka_is_polled_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world, polls = World(tmp_path, interval_s=20.0), list[float]()
    log_ends = world.kafka.log_ends
    monkeypatch.setattr(world.kafka, "log_ends", lambda tps: polls.append(world.now) or log_ends(tps))
    for step in range(160):
        world.kafka.end[TP0] += step >= 80
        world.now += 0.1
        world.planner.next_position()
    assert len(polls) <= 17
    world.kafka.down = True
    world.now += 100.0
    for _ in range(80):
        world.now += 0.1
        world.planner.next_position()
    assert len(polls) <= 25, "brokers that do not answer are not polled more often"


def test_records_waiting_at_the_start_are_planned_at_once(world: World):
    world.kafka.end = {TP0: 5, TP1: 7}
    assert world.after(1).offsets == {TP0: 5, TP1: 7}


def test_a_position_is_known_at_once_until_the_next_poll_is_due(world: World):
    assert world.planner.position_without_poll() is None
    world.after(1)
    world.kafka.end = {TP0: 5, TP1: 0}
    world.after(1)
    world.now += 0.5
    assert world.planner.position_without_poll() == world.planner.position
    with world.planner.poll_lock:
        assert world.planner.position_without_poll() is None, "another thread polls, perhaps for long"
    world.now += 0.5
    assert world.planner.position_without_poll() is None


def test_a_poll_error_during_a_batch_is_raised_at_the_next_position_request(world: World):
    world.after(1)
    world.planner.poll_error = KafkaUnavailable("gone")
    assert world.planner.position_without_poll() is None
    with pytest.raises(KafkaUnavailable):
        world.planner.next_position()


def test_later_records_wait_for_the_interval(world: World):
    world.after(1)
    world.kafka.end = {TP0: 5, TP1: 0}
    assert world.after(30).offsets == {TP0: 0, TP1: 0}
    assert world.after(31).offsets == {TP0: 5, TP1: 0}


def test_later_records_wait_for_the_stretched_interval_up_to_its_bound(tmp_path: Path):
    world = World(tmp_path, longest_interval_s=180.0)
    write_rates(tmp_path, Rates(stretch=50.0))
    world.after(1)
    world.kafka.end = {TP0: 5, TP1: 0}
    assert world.after(175).offsets == {TP0: 0, TP1: 0}
    assert world.after(5).offsets == {TP0: 5, TP1: 0}


def test_without_a_longest_interval_the_interval_is_not_stretched(world: World, tmp_path: Path):
    write_rates(tmp_path, Rates(stretch=50.0))
    world.after(1)
    world.kafka.end = {TP0: 5, TP1: 0}
    assert world.after(61).offsets == {TP0: 5, TP1: 0}


def test_a_batch_that_is_due_by_its_size_waits_for_no_interval(tmp_path: Path):
    world = World(tmp_path, longest_interval_s=180.0, size_bytes=400, max_records=10**6)
    write_rates(tmp_path, Rates(stretch=3.0))
    world.after(1)
    world.kafka.end = {TP0: 11, TP1: 0}
    assert world.after(1).offsets == {TP0: 11, TP1: 0}


def test_the_interval_counts_from_the_oldest_record_not_the_newest(world: World):
    world.after(1)
    for second in range(60):
        world.kafka.end = {TP0: second + 1, TP1: 0}
        position = world.after(1)
    assert position.offsets[TP0] > 0


def test_records_that_came_while_a_batch_ran_count_from_its_beginning(world: World):
    world.after(1)
    world.kafka.end = {TP0: 5, TP1: 5}
    assert world.after(61).offsets == {TP0: 5, TP1: 5}
    planned_at = world.now
    world.kafka.end = {TP0: 9, TP1: 9}
    world.now += 40  # Spark was busy, and asked for nothing
    while world.planner.next_position().offsets[TP0] == 5:
        world.now += 1
    assert world.now - planned_at <= 60


def test_a_batch_starts_earlier_by_the_time_that_recent_batches_queued_behind_other_streams(world: World):
    world.after(1)
    world.planner.record_queue_time(8.0)
    world.kafka.end = {TP0: 5, TP1: 5}
    planned_s = next(second for second in range(1, 70) if world.after(1).offsets[TP0])
    assert 60 - 1 - 8 - 2 <= planned_s <= 60 - 1 - 8


def test_the_recorded_queue_time_decays_and_counts_for_at_most_a_quarter_of_the_interval(world: World):
    world.planner.record_queue_time(50.0)
    assert world.planner.queue_s == 15.0
    for _ in range(10):
        world.planner.record_queue_time(0.0)
    assert 0 < world.planner.queue_s < 2
    world.planner.record_queue_time(3.0)
    assert world.planner.queue_s == 3.0


def test_a_backlog_is_read_in_bounded_batches_without_waiting(world: World):
    world.kafka.end = {TP0: 3000, TP1: 1000}
    first = world.after(1).offsets
    assert sum(first.values()) == 1000
    second = world.after(1).offsets
    assert sum(second.values()) == 2000


def test_a_partition_that_appears_is_read_from_its_beginning(world: World):
    world.after(1)
    world.kafka.begin[TP2] = 4
    world.kafka.end[TP2] = 9
    position = world.after(75)
    assert position.offsets[TP2] == 9
    assert world.planner.first_offsets == {TP2: 4}


def test_a_stream_that_falls_silent_gets_one_empty_commit(world: World):
    world.kafka.end = {TP0: 5, TP1: 5}
    world.after(1)
    silent = world.after(299)
    assert silent.idle == frozenset()
    idle = world.after(5)
    assert idle.idle == {TP0, TP1}
    assert world.after(600) == idle


def test_a_silent_partition_is_recorded_as_idle_by_the_next_batch(world: World):
    world.kafka.end = {TP0: 5, TP1: 5}
    world.after(1)
    for step in range(8):
        world.kafka.end = {TP0: 6 + step, TP1: 5}
        position = world.after(60)
    assert position.idle == {TP1}


@pytest.fixture
def patterned(world: World) -> World:
    """A planner over all topics that begin with t; it has read t, and u has just appeared."""
    world.planner.settings = replace(world.planner.settings, topics=TopicPattern("[tu].*"))
    world.kafka.end = {TP0: 5, TP1: 5}
    assert world.after(1).offsets == {TP0: 5, TP1: 5}
    world.kafka.identity = SourceIdentity("c1", {"t": "id-1", "u": "id-u"})
    world.kafka.begin[U], world.kafka.end[U] = 2, 4
    assert world.after(75).offsets == {TP0: 5, TP1: 5, U: 4}
    return world


def without(world: World, topic: str) -> None:
    left = {name: topic_id for name, topic_id in world.kafka.identity.topic_ids.items() if name != topic}
    world.kafka.identity = SourceIdentity("c1", left)


def test_a_deleted_topic_of_a_pattern_is_not_read_and_blocks_nothing(patterned: World, caplog):
    patterned.kafka.end[U] = 9
    patterned.after(2)
    without(patterned, "u")
    patterned.after(11)
    patterned.kafka.requested.clear()
    patterned.kafka.end[TP0] = 6
    checked_again = patterned.after(2)
    assert "topic u is no longer in Kafka: 5 of its records were not read" in caplog.text
    assert U not in checked_again.idle
    later = patterned.after(75)
    assert later.offsets == {TP0: 6, TP1: 5, U: 4}
    assert U in later.idle
    assert U not in patterned.kafka.requested
    assert patterned.kafka.requested


def test_a_topic_that_brokers_temporarily_omit_continues_to_be_read(patterned: World):
    without(patterned, "u")
    patterned.after(11)
    patterned.kafka.identity = SourceIdentity("c1", {"t": "id-1", "u": "id-u"})
    patterned.kafka.end[U] = 6
    position = patterned.after(75)
    assert position.offsets[U] == 6
    assert U not in position.idle


def test_a_topic_that_matched_the_pattern_later_and_was_recreated_is_refused(patterned: World):
    patterned.kafka.identity = SourceIdentity("c1", {"t": "id-1", "u": "id-u2"})
    with pytest.raises(TopicRecreated, match="id-u became id-u2"):
        patterned.after(15)


def test_topics_that_are_deleted_between_two_checks_are_searched_for_at_once(patterned: World):
    patterned.after(1)
    without(patterned, "u")
    patterned.kafka.gone = {"u"}
    patterned.kafka.end[TP0] = 6
    assert patterned.after(70).offsets[TP0] == 6
    assert patterned.planner.silent_since is None


def test_a_topic_that_kafka_hides_ends_the_epoch_and_never_counts_as_deleted(patterned: World):
    without(patterned, "u")
    patterned.kafka.hidden = {"u"}
    with pytest.raises(AccessDenied, match="may not describe"):
        patterned.after(11)
    assert not patterned.planner.absent
    assert not patterned.planner.is_deleted("u")


def test_a_deleted_topic_whose_acls_are_deleted_after_it_stays_deleted(patterned: World):
    without(patterned, "u")
    for _ in range(3):
        patterned.after(11)
    patterned.kafka.hidden = {"u"}
    patterned.after(11)
    assert patterned.planner.is_deleted("u")


def test_a_topic_that_is_missing_in_three_polls_is_no_longer_waited_for(patterned: World):
    without(patterned, "u")
    patterned.after(12)
    assert not patterned.planner.is_deleted("u")
    patterned.after(20)
    assert patterned.planner.is_deleted("u")
    assert not patterned.planner.is_deleted("t")


def test_a_topic_that_disappeared_before_the_planner_started_is_not_waited_for(world: World):
    world.planner.settings = replace(world.planner.settings, topics=TopicPattern("[tu].*"))
    world.after(12)
    assert not world.planner.is_deleted("u")
    world.after(20)
    assert world.planner.is_deleted("u")


def test_a_planner_without_any_topic_waits(tmp_path: Path):
    world = World(tmp_path)
    world.planner.settings = replace(world.planner.settings, topics=TopicPattern("t"))
    world.kafka.identity = world.planner.source = SourceIdentity("c1", {})
    world.planner.position = Position({})
    assert world.after(400) == Position({})
    world.kafka.identity = SourceIdentity("c1", {"t": "id-1"})
    world.kafka.end = {TP0: 3, TP1: 0}
    assert world.after(75).offsets == {TP0: 3, TP1: 0}


def test_a_recreated_topic_ends_the_writer_with_the_reason(world: World):
    world.after(1)
    world.kafka.identity = SourceIdentity("c1", {"t": "id-2"})
    with pytest.raises(TopicRecreated, match=r"id-1 became id-2.* other topics continue at their positions$"):
        world.after(15)


def test_a_recreated_topic_is_reported_with_the_unread_records_of_the_old_one(world: World):
    world.after(1)  # a batch that is due at once
    world.kafka.end = {TP0: 150, TP1: 50}
    world.after(1)
    world.kafka.identity = SourceIdentity("c1", {"t": "id-2"})
    with pytest.raises(TopicRecreated, match=r"positions\. 200 records that Kafka had before were not read$"):
        world.after(15)


def test_after_a_topic_was_recreated_the_ends_of_the_former_topic_are_counted(world: World):
    world.kafka.end, world.kafka.leader_epoch = {TP0: 5, TP1: 5}, 0
    world.after(1)  # a batch that is due at once
    world.kafka.end = {TP0: 150, TP1: 50}
    world.after(1)
    world.kafka.identity = SourceIdentity("c1", {"t": "id-2"})
    world.kafka.end, world.kafka.log_cut = {TP0: 3, TP1: 0}, {TP0: 0}
    with pytest.raises(TopicRecreated, match="190 records that Kafka had before"):
        world.after(1)


def test_a_topic_that_stays_deleted_is_reported_with_its_unread_records(world: World, caplog: pytest.LogCaptureFixture):
    world.after(1)  # a batch that is due at once
    world.kafka.end = {TP0: 150, TP1: 50}
    world.after(1)
    world.kafka.gone = {"t"}
    world.after(25)
    assert str(world.reports[-1].missing) == "TopicMissing: a topic does not exist"
    with pytest.raises(TopicMissing, match=r"does not exist\. 200 records that Kafka had before were not read$"):
        world.after(UNREACHABLE_TIMEOUT_S + 5)
    assert "Kafka has had no topic of the stream for 10 s: a topic does not exist" in caplog.messages


def test_a_recreated_topic_whose_log_ends_earlier_is_reported_as_recreated(world: World):
    world.kafka.end, world.kafka.leader_epoch = {TP0: 5, TP1: 5}, 0
    world.after(1)
    world.kafka.identity = SourceIdentity("c1", {"t": "id-2"})
    world.kafka.end, world.kafka.log_cut = {TP0: 0, TP1: 0}, {TP0: 0}
    with pytest.raises(TopicRecreated, match="id-1 became id-2"):
        world.after(1)


def test_brokers_that_stay_at_an_older_leader_epoch_end_the_writer_with_the_reason(world: World):
    """The cluster's metadata was restored from a backup: its answers are never believed."""
    world.kafka.leader_epoch = 5
    world.kafka.end = {TP0: 5, TP1: 5}
    world.after(1)
    world.kafka.leader_epoch = 3
    world.kafka.end = {TP0: 9, TP1: 9}
    assert world.after(MAX_OUTDATED_POLLS - 1).offsets == {TP0: 5, TP1: 5}
    with pytest.raises(KafkaUnavailable, match=r"t-0, t-1 with a leader epoch lower.*restored from a backup"):
        world.after(UNREACHABLE_TIMEOUT_S + 2)


def test_a_lost_offset_range_is_reported(world: World):
    world.after(1)
    world.kafka.begin = {TP0: 12, TP1: 0}
    world.kafka.end = {TP0: 20, TP1: 0}
    with pytest.raises(OffsetGap, match=r"t-0 offsets 0 to 11.*frazil reset s --to marker"):
        world.after(15)


def test_a_silent_kafka_is_tolerated_until_a_timeout(world: World):
    world.after(1)
    world.kafka.down = True
    world.after(UNREACHABLE_TIMEOUT_S - 2)
    world.kafka.down = False
    world.kafka.end = {TP0: 5, TP1: 0}
    world.after(62)
    assert world.planner.position.offsets[TP0] == 5
    world.kafka.down = True
    with pytest.raises(KafkaUnavailable):
        world.after(UNREACHABLE_TIMEOUT_S + 2)


def test_the_time_of_a_batch_does_not_count_as_silence(world: World):
    world.after(1)
    world.now += 2 * UNREACHABLE_TIMEOUT_S
    world.kafka.down = True
    world.after(UNREACHABLE_TIMEOUT_S - 2)
    with pytest.raises(KafkaUnavailable):
        world.after(3)


def test_a_log_end_from_a_lagging_broker_does_not_move_the_position_back(world: World):
    world.kafka.end, world.kafka.leader_epoch = {TP0: 5, TP1: 5}, 2
    world.after(1)
    world.kafka.end, world.kafka.leader_epoch = {TP0: 3, TP1: 5}, 1  # it does not know that it was replaced
    assert world.after(70).offsets == {TP0: 5, TP1: 5}


def test_records_of_an_open_transaction_keep_their_partition_from_being_idle(world: World):
    world.after(1)
    for second in range(600):
        world.kafka.end = {TP0: second * 10, TP1: 0}
        world.kafka.high = {TP1: second + 1}
        position = world.after(1)
        assert TP1 not in position.idle
        newest = {TP0: 7_000 + second, TP1: 5}
        assert watermark_us(newest, partitions=newest, idle=position.idle, previous_us=5) == 5, "it is held back"
    world.kafka.end[TP1] = 600
    position = world.after(70)
    assert position.offsets[TP1] == 600
    newest[TP1] = 9_000
    assert watermark_us(newest, partitions=newest, idle=position.idle, previous_us=5) == newest[TP0]


def test_a_partition_marked_as_idle_is_active_once_a_transaction_writes_to_it(world: World):
    world.planner.position = Position({TP0: 0, TP1: 0}, frozenset({TP0, TP1}))
    world.kafka.high = {TP1: 3}
    world.after(1)
    world.kafka.end[TP0] = 5
    assert world.after(70).idle == frozenset()


@pytest.mark.parametrize("idle", [False, True], ids=["active before", "idle before"])
def test_a_partition_without_a_leader_is_neither_read_nor_idle_and_blocks_no_other(world: World, idle: bool):
    world.planner.position = Position({TP0: 0, TP1: 0}, frozenset({TP1} if idle else ()))
    world.after(1)
    world.kafka.end[TP1] = 3
    world.after(1)
    world.kafka.leaderless = {TP1}
    newest = {TP0: 7_000, TP1: 5}
    for minute in range(1, 20):
        world.kafka.end[TP0] = minute * 10
        position = world.after(70)
        assert position.offsets == {TP0: minute * 10, TP1: 0}
        assert TP1 not in position.idle
        assert watermark_us(newest, partitions=newest, idle=position.idle, previous_us=5) == 5, "it is held back"
    last = world.reports[-1]
    assert (last.silent_since_ms, last.leaderless, last.is_complete) == (None, {TP1}, True)
    assert last.unread(position.offsets) == {TP1: 3}
    world.kafka.leaderless.clear()
    assert world.after(70).offsets == {TP0: 190, TP1: 3}
    assert world.after(250).idle == frozenset(), "its records may arrive late, once it has a leader again"
    assert world.after(60).idle == {TP0, TP1}


def test_a_writer_that_starts_with_a_leaderless_partition_reads_the_others_and_has_no_lag(world: World):
    world.kafka.leaderless = {TP1}
    world.kafka.end = {TP0: 5, TP1: 3}
    assert world.after(2).offsets == {TP0: 5, TP1: 0}
    assert not world.reports[-1].is_complete
    assert CaughtUpTracker().update(world.reports[-1], {TP0: 5, TP1: 0}) is None
    assert world.after(3600).idle == frozenset()
    world.kafka.leaderless.clear()
    assert world.after(70).offsets == {TP0: 5, TP1: 3}
    assert CaughtUpTracker().update(world.reports[-1], {TP0: 5, TP1: 3}) is not None


def test_records_right_before_the_loss_of_a_leader_may_be_uncommitted(world: World):
    world.kafka.end = {TP0: 5, TP1: 3}
    position = world.after(2)
    tracker = CaughtUpTracker()
    caught_up_at_ms = tracker.update(world.reports[-1], position.offsets)
    world.kafka.end[TP1] = 4
    world.kafka.leaderless = {TP1}
    position = world.after(3600)
    assert position.offsets == {TP0: 5, TP1: 3}
    assert tracker.update(world.reports[-1], position.offsets) == caught_up_at_ms


def test_a_stream_has_caught_up_once_the_transactions_of_a_report_have_ended():
    tracker, report = CaughtUpTracker(), PlannerReport({TP0: 5}, observed_at_ms=1_000)
    assert tracker.update(report, {TP0: 3}) is None
    assert tracker.update(replace(report, observed_at_ms=2_000), {TP0: 3}) is None
    in_transaction = replace(report, in_transactions={TP0: 2}, observed_at_ms=3_000)
    assert tracker.update(in_transaction, {TP0: 5}) == 2_000, "nothing was in a transaction then"
    assert tracker.update(replace(in_transaction, observed_at_ms=4_000), {TP0: 5}) == 2_000
    assert tracker.update(replace(report, leaderless=frozenset({TP1}), observed_at_ms=5_000), {TP0: 5}) == 2_000
    ended = PlannerReport({TP0: 8}, observed_at_ms=6_000)
    assert tracker.update(ended, {TP0: 7}) == 4_000
    assert tracker.update(ended, {TP0: 8}) == 6_000


def test_with_leader_epochs_a_log_end_before_the_position_is_a_gap_at_once(world: World):
    world.planner.position = Position({TP0: 1000, TP1: 0}, leader_epochs={TP0: 4})
    world.kafka.end[TP0], world.kafka.leader_epoch, world.kafka.log_cut = 900, 5, {TP0: 900}
    with pytest.raises(OffsetGap, match=r"t-0 offsets 900 to 999.*truncated.*frazil reset s --to marker"):
        world.after(1)
    assert world.kafka.described == 1


def test_without_leader_epochs_a_log_end_before_the_position_is_a_gap_after_several_polls(world: World):
    world.planner.position = Position({TP0: 1000, TP1: 0})
    world.kafka.end[TP0] = 900
    world.after(MIN_SHORT_POLLS - 1)
    with pytest.raises(OffsetGap, match="t-0 offsets 900 to 999"):
        world.after(1)


def test_a_truncated_log_that_has_grown_past_the_position_is_a_gap(world: World):
    world.kafka.leader_epoch = 4
    world.kafka.end[TP0] = 1000
    assert world.after(1).leader_epochs == {TP0: 4, TP1: 4}
    world.kafka.end[TP0], world.kafka.leader_epoch, world.kafka.log_cut = 1050, 5, {TP0: 900}
    with pytest.raises(OffsetGap, match="t-0 offsets 900 to 999"):
        world.after(1)


def test_a_response_from_a_replaced_broker_is_not_a_gap(world: World):
    world.planner.position = Position({TP0: 1000, TP1: 0}, leader_epochs={TP0: 4, TP1: 4})
    world.kafka.end[TP0], world.kafka.leader_epoch = 900, 3
    world.after(30)
    world.kafka.end[TP0], world.kafka.leader_epoch = 1010, 4
    assert world.after(61).offsets[TP0] == 1010


def test_the_epoch_of_a_leader_is_kept_with_the_offsets_that_it_had(world: World):
    world.kafka.leader_epoch = 4
    world.kafka.end = {TP0: 7, TP1: 7}
    world.after(1)
    world.kafka.leader_epoch = 5
    world.kafka.end = {TP0: 9, TP1: 7}
    assert world.after(62).leader_epochs == {TP0: 5, TP1: 4}


def test_a_topic_that_is_no_longer_declared_is_not_requested_and_does_not_hold_the_watermark(world: World):
    world.planner.position = Position({TP0: 0, TP1: 0, OLD: 100}, frozenset())
    world.kafka.end = {TP0: 5, TP1: 7}
    start = world.planner.position
    end = world.after(1)
    assert world.kafka.requested == {TP0, TP1}
    assert (end.offsets[OLD], end.idle) == (100, {OLD})
    ranges = [r for plan in world.planner.plans(start, end) for r in json.loads(plan)["ranges"]]
    assert {r["topic"] for r in ranges} == {"t"}


def test_a_partition_that_is_no_longer_declared_becomes_idle_with_those_of_the_other_topics(world: World):
    world.planner.position = Position({TP0: 0, TP1: 0, OLD: 100}, frozenset({TP0, TP1}))
    assert world.after(2).idle == {TP0, TP1, OLD}


def test_a_topic_that_is_declared_again_continues_at_its_position(world: World):
    world.kafka.identity = SourceIdentity("c1", {"t": "id-1", "old": "id-9"})
    world.kafka.end[OLD], world.kafka.begin[OLD] = 120, 0
    world.planner.source = world.kafka.identity
    world.planner.settings = replace(world.planner.settings, topics=("t", "old"))
    world.planner.position = start = Position({TP0: 0, TP1: 0, OLD: 100}, frozenset({OLD}))
    end = world.after(1)
    task = json.loads(*world.planner.plans(start, end))
    assert task["ranges"] == [{"topic": "old", "partition": 0, "start": 100, "end": 120}]
    assert OLD not in end.idle


def test_a_silent_kafka_is_logged_twice_a_minute(world: World, caplog: pytest.LogCaptureFixture):
    world.kafka.down = True
    world.after(60)
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        f"Kafka has not answered for {seconds} s" for seconds in (10, 40)
    ]
    world.kafka.down = False
    world.after(1)
    assert caplog.messages[-1] == "Kafka answers again after 60 s"


def test_brokers_that_are_back_within_seconds_are_not_worth_a_warning(world: World, caplog: pytest.LogCaptureFixture):
    world.kafka.down = True
    world.after(8)
    world.kafka.down = False
    world.after(1)
    assert caplog.messages == []


def test_records_that_arrive_during_a_batch_are_reported_at_once_and_planned_after_it(world: World):
    world.after(1)
    world.kafka.end = {TP0: 5, TP1: 7}
    world.now += 2
    before = world.planner.position
    world.planner.observe()
    assert world.reports[-1].unread(before.offsets) == {TP0: 5, TP1: 7}
    assert world.planner.position == before


def test_a_problem_found_during_a_batch_ends_the_epoch_after_the_batch(world: World):
    world.after(1)
    world.kafka.begin, world.kafka.end = {TP0: 12, TP1: 0}, {TP0: 20, TP1: 0}
    world.now += 15
    world.planner.observe()
    world.kafka.begin = {TP0: 0, TP1: 0}
    world.planner.observe()
    with pytest.raises(OffsetGap, match="t-0 offsets 0 to 11"):
        world.planner.next_position()


def test_a_draining_writer_does_not_wait_for_the_interval(tmp_path: Path):
    world = World(tmp_path, drain=True)
    world.after(1)
    world.kafka.end = {TP0: 5, TP1: 0}
    assert world.after(1).offsets == {TP0: 5, TP1: 0}


def test_an_empty_commit_has_no_plans(world: World):
    idle_position = Position(world.planner.position.offsets, frozenset({TP0, TP1}))
    assert world.planner.plans(world.planner.position, idle_position) == []


def test_a_batch_is_planned_by_its_tasks_only_however_many_partitions_its_position_has(world: World):
    start, end = world.planner.position, Position({TP0: 5, TP1: 7})
    plans = [json.loads(plan) for plan in world.planner.plans(start, end)]
    assert sum(end - start for plan in plans for *_, start, end in map(dict.values, plan["ranges"])) == 12
    assert plans == json.loads(json.dumps([StageTask.from_json(plan).to_json() for plan in plans]))


def test_the_planners_report_keeps_the_time_of_its_observation_while_kafka_is_silent(world: World):
    world.planner.clock_ms = lambda: int(world.now * 1000)
    world.after(1)
    world.kafka.down = True
    world.after(10)
    assert (world.reports[-1].observed_at_ms, world.reports[-1].silent_since_ms) == (1_001_000, 1_002_000)
    world.kafka.down = False
    world.after(1)
    assert (world.reports[-1].observed_at_ms, world.reports[-1].silent_since_ms) == (1_012_000, None)


def test_the_planners_report_has_the_first_offsets_of_partitions_that_no_marker_has(world: World):
    world.after(1)
    world.kafka.end, world.kafka.begin = {TP0: 0, TP1: 0, TP2: 1005}, {TP0: 0, TP1: 0, TP2: 1000}
    world.after(11)
    assert world.reports[-1].unread({TP0: 0, TP1: 0}) == {TP2: 5}


def test_batches_longer_than_their_interval_grow_to_the_maximum_and_follow_without_a_pause(tmp_path: Path):
    """Records come for ten minutes, faster than they can be written, and then no more."""
    world = World(tmp_path, interval_s=10.0)
    begun = stopped = world.now
    sizes: list[int] = []
    pauses_s: list[float] = []
    idle_since, before = begun, world.planner.position
    while world.now < begun + 600 or before.offsets != world.kafka.end:
        stopped = min(world.now, begun + 600)
        arrived = int(60 * (stopped - begun))
        world.kafka.end = {TP0: arrived // 2, TP1: arrived - arrived // 2}
        end = world.planner.next_position()
        if end == before:
            world.now += 1.0
            continue
        sizes.append(sum(end.offsets.values()) - sum(before.offsets.values()))
        pauses_s.append(world.now - idle_since)
        world.now += 5.0 + 0.02 * sizes[-1]
        idle_since, before = world.now, end
        assert world.now < begun + 3600
    full = next(n for n, size in enumerate(sizes) if size >= 1000)
    assert sizes[:full] == sorted(sizes[:full])
    assert 1 <= full <= 5
    assert all(1000 <= size <= 1002 for size in sizes[full:-1]), "a share a partition, rounded up"
    assert set(pauses_s[full:]) == {0.0}
    assert sum(sizes) == 36_000


class StandInWhole:
    """Transactions of the source end at these offsets."""

    def __init__(self, *ends: int) -> None:
        self.ends, self.boundary, self.is_stuck, self.heard = ends, 0, False, 0
        self.waits_for = "transaction 5 of the source has not ended"

    @property
    def last(self) -> LastTransaction:
        return LastTransaction("4", f"{self.boundary:020}")

    def read_transaction_ends(self) -> None:
        self.heard += 1

    def find_readable_end(self, _, start, end):
        self.boundary = max([start, *(e for e in self.ends if e <= min(end, start + 1000))])
        self.is_stuck = self.boundary < end <= start + 1000
        return self.boundary if end <= start + 1000 else end


def of_one_partition(world: World, whole: StandInWhole) -> World:
    del world.kafka.end[TP1], world.kafka.begin[TP1]
    world.planner.position = Position({TP0: 0})
    world.planner.whole_transactions = whole  # type: ignore[assignment]
    return world


def test_a_batch_ends_where_a_transaction_of_the_source_does(world: World):
    of_one_partition(world, StandInWhole(4, 7))
    world.kafka.end = {TP0: 9}
    assert world.after(1).offsets == {TP0: 7}
    assert world.after(120).offsets == {TP0: 7}
    assert world.reports[-1].ends == {TP0: 7}
    assert world.reports[-1].in_transactions == {TP0: 2}
    assert world.reports[-1].transaction == "transaction 5 of the source has not ended"
    assert world.planner.position.transaction == LastTransaction("4", f"{7:020}")
    assert world.planner.position.idle == frozenset()
    assert world.planner.is_held_back(TP0, 7)
    assert not world.planner.is_held_back(TP0, 4)


def test_a_backlog_read_in_whole_transactions_counts_as_unread(world: World):
    of_one_partition(world, StandInWhole(*range(0, 5000, 3)))
    world.kafka.end = {TP0: 5000}
    assert world.after(1).offsets == {TP0: 999}
    assert world.reports[-1].ends == {TP0: 5000}
    assert world.after(1).offsets == {TP0: 1998}


def test_brokers_that_fall_silent_during_a_check_do_not_make_a_batch_split_a_transaction(world: World):
    whole = StandInWhole()
    of_one_partition(world, whole)
    world.kafka.end = {TP0: 9}

    def silent(*_):
        raise KafkaUnavailable("no brokers")

    whole.follow = silent  # type: ignore[method-assign]
    assert world.after(100).offsets == {TP0: 0}


def test_whole_transactions_of_several_partitions_are_refused(world: World):
    world.planner.whole_transactions = StandInWhole()  # type: ignore[assignment]
    with pytest.raises(SpecError, match="needs a topic with one partition"):
        world.after(1)


def test_all_records_of_a_partition_without_a_known_position_are_unread():
    assert PlannerReport({TP0: 3, TP1: 9}).unread({TP1: 9}) == {TP0: 3}
