"""Tracks the ends of the logs that a stream reads, and detects records that retention or a truncation removed.

A truncation shows in one of two ways. A leader with the current epoch repeatedly reports a log end below an offset
that was readable. Or the leader's end for the position's leader epoch (`OffsetForLeaderEpoch`) is below the position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from frazil.errors import KafkaUnavailable, OffsetGap
from frazil.offsets.spans import TopicPartition, format_span

if TYPE_CHECKING:
    from frazil.kafka.admin import KafkaAdmin

MIN_SHORT_POLLS = 3
"""Number of consecutive polls with a log end before the position that prove a truncation without leader epochs."""
MAX_OUTDATED_POLLS = 60
"""Maximum number of consecutive outdated responses, from a replaced broker, before reading fails."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    stable: int
    """The last stable offset: the log's end for a `read_committed` reader."""
    high: int
    """The high watermark, which includes the records of open transactions."""
    leader_epoch: int | None = None


class LeaderAnswer(Enum):
    """What a leader's response means for an offset that was readable before."""

    VALID = "the same leader still has the offset"
    OUTDATED = "the broker has not noticed that it was replaced: ignore its ends"
    SHORT = "the log ends before the offset"
    ANOTHER_LEADER = "the log may have been truncated and then grown again: ask the leader"


def classify_answer(offset: int, end: LogEnd, *, known_epoch: int | None) -> LeaderAnswer:
    if known_epoch is not None and end.leader_epoch is not None and end.leader_epoch < known_epoch:
        return LeaderAnswer.OUTDATED
    if end.stable < offset:
        return LeaderAnswer.SHORT
    same = known_epoch is None or end.leader_epoch is None or end.leader_epoch == known_epoch
    return LeaderAnswer.VALID if same else LeaderAnswer.ANOTHER_LEADER


@dataclass(slots=True)
class LogWatch:
    """The last log ends that the leaders reported. Only a new leader can move an end back."""

    stable: dict[TopicPartition, int] = field(default_factory=dict)
    high: dict[TopicPartition, int] = field(default_factory=dict)
    leader_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """The epoch of the last leader whose log contained the stream's position."""
    short_polls: dict[TopicPartition, int] = field(default_factory=dict)
    outdated_polls: dict[TopicPartition, int] = field(default_factory=dict)
    """Number of consecutive responses from a broker with an outdated leader epoch."""

    def poll(
        self, kafka: KafkaAdmin, offsets: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Poll the ends of the logs, and return the offset at which each log was truncated below its position.

        `offsets` are the positions, and `epochs` their leader epochs. Logs that contain their position are left out,
        and their ends are stored. Raises the errors of `kafka`, and KafkaUnavailable after too many outdated responses.
        """
        ends = kafka.log_ends(offsets)
        answers = {
            tp: classify_answer(offsets[tp], end, known_epoch=self.leader_epochs.get(tp, epochs.get(tp)))
            for tp, end in ends.items()
        }
        self.outdated_polls = _count_again(self.outdated_polls, answers, LeaderAnswer.OUTDATED)
        late = sorted(tp for tp, polls in self.outdated_polls.items() if polls >= MAX_OUTDATED_POLLS)
        if stuck := [f"{topic}-{p}" for topic, p in late[:5]]:
            raise KafkaUnavailable(
                f"{MAX_OUTDATED_POLLS} times in a row, brokers answered for {', '.join(stuck)} with a leader epoch "
                "lower than an earlier one: they have not noticed that they were replaced, or the cluster's "
                "metadata was restored from a backup. Check the brokers"
            )
        self.short_polls = _count_again(self.short_polls, answers, LeaderAnswer.SHORT)
        cut = {tp: ends[tp].stable for tp, polls in self.short_polls.items() if polls >= MIN_SHORT_POLLS}
        doubtful = [tp for tp, answer in answers.items() if answer in {LeaderAnswer.SHORT, LeaderAnswer.ANOTHER_LEADER}]
        if ask := {tp: (offsets[tp], epochs[tp]) for tp in doubtful if tp in epochs}:
            cut |= kafka.truncation_offsets(ask)
        for tp, end in ends.items():
            if tp in cut:
                continue
            if answers[tp] is LeaderAnswer.VALID:
                self._update_ends(tp, max(end.stable, self.stable.get(tp, 0)), max(end.high, self.high.get(tp, 0)), end)
            elif answers[tp] is LeaderAnswer.ANOTHER_LEADER:
                self._update_ends(tp, end.stable, end.high, end)
        return cut

    def has_no_more_records(self, tp: TopicPartition, offset: int) -> bool:
        """Return whether the log certainly has no record at or after the offset, not even in an open transaction."""
        return self.stable.get(tp, offset) <= offset and self.high.get(tp, offset) <= offset

    def count_in_transactions(self) -> dict[TopicPartition, int]:
        waiting = {tp: self.high[tp] - end for tp, end in self.stable.items()}
        return {tp: count for tp, count in waiting.items() if count > 0}

    def _update_ends(self, tp: TopicPartition, stable: int, high: int, end: LogEnd) -> None:
        self.stable[tp], self.high[tp] = stable, high
        if end.leader_epoch is not None:
            self.leader_epochs[tp] = end.leader_epoch


def _count_again(
    polls: Mapping[TopicPartition, int], answers: Mapping[TopicPartition, LeaderAnswer], kind: LeaderAnswer
) -> dict[TopicPartition, int]:
    return {tp: polls.get(tp, 0) + 1 for tp, answer in answers.items() if answer is kind}


def find_truncations(
    kafka: KafkaAdmin,
    offsets: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
    *,
    pause: Callable[[], None] = lambda: time.sleep(1.0),
) -> Mapping[TopicPartition, int]:
    """Return the offset at which each log was truncated. Polls repeatedly: one poll proves nothing."""
    watch = LogWatch()
    while True:
        cut = watch.poll(kafka, offsets, epochs)
        if cut or not watch.short_polls:
            return cut
        pause()


def describe_lost_ranges(starts: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int]) -> str:
    """Describe the offsets that retention deleted, from each start to the first available offset; empty if none."""
    return _describe_ranges({tp: (start, available.get(tp, start)) for tp, start in starts.items()})


def check_no_gap(starts: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], *, stream: str) -> None:
    """Raise OffsetGap if retention deleted records at a position in `starts`."""
    if lost := describe_lost_ranges(starts, available):
        raise OffsetGap(
            f"Kafka's retention deleted records that stream {stream!r} had not read: {lost}. `frazil reset {stream} "
            "--to marker` continues at the first remaining offsets. With `source.on-gap: skip`, a writer always does "
            "this"
        )


def check_not_truncated(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], *, stream: str
) -> None:
    """Raise OffsetGap if a log's end in `ends` is below its position in `starts`."""
    if lost := _describe_ranges({tp: (end, starts.get(tp, end)) for tp, end in ends.items()}):
        raise OffsetGap(
            f"Kafka lost records that stream {stream!r} had already read, and reuses their offsets for new ones: "
            f"{lost}. The log was truncated (unclean leader election, lost disk, or restored backup). The table keeps "
            f"its rows. `frazil reset {stream} --to marker` continues where the log was truncated, and new records are "
            "added to the old rows. With `source.on-gap: skip`, a writer does this automatically"
        )


def _describe_ranges(ranges: Mapping[TopicPartition, tuple[int, int]]) -> str:
    return "; ".join(
        f"{topic}-{partition} offset{'' if end - start == 1 else 's'} {format_span(start, end)}"
        for (topic, partition), (start, end) in sorted(ranges.items())
        if start < end
    )
