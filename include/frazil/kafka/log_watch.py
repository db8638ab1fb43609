"""Tracks the ends of the logs that a stream reads, and detects logs that were truncated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from frazil.errors import KafkaUnavailable
from frazil.kafka.truncation import OUTDATED_POLLS, SHORT_POLLS, Answer, LogEnd, evaluate
from frazil.offsets.spans import TopicPartition


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
            tp: evaluate(offsets[tp], end, known_epoch=self.leader_epochs.get(tp, epochs.get(tp)))
            for tp, end in ends.items()
        }
        self._check_outdated(answers)
        cut = self._truncations(kafka, offsets, epochs, ends, answers)
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

    def _truncations(
        self,
        kafka: LogSource,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, LogEnd],
        answers: Mapping[TopicPartition, Answer],
    ) -> Mapping[TopicPartition, int]:
        self.short = {tp: self.short.get(tp, 0) + 1 for tp, answer in answers.items() if answer is Answer.SHORT}
        doubtful = [tp for tp, answer in answers.items() if answer in {Answer.SHORT, Answer.ANOTHER_LEADER}]
        ask = {tp: (offsets[tp], epochs[tp]) for tp in doubtful if tp in epochs}
        return {
            **{tp: ends[tp].stable for tp, polls in self.short.items() if polls >= SHORT_POLLS},
            **(kafka.cut(ask) if ask else {}),
        }


def find_cut(
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
