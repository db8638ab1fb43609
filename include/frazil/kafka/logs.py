"""Tracks the ends of the logs that a stream reads, and detects records that retention or a truncation removed.

An unclean leader election, a disk that lost its newest segments, or a broker that was restored from a backup can
truncate a log. New records then reuse the lost offsets. Two signs reveal a truncation.

First, a leader reports an end before an offset that was readable. A healthy leader never does this: a new leader
returns `OFFSET_NOT_AVAILABLE` until its high watermark has passed its predecessor's. Only a broker that has not noticed
that it was replaced may report an older end, and its answer has an older leader epoch.

Second, the leader knows the end offset of each leader epoch, however much the log has grown since. librdkafka requests
this offset (`OffsetForLeaderEpoch`) when a consumer is assigned an offset with its epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from frazil.errors import KafkaUnavailable, OffsetGap
from frazil.offsets.spans import TopicPartition

SHORT_POLLS = 3
"""Number of consecutive polls with an end before the position that prove a truncation without a leader epoch."""
OUTDATED_POLLS = 60
"""Number of consecutive outdated answers (from a replaced broker) after which reading fails."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a topic-partition's log, as its leader reports it."""

    stable: int
    """The last stable offset: the end of the log for a `read_committed` reader."""
    high: int
    """The high watermark, which includes the records of open transactions."""
    leader_epoch: int | None = None
    """The epoch of the leader that answered; None if the broker does not report it."""


class Answer(Enum):
    """The meaning of a leader's answer for an offset that was readable before ("it")."""

    VALID = "the same leader has it"
    OUTDATED = "the broker was replaced and has not noticed: its ends mean nothing"
    SHORT = "the log ends before it"
    ANOTHER_LEADER = "the log may have been truncated, and have grown again: ask the leader"


def classify_answer(offset: int, end: LogEnd, *, known_epoch: int | None) -> Answer:
    """Classify a leader's answer for an offset that was readable when the leader had `known_epoch`."""
    if known_epoch is not None and end.leader_epoch is not None and end.leader_epoch < known_epoch:
        return Answer.OUTDATED
    if end.stable < offset:
        return Answer.SHORT
    same = known_epoch is None or end.leader_epoch is None or end.leader_epoch == known_epoch
    return Answer.VALID if same else Answer.ANOTHER_LEADER


class LogSource(Protocol):
    """The requests to Kafka that `LogWatch` needs."""

    def log_ends(self, partitions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogEnd]: ...

    def cut(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, int]: ...


