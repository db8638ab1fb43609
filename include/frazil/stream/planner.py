"""The planner: polls Kafka for the ends of the stream's logs, chooses where the next batch ends, and reports to the
heartbeat's thread.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from frazil.clock import now_ms
from frazil.commit.commit_checks import check_same_source
from frazil.commit.marker import NO_TRANSACTION, keep_topics, merge_identities
from frazil.errors import KafkaUnavailable, SpecError, TopicMissing, TopicRecreated, explain
from frazil.kafka.admin import KafkaAdmin
from frazil.kafka.logs import LogWatch, check_no_gap, check_not_truncated
from frazil.offsets.spans import Offsets, SourceIdentity, TopicPartition
from frazil.spec.units import format_count
from frazil.stream.plan import (
    BatchDecision,
    BatchPolicy,
    PlannerReport,
    Position,
    assign_tasks,
    choose_task_count,
    decide_batch,
    limit_ends,
    read_rates,
)
from frazil.stream.whole_transactions import WholeTransactions

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
"""Default time between two polls of Kafka."""
MIN_POLL_INTERVAL_S = 0.1
"""Minimum time between a poll and the poll before a batch."""
DESCRIBE_INTERVAL_S = 10.0
"""Time between two fetches of the topics' partitions."""
MAX_ABSENT_POLLS = 3
"""Number of consecutive polls without a pattern's topic after which it counts as deleted."""
QUEUE_DECAY = 0.8
"""Factor by which `queue_s` decays with each batch."""
WARN_AFTER_S = 10.0
"""Time (s) without a response from Kafka before a warning. Starting brokers need some seconds."""
WARN_INTERVAL_S = 30.0
UNREACHABLE_TIMEOUT_S = 120.0
"""Time (s) without a response from Kafka after which the writer ends, to be restarted."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    stream: str
    topics: Container[str]
    policy: BatchPolicy
    idle_timeout_s: float
    run_folder: Path
    """The run folder, which has the rates of earlier batches."""
    poll_s: float = POLL_INTERVAL_S


@dataclass(slots=True)
class BatchPlanner:
    """Chooses where batches end. `clock` returns monotonic seconds; `clock_ms` only dates reports."""

    settings: PlannerSettings
    kafka: KafkaAdmin
    source: SourceIdentity
    position: Position
    report: Callable[[PlannerReport], None] = field(default=lambda _: None)
    reported: PlannerReport = field(default_factory=lambda: PlannerReport({}))
    clock: Callable[[], float] = time.monotonic
    clock_ms: Callable[[], int] = now_ms
    watch: LogWatch = field(default_factory=LogWatch)
    first_seen: dict[TopicPartition, float | None] = field(default_factory=dict)
    """When each partition's oldest unread record was first seen; None if it was unread at the start."""
    last_unread: dict[TopicPartition, float] = field(default_factory=dict)
    """When each partition last had unread records, even in an open transaction."""
    polled_at: float = float("-inf")
    described_at: float = float("-inf")
    answered_at: float | None = None
    """Time of the last poll that Kafka answered; None before the first."""
    silent_since: float | None = None
    """Time of the first unanswered poll since the last response, if any."""
    warned_at: float = float("-inf")
    queue_s: float = 0.0
    """The longest time (s) for which a recent batch waited for a slot. Decreases with each batch."""
    poll_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a thread polls Kafka or chooses a position."""
    poll_error: Exception | None = None
    """An error of `observe`. It ends the epoch after the current batch."""
    absent: dict[str, int] = field(default_factory=dict)
    """Number of consecutive polls that did not find a topic of the stream's pattern, by topic."""
    polls: int = 0
    first_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The first offset of each partition that appeared while the writer ran."""
    leaderless: frozenset[TopicPartition] = frozenset()
    """Topic-partitions without a leader in Kafka's last description. They are not read, and never idle."""
    whole_transactions: WholeTransactions | None = None
    """Finds boundaries of source transactions, if batches have whole transactions."""

    @property
    def ends(self) -> Offsets:
        ends = self.watch.stable
        return {tp: end for tp, end in ends.items() if tp not in self.leaderless} if self.leaderless else ends

    def next_position(self) -> Position:
        """Return where the next batch must end; if no batch is due, the current position. Raises Kafka's errors."""
        with self.poll_lock:
            if self.poll_error is not None:
                raise self.poll_error
            now = self.clock()
            return self._choose_position(now) if self._poll_if_due(now) else self.position

    def position_without_poll(self) -> Position | None:
        """Return `next_position` without waiting; None if a poll is necessary or in progress."""
        if not self.poll_lock.acquire(blocking=False):
            return None
        try:
            now = self.clock()
            is_due = self.poll_error is not None or self._is_poll_due(now)
            return None if is_due else self._choose_position(now)
        finally:
            self.poll_lock.release()

    def observe(self) -> None:
        """Poll Kafka during a batch to measure the lag. The next `next_position` raises its errors."""
        with self.poll_lock:
            if self.poll_error is None:
                try:
                    self._poll_if_due(self.clock())
                except Exception as error:
                    self.poll_error = error

    def record_queue_time(self, seconds: float) -> None:
        """Record how long a batch waited for its slot. The next batches start earlier, to compensate."""
        longest_s = self.settings.policy.interval_s / 4
        self.queue_s = min(max(seconds, QUEUE_DECAY * self.queue_s), longest_s)

    def is_held_back(self, tp: TopicPartition, offset: int) -> bool:
        """Return whether records from this offset on wait for their source transaction to end."""
        whole = self.whole_transactions
        return whole is not None and whole.is_stuck and tp in self._read_offsets() and offset >= whole.boundary

    def is_deleted(self, topic: str) -> bool:
        """Return whether a topic of the stream's pattern counts as deleted."""
        is_read = any(topic == name for name, _ in self.position.offsets)
        return (self.absent.get(topic, 0) if is_read else self.polls) >= MAX_ABSENT_POLLS

    def _is_poll_due(self, now: float) -> bool:
        """Return whether `poll_s` has passed, or a batch is due.

        The poll adds the newest records to the due batch. In the next batch, they would seem older than they are.
        """
        if (age_s := now - self.polled_at) >= self.settings.poll_s:
            return True
        if age_s < MIN_POLL_INTERVAL_S or self.silent_since is not None:
            return False
        return 0 < self._count_unread() < self.settings.policy.max_records and self._decide(now).now

    def _poll_if_due(self, now: float) -> bool:
        """Poll Kafka if a poll is due. Returns False if Kafka did not respond."""
        if self._is_poll_due(now):
            self.polled_at = now
            try:
                self._poll(now)
            except KafkaUnavailable as error:
                self._handle_no_response(error, now)
                return False
        return True

    def plans(self, begin: Position, until: Position) -> list[str]:
        """Return the tasks of the batch between two positions, as JSON texts. An empty commit has no tasks."""
        # A partition that appeared after the first position begins at its first offset.
        starts = {tp: begin.offsets.get(tp, self.first_offsets.get(tp, end)) for tp, end in until.offsets.items()}
        records = sum(until.offsets[tp] - starts[tp] for tp in starts)
        rates, policy = read_rates(self.settings.run_folder), self.settings.policy
        tasks = assign_tasks(starts, until.offsets, tasks=choose_task_count(records, rates=rates, policy=policy))
        return [json.dumps(task.to_json()) for task in tasks]

    def _poll(self, now: float) -> None:
        """Fetch the logs' ends, check for truncated logs and recreated topics, and report."""
        ends = dict(self.watch.stable)
        if now - self.described_at >= DESCRIBE_INTERVAL_S:
            self._update_topics(ends)
            self.described_at = now
        first_poll, last_poll = not self.ends, self.answered_at
        read = self._read_offsets()
        led = {tp: offset for tp, offset in read.items() if tp not in self.leaderless}
        if self.whole_transactions:
            self.whole_transactions.read_transaction_ends()
        try:
            truncated = self.watch.poll(self.kafka, led, self.position.leader_epochs)
        except KafkaUnavailable:
            self.described_at = float("-inf")  # the next poll describes the topics again, and who leads them
            raise
        if truncated and self.described_at != now:  # a recreated topic ends earlier too, and has its own error
            self._update_topics(ends)
        check_not_truncated(read, truncated, stream=self.settings.stream)
        if self.whole_transactions and led:
            self._limit_to_whole_transactions(self.whole_transactions, read)
        ends = dict(self.ends)
        for tp, start in read.items():
            if ends.get(tp, start) > start:
                # A new record may have arrived right after the last poll.
                self.first_seen.setdefault(tp, None if first_poll else last_poll)
            else:
                self.first_seen.pop(tp, None)
            if tp in self.leaderless or not self.watch.has_no_more_records(tp, start):
                self.last_unread[tp] = now
            self.last_unread.setdefault(tp, now)
        if self.silent_since is not None and self.warned_at >= self.silent_since:
            log.warning("Kafka answers again after %.0f s", now - self.silent_since)
        self.answered_at, self.silent_since = now, None
        waits_for = self.whole_transactions.waits_for if self.whole_transactions else ""
        waiting = self.watch.count_in_transactions()
        stable, leaderless = dict(self.watch.stable), self.leaderless & read.keys()
        first, at_ms = dict(self.first_offsets), self.clock_ms()
        self.reported = PlannerReport(stable, first, waiting, waits_for, at_ms, leaderless=leaderless)
        self.report(self.reported)

    def _limit_to_whole_transactions(self, whole: WholeTransactions, read: Offsets) -> None:
        """Limit reading to complete source transactions. Raises SpecError for several partitions."""
        if len(read) > 1:
            raise SpecError(
                "source.format.envelope.transactions needs a topic with one partition, whose transactions are in the "
                f"source's order. Topic {sorted(read)[0][0]} has {len(read)}: remove the option, or let the connector "
                "write into a topic with one partition",
                stream=self.settings.stream,
            )
        for tp, start in read.items():
            end = self.ends.get(tp, start)
            self.watch.stable[tp] = min(end, max(start, whole.boundary))  # applies if the brokers stop responding now
            self.watch.stable[tp] = whole.find_readable_end(tp, start, end)

    def _read_offsets(self) -> dict[TopicPartition, int]:
        """Return the position's offsets in declared, existing topics."""
        read = keep_topics(self.position.offsets, self.settings.topics)
        return {tp: offset for tp, offset in read.items() if tp[0] not in self.absent}

    def _update_topics(self, ends: Offsets) -> None:
        """Fetch the topics, and add new partitions. Raises TopicRecreated, and OffsetGap for lost unread records."""
        observed = self.kafka.describe()
        try:
            check_same_source(self.source, observed.identity, stream=self.settings.stream)
        except TopicRecreated as error:
            topic_ids = observed.identity.topic_ids
            made_again = {
                topic for topic, known_id in self.source.topic_ids.items() if topic_ids.get(topic, known_id) != known_id
            }
            raise TopicRecreated(f"{error}{self._unread_message(made_again, ends)}") from error
        self.source = merge_identities(self.source, observed.identity)
        read = {topic for topic, _ in self.position.offsets if topic in self.settings.topics}
        missing = sorted(read - observed.identity.topic_ids.keys())
        if new_missing := [topic for topic in missing if self.absent.get(topic, 0) < MAX_ABSENT_POLLS]:
            self.kafka.check_not_hidden(new_missing)
        self.polls += 1
        self._count_missing_polls(observed.identity.topic_ids)
        if observed.leaderless != self.leaderless:
            log.warning("topic-partitions without a leader: %s", sorted(observed.leaderless) or "none")
        self.leaderless = observed.leaderless
        beginnings = self.kafka.earliest(observed.partitions_with_leader)
        check_no_gap(self.position.offsets, beginnings, stream=self.settings.stream)
        new = {tp: offset for tp, offset in beginnings.items() if tp not in self.position.offsets}
        if new:
            log.info("new partitions: %s", sorted(new))
            self.first_offsets.update(new)
            self.position = replace(self.position, offsets={**self.position.offsets, **new})

    def _count_missing_polls(self, present: Container[str]) -> None:
        for topic in {topic for topic, _ in self.position.offsets if topic in self.settings.topics}:
            if topic in present:
                if self.absent.pop(topic, 0):
                    log.warning("topic %s is in Kafka again", topic)
                continue
            self.absent[topic] = polls = self.absent.get(topic, 0) + 1
            if polls == 1:
                unread = 0
                for tp in [tp for tp in self.watch.stable if tp[0] == topic]:
                    unread += max(self.watch.stable.pop(tp) - self.position.offsets.get(tp, 0), 0)
                    self.watch.high.pop(tp, None)
                    self.first_seen.pop(tp, None)
                log.warning("topic %s is no longer in Kafka: %d of its records were not read", topic, unread)

    def _unread_message(self, topics: Container[str], ends: Mapping[TopicPartition, int]) -> str:
        """Return the part of a message that counts the unread records before `ends`, or ""."""
        unread = sum(max(end - self.position.offsets.get(tp, end), 0) for tp, end in ends.items() if tp[0] in topics)
        return f". {format_count(unread, 'record')} that Kafka had before were not read" if unread else ""

    def _handle_no_response(self, error: KafkaUnavailable, since: float) -> None:
        """Report and log that Kafka does not respond. Raises `error` once this lasts `UNREACHABLE_TIMEOUT_S`."""
        now = self.clock()
        self.silent_since = since if self.silent_since is None else self.silent_since
        silent_s = now - self.silent_since
        missing = explain(error) if isinstance(error, TopicMissing) else None
        since_ms = self.clock_ms() - round(silent_s * 1000)
        self.report(replace(self.reported, silent_since_ms=since_ms, missing=missing))
        if silent_s >= WARN_AFTER_S and now - self.warned_at >= WARN_INTERVAL_S:
            self.warned_at = now
            answer = "had no topic of the stream" if missing else "not answered"
            log.warning("Kafka has %s for %.0f s: %s", answer, silent_s, error)
        if silent_s >= UNREACHABLE_TIMEOUT_S:
            if missing:
                unread = self._unread_message(self.settings.topics, self.ends)
                raise TopicMissing(f"{error.reason}{unread}", remedy=error.remedy) from error
            raise error

    def _choose_position(self, now: float) -> Position:
        """If a batch is due, move the planner's position to the batch's end. Return the position."""
        policy, offsets, ends = self.settings.policy, self.position.offsets, self.ends
        due, idle = self._decide(now), self._idle_partitions(now)
        if due.now:
            end = limit_ends(offsets, ends, max_records=policy.max_records)
            if self.whole_transactions:
                read, boundary = self._read_offsets(), self.whole_transactions.boundary
                end = {tp: max(offsets[tp], boundary) if tp in read else offsets[tp] for tp in end}
            log.info("batch of %d records: %s", sum(end.values()) - sum(offsets.values()), due.reason)
            for tp in offsets:
                # Records that a bounded batch leaves unread keep their waiting time.
                if end[tp] >= ends.get(tp, end[tp]):
                    self.first_seen.pop(tp, None)
            last = self.whole_transactions.last if self.whole_transactions else NO_TRANSACTION
            epochs = {**self.position.leader_epochs}
            for tp, epoch in self.watch.leader_epochs.items():  # another partition's log may have been truncated
                if tp not in epochs or end[tp] > self.position.offsets[tp]:
                    epochs[tp] = epoch
            self.position = Position(end, idle, epochs, last)
        elif len(idle) == len(offsets) and idle != self.position.idle:
            log.info("all partitions are idle: an empty commit advances the watermark")
            self.position = replace(self.position, idle=idle)
        return self.position

    def _count_unread(self) -> int:
        ends = self.ends
        return sum(max(ends.get(tp, start) - start, 0) for tp, start in self.position.offsets.items())

    def _decide(self, now: float) -> BatchDecision:
        rates = read_rates(self.settings.run_folder)
        rates = replace(rates, overhead_s=rates.overhead_s + self.queue_s)
        times = [first_s for first_s in self.first_seen.values() if first_s is not None]
        oldest_age_s = now - min(times) if times and len(times) == len(self.first_seen) else None
        policy = self.settings.policy
        return decide_batch(unread=self._count_unread(), oldest_age_s=oldest_age_s, rates=rates, policy=policy)

    def _idle_partitions(self, now: float) -> frozenset[TopicPartition]:
        """Return the partitions that had no unread records for the idle timeout.

        Records in open transactions count as unread. A partition that is idle in the marker stays idle until it has
        unread records. Partitions of a missing topic are not idle at first. Partitions without a leader are never idle.
        """
        timeout_s, read = self.settings.idle_timeout_s, self._read_offsets()
        silent = {
            tp
            for tp, offset in read.items()
            if tp not in self.leaderless and self.watch.has_no_more_records(tp, offset)
        }
        idle = {tp for tp in silent if tp in self.position.idle or now - self.last_unread.get(tp, now) >= timeout_s}
        unread = (tp for tp in self.position.offsets if tp not in read)
        return frozenset(
            idle.union(tp for tp in unread if self.absent.get(tp[0], MAX_ABSENT_POLLS) >= MAX_ABSENT_POLLS)
        )