@dataclass(slots=True)
class LogWatch:
    """The last log ends that the partition leaders reported.

    An end moves back only if a new leader reports a lower end. A lower end from a lagging broker is ignored.
    """

    stable: dict[TopicPartition, int] = field(default_factory=dict)
    """Map each topic-partition to its last stable offset."""
    high: dict[TopicPartition, int] = field(default_factory=dict)
    """Map each topic-partition to its high watermark, which includes the records of open transactions."""
    leader_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """Map each topic-partition to the epoch of the last leader whose log was found to contain the stream's position."""
    short: dict[TopicPartition, int] = field(default_factory=dict)
    """Number of consecutive polls in which the log ended before the stream's position."""
    outdated: dict[TopicPartition, int] = field(default_factory=dict)
    """Number of consecutive polls that were answered by a broker with an outdated leader epoch."""

    def poll(
        self, kafka: LogSource, offsets: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Poll the ends of the logs. Returns a map from each truncated log to the offset at which it was truncated.

        A log counts as truncated only if it was truncated below the stream's position (`offsets`). The stored ends of
        all other logs are updated. `epochs` are the leader epochs of the records at the positions. Raises the errors of
        `kafka`, and KafkaUnavailable if too many consecutive answers are outdated.
        """
        ends = kafka.log_ends(offsets)
        answers = {
            tp: classify_answer(offsets[tp], end, known_epoch=self.leader_epochs.get(tp, epochs.get(tp)))
            for tp, end in ends.items()
        }
        self._check_outdated(answers)
        self.short = {tp: self.short.get(tp, 0) + 1 for tp, answer in answers.items() if answer is Answer.SHORT}
        cut = {tp: ends[tp].stable for tp, polls in self.short.items() if polls >= SHORT_POLLS}
        doubtful = [tp for tp, answer in answers.items() if answer in {Answer.SHORT, Answer.ANOTHER_LEADER}]
        if ask := {tp: (offsets[tp], epochs[tp]) for tp in doubtful if tp in epochs}:
            cut |= kafka.cut(ask)
        for tp, end in ends.items():
            if tp in cut:
                continue
            if answers[tp] is Answer.VALID:
                self._update_ends(tp, max(end.stable, self.stable.get(tp, 0)), max(end.high, self.high.get(tp, 0)), end)
            elif answers[tp] is Answer.ANOTHER_LEADER:
                self._update_ends(tp, end.stable, end.high, end)
        return cut

    def is_silent(self, tp: TopicPartition, offset: int) -> bool:
        """Return whether the log has no record at or after the offset, not even one of an open transaction.

        Returns True if the log's end is unknown.
        """
        return self.stable.get(tp, offset) <= offset and self.high.get(tp, offset) <= offset

    def in_transactions(self) -> dict[TopicPartition, int]:
        """Map each topic-partition with open transactions to the number of offsets that they hold back."""
        waiting = {tp: self.high[tp] - end for tp, end in self.stable.items()}
        return {tp: count for tp, count in waiting.items() if count > 0}

    def _check_outdated(self, answers: Mapping[TopicPartition, Answer]) -> None:
        """Raise KafkaUnavailable after too many consecutive outdated answers.

        A few outdated answers are normal during a leader election. If they continue, the stream silently stops reading.
        """
        outdated = [tp for tp, answer in answers.items() if answer is Answer.OUTDATED]
        self.outdated = {tp: self.outdated.get(tp, 0) + 1 for tp in outdated}
        stuck = sorted(f"{topic}-{p}" for (topic, p), polls in self.outdated.items() if polls >= OUTDATED_POLLS)
        if stuck:
            raise KafkaUnavailable(
                f"{OUTDATED_POLLS} times in a row, brokers answered for {', '.join(stuck[:5])} with a leader epoch "
                "lower than an earlier one: they have not noticed that they were replaced, or the cluster's "
                "metadata was restored from a backup. Check the brokers"
            )

    def _update_ends(self, tp: TopicPartition, stable: int, high: int, end: LogEnd) -> None:
        self.stable[tp], self.high[tp] = stable, high
        if end.leader_epoch is not None:
            self.leader_epochs[tp] = end.leader_epoch


def find_truncations(
    kafka: LogSource,
    offsets: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
    *,
    pause: Callable[[], None] = lambda: time.sleep(1.0),
) -> Mapping[TopicPartition, int]:
    """Map each log that was truncated below its position in `offsets` to the offset at which it was truncated.

    A log that seems too short is polled again after `pause`, because only repeated polls prove a truncation.
    """
    watch = LogWatch()
    while True:
        cut = watch.poll(kafka, offsets, epochs)
        if cut or not watch.short:
            return cut
        pause()


def lost_ranges(wanted: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int]) -> str:
    """Describe the offsets that retention deleted from each position to the first available offset; empty if none."""
    return _describe_ranges({tp: (start, available.get(tp, start)) for tp, start in wanted.items()})


def check_no_gap(wanted: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], *, stream: str) -> None:
    """Raise OffsetGap if retention deleted records at or after a position in `wanted`."""
    if lost := lost_ranges(wanted, available):
        raise OffsetGap(
            f"Kafka's retention deleted records that stream {stream!r} had not read: {lost}. `frazil reset {stream} "
            "--to marker` continues at the first remaining offsets, and `source.on-gap: skip` always does"
        )


def check_not_truncated(
    wanted: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], *, stream: str
) -> None:
    """Raise OffsetGap if a log was truncated, at its offset in `ends`, below the stream's position in `wanted`."""
    if lost := _describe_ranges({tp: (end, wanted.get(tp, end)) for tp, end in ends.items()}):
        raise OffsetGap(
            f"Kafka lost records that stream {stream!r} had read already, and gives their offsets to new ones: {lost}. "
            "The log was truncated (an unclean leader election, a disk or a broker restored from a backup). The table "
            f"keeps what it has. `frazil reset {stream} --to marker` continues where the log was truncated, and new "
            "records land next to the old rows. With `source.on-gap: skip` a writer does so automatically"
        )


def _describe_ranges(ranges: Mapping[TopicPartition, tuple[int, int]]) -> str:
    """Describe the ranges `[start, end)` that are not empty."""
    return "; ".join(
        f"{topic}-{partition} offsets {start} to {end - 1}"
        for (topic, partition), (start, end) in sorted(ranges.items())
        if start < end
    )
