"""Finds stalls of a healthy writer, and the topic-partition that causes them. Pure.

A stalled writer is not restarted. A stall is reported after three commit intervals without progress, and at
least 20 s. A writer's first batch has more time. If several rules of `find_stall` match, the first one reports the
stall.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from frazil.commit.marker import BatchKey
from frazil.errors import Failure, brokers_remedy, restart_hint
from frazil.events import StallBegan, StallEnded, StreamEvent
from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import Offsets, TopicPartition
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.timetext import format_elapsed, format_utc

MIN_COMMITS = 2
"""Minimum number of commits without a new watermark that count as a stall. One late record is not a stall."""
STALL_INTERVALS = 3
"""Number of commit intervals without progress that count as a stall."""
MIN_STALL_MS = 20_000
"""Minimum time (ms) of a stall. Starting a Python worker takes up to 10 s on a busy host."""
MAX_SAMPLE_GAP_MS = 30_000
"""Longest gap (ms) between samples. After a longer gap, as when the machine slept, the history begins again."""
START_TIMEOUT_MS = 60_000
"""Minimum timeout (ms) of a planner before Kafka's first answer, and of the first batch, which starts Spark's Python
workers.
"""
COMPILE_TIMEOUT_MS = 300_000
"""Minimum timeout (ms) of a batch while it compiles loops over records."""
ONE_TIME_TIMEOUT_MS = 900_000
"""Minimum time (ms) of a watermark stall while records arrive that all have one event time. A snapshot may be loading,
or a producer's clock may have stopped.
"""
MIN_NAMED_DELAY_S = 1.0
"""Minimum delay (s) by a Kafka quota that a stall's reason mentions."""

WORKING_PHASES = frozenset({Phase.WAITING, Phase.STAGING, Phase.JOURNALING, Phase.COMMITTING})
"""Phases in which a writer can stall. In all other phases, the planner does not poll."""


@dataclass(frozen=True, slots=True)
class StallLimits:
    interval_ms: int
    idle_timeout_ms: int

    @property
    def stall_timeout_ms(self) -> int:
        return max(STALL_INTERVALS * self.interval_ms, MIN_STALL_MS)

    @property
    def gap_ms(self) -> int:
        return max(MAX_SAMPLE_GAP_MS, self.interval_ms)

    @classmethod
    def for_stream(cls, spec: StreamSpec) -> StallLimits:
        millisecond = timedelta(milliseconds=1)
        return cls(spec.commit.interval // millisecond, spec.watermark.idle_timeout // millisecond)


@dataclass(frozen=True, slots=True)
class WriterSample:
    at_ms: int
    phase: Phase
    advanced_at_ms: int
    """When the phase, the batch, its record count, or whether it compiles last changed."""
    offsets: Offsets
    unread: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Unread records of topic-partitions with a leader, according to the planner's last report."""
    leaderless: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """The unread records of topic-partitions without a leader; None if unknown."""
    in_transactions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets that wait for transactions to end."""
    transaction: str = ""
    silent_since_ms: int | None = None
    missing: Failure | None = None
    """Why the planner gets no offsets, if Kafka answers but has no topic of the stream."""
    planned_at_ms: int | None = None
    """When Kafka last answered the planner."""
    batch: BatchKey | None = None
    """The current batch; None once it is committed, or while the writer waits."""
    batch_records: int = 0
    delay_s: float = 0.0
    """Time (s) by which a broker quota delays each fetch."""
    compiling: bool = False
    """Whether a task of the batch is compiling loops over records."""
    max_event_times_us: Mapping[TopicPartition, int] = field(default_factory=dict)
    idle: frozenset[TopicPartition] = frozenset()
    watermark_us: int | None = None


@dataclass(frozen=True, slots=True)
class UnreadRecords:
    """A partition's unread records after one committed offset, and the progress of reading these records."""

    offset: int | None
    """The committed offset; None for a new partition that is not in the marker yet."""
    progress_at_ms: int
    """When the records were first seen, or when their first batch last made progress, whichever is later."""
    first_batch: BatchKey | None
    """The first batch that reads these records, if any. The progress of later batches does not count."""


@dataclass(frozen=True, slots=True)
class SampleHistory:
    began_at_ms: int
    sampled_at_ms: int
    offsets: Offsets
    watermark_us: int | None
    watermark_since_ms: int
    """When the watermark last moved, or the stream last had nothing to read."""
    advances: int = 0
    """Number of samples since `watermark_since_ms` with a commit that had advanced offsets."""
    read_up_since_ms: int | None = None
    """The time since which all records are committed and no offset has moved; None if records are unread."""
    moved_at_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    """When each committed offset last changed."""
    waits: Mapping[TopicPartition, UnreadRecords] = field(default_factory=dict)
    open_since: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """The readable end of each partition with open transactions, and when (ms) the stream reached it."""
    leaderless_since_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    first_batch: BatchKey | None = None


def add_sample(history: SampleHistory | None, sample: WriterSample, *, limits: StallLimits) -> SampleHistory:
    """Return the history with one more sample. After a gap, the history begins again."""
    if history is None or not 0 <= sample.at_ms - history.sampled_at_ms <= limits.gap_ms:
        history = SampleHistory(sample.at_ms, sample.at_ms, sample.offsets, sample.watermark_us, sample.at_ms)
    if sample.phase not in WORKING_PHASES:
        since_ms = sample.at_ms if _has_not_advanced(history) else history.watermark_since_ms
        return dataclasses.replace(history, sampled_at_ms=sample.at_ms, watermark_since_ms=since_ms)
    moved = [tp for tp, offset in sample.offsets.items() if history.offsets.get(tp) != offset]
    still_read_up = None if moved else history.read_up_since_ms
    read_up_since_ms = None if sample.unread else sample.at_ms if still_read_up is None else still_read_up
    quiet = read_up_since_ms is not None and sample.at_ms - read_up_since_ms >= limits.stall_timeout_ms
    starts = sample.planned_at_ms is None and _has_not_advanced(history)
    fresh = quiet or starts or sample.watermark_us != history.watermark_us
    return SampleHistory(
        began_at_ms=history.began_at_ms,
        sampled_at_ms=sample.at_ms,
        offsets=sample.offsets,
        watermark_us=sample.watermark_us,
        watermark_since_ms=sample.at_ms if fresh else history.watermark_since_ms,
        advances=0 if fresh else history.advances + bool(moved),
        read_up_since_ms=read_up_since_ms,
        moved_at_ms={**history.moved_at_ms, **dict.fromkeys(moved, sample.at_ms)},
        waits={tp: _update_unread_records(history.waits.get(tp), tp, sample) for tp in sample.unread},
        open_since={tp: _open_since(history.open_since.get(tp), tp, sample) for tp in sample.in_transactions},
        leaderless_since_ms={tp: history.leaderless_since_ms.get(tp, sample.at_ms) for tp in sample.leaderless},
        first_batch=history.first_batch or sample.batch,
    )


def _has_not_advanced(history: SampleHistory) -> bool:
    """Return whether no offset has advanced since the watermark last moved."""
    return history.advances == 0


def _open_since(previous: tuple[int, int] | None, tp: TopicPartition, sample: WriterSample) -> tuple[int, int]:
    end = sample.offsets.get(tp, 0) + sample.unread.get(tp, 0)
    return previous if previous is not None and previous[0] == end else (end, sample.at_ms)


def _update_unread_records(previous: UnreadRecords | None, tp: TopicPartition, sample: WriterSample) -> UnreadRecords:
    offset = sample.offsets.get(tp)
    if previous is None or previous.offset != offset:
        return UnreadRecords(offset, sample.at_ms, sample.batch)
    first_batch = previous.first_batch or sample.batch
    if sample.batch is None or first_batch != sample.batch:
        return dataclasses.replace(previous, first_batch=first_batch)
    return UnreadRecords(offset, max(previous.progress_at_ms, sample.advanced_at_ms), first_batch)


def find_stall(history: SampleHistory, sample: WriterSample, *, limits: StallLimits, stream: str) -> Stall | None:
    if sample.phase not in WORKING_PHASES:
        return None
    return (
        _find_silent_kafka(sample)
        or _find_silent_planner(history, sample, limits=limits, stream=stream)
        or _find_offset_stall(history, sample, limits=limits, stream=stream)
        or _find_missing_leader(history, sample)
        or _find_open_transaction(history, sample, limits=limits)
        or _find_watermark_stall(history, sample, limits=limits)
    )


def _find_silent_kafka(sample: WriterSample) -> Stall | None:
    since_ms = sample.silent_since_ms
    if since_ms is None or sample.at_ms - since_ms < MIN_STALL_MS:
        return None
    if sample.missing:
        return Stall(StallKind.TOPIC, since_ms, None, sample.missing.reason, sample.missing.remedy)
    reason = (
        f"Kafka has not answered since {_since_text(since_ms, sample)}. Nothing is lost, and the writer continues by "
        f"itself once Kafka answers"
    )
    return Stall(StallKind.KAFKA, since_ms, None, reason, brokers_remedy())


def _find_silent_planner(
    history: SampleHistory, sample: WriterSample, *, limits: StallLimits, stream: str
) -> Stall | None:
    if sample.phase is not Phase.WAITING or sample.silent_since_ms is not None:  # Kafka itself is silent
        return None
    answered = sample.planned_at_ms is not None
    since_ms = max(sample.planned_at_ms or 0, sample.advanced_at_ms, history.began_at_ms)
    if sample.at_ms - since_ms < (
        limits.stall_timeout_ms if answered else max(limits.stall_timeout_ms, START_TIMEOUT_MS)
    ):
        return None
    largest = min(sample.unread, key=lambda tp: (-sample.unread[tp], tp), default=None)
    where = f", {sample.unread[largest]:,} of them in {_partition_name(largest)}" if largest else ""
    answer = (
        f"{format_count(sum(sample.unread.values()), 'record', 'was|were')} unread then{where}"
        if answered
        else "it has never answered"
    )
    return Stall(
        StallKind.OFFSETS,
        since_ms,
        _partition_name(largest) if largest else None,
        f"Kafka has not answered the planner since {_since_text(since_ms, sample)}, so no batch starts ({answer}). "
        f"Check that the brokers answer, and see writer.log for the planner's last messages; {_restart_remedy(stream)}",
    )


def _find_offset_stall(
    history: SampleHistory, sample: WriterSample, *, limits: StallLimits, stream: str
) -> Stall | None:
    """Find unread records without progress. Only the progress of the first batch with these records counts."""
    tp = min(sample.unread, key=lambda tp: (history.waits[tp].progress_at_ms, -sample.unread[tp], tp), default=None)
    starting = sample.batch is not None and sample.batch == history.first_batch
    own_timeout_ms = COMPILE_TIMEOUT_MS if sample.compiling else START_TIMEOUT_MS if starting else 0
    timeout_ms = max(limits.stall_timeout_ms, own_timeout_ms)
    if tp is None or sample.at_ms - (wait := history.waits[tp]).progress_at_ms < timeout_ms:
        return None
    position = "its beginning" if wait.offset is None else f"offset {wait.offset}"
    reason, do = _explain_offset_stall(wait, sample, stream=stream)
    return Stall(
        StallKind.OFFSETS,
        wait.progress_at_ms,
        _partition_name(tp),
        f"{_partition_name(tp)} holds the offsets back: {format_count(sample.unread[tp], 'record')} from {position} on "
        f"{'is' if sample.unread[tp] == 1 else 'are'} unread ({sum(sample.unread.values()):,} in all), without "
        f"progress towards a commit since {_since_text(wait.progress_at_ms, sample)}: {reason}. {do}",
    )


def _explain_offset_stall(wait: UnreadRecords, sample: WriterSample, *, stream: str) -> tuple[str, str]:
    restart = _restart_remedy(stream)
    if sample.batch is not None and sample.batch != wait.first_batch:
        reason = f"batch {sample.batch} reads again the records that batch {wait.first_batch} did not commit"
        return reason, "See writer.log for the outcome of that commit"
    if sample.batch is not None:
        note = f", has read {format_count(sample.batch_records, 'record')}" if sample.phase is Phase.STAGING else ""
        reason = f"batch {sample.batch} is {sample.phase}{note} and makes no progress"
        if sample.phase is Phase.STAGING and sample.delay_s >= MIN_NAMED_DELAY_S:
            reason += f". A quota of Kafka's brokers delays each fetch by {sample.delay_s:.0f} s"
            return reason, "Raise the quota. A producer's batch that is larger than 10 s of the quota never arrives"
        if sample.phase is Phase.STAGING and sample.compiling:
            reason += ", because the loops over records are being compiled, once per user, host and version"
            return reason, "It continues by itself. To compile beforehand, run `python -m frazil.ingest.precompile`"
        parts = "brokers and executors" if sample.phase is Phase.STAGING else "catalog and storage"
        return reason, f"Check that {parts} answer; {restart}"
    if wait.first_batch is not None:
        return (
            f"batch {wait.first_batch} ended without these records, and no other batch starts",
            f"See writer.log for the reason; {restart}",
        )
    do = f"See writer.log for the planner's messages; {restart}"
    return "the planner sees these records, but no batch starts", do


def _restart_remedy(stream: str) -> str:
    return f"{restart_hint(stream)} starts again at the table's position without losing anything"


def _find_missing_leader(history: SampleHistory, sample: WriterSample) -> Stall | None:
    since = history.leaderless_since_ms
    tp = min(since, key=lambda tp: (since[tp], tp), default=None)
    if tp is None or sample.at_ms - since[tp] < MIN_STALL_MS:
        return None
    more_text = f" (and {len(since) - 1:,} more)" if len(since) > 1 else ""
    unread = sample.leaderless[tp]
    count = "how many is unknown" if unread is None else f"{unread:,} of them are known"
    return Stall(
        StallKind.LEADER,
        since[tp],
        _partition_name(tp),
        f"{_partition_name(tp)}{more_text} has had no leader since {_since_text(since[tp], sample)}: its records from "
        f"offset {sample.offsets.get(tp, 0)} on are not read ({count}), and the watermark waits for them. The other "
        "topic-partitions are written. Start the brokers that have its replicas: the writer then continues by itself",
    )


def _find_open_transaction(history: SampleHistory, sample: WriterSample, *, limits: StallLimits) -> Stall | None:
    """Find offsets that wait for a transaction. If several partitions wait, chooses the one that has waited longest."""
    tp = min(sample.in_transactions, key=lambda tp: (history.open_since[tp][1], tp), default=None)
    if tp is None or sample.at_ms - (since_ms := history.open_since[tp][1]) < limits.stall_timeout_ms:
        return None
    do = sample.transaction or (
        "find the producer whose transaction stays open (`kafka-transactions.sh find-hanging`): it must commit or abort"
    )
    waiting = format_count(sample.in_transactions[tp], "offset")
    return Stall(
        StallKind.TRANSACTION,
        since_ms,
        _partition_name(tp),
        f"{_partition_name(tp)} waits for a transaction to end: {waiting} behind offset {history.open_since[tp][0]} "
        f"have been unreadable since {_since_text(since_ms, sample)}: {do}",
    )


def _find_watermark_stall(history: SampleHistory, sample: WriterSample, *, limits: StallLimits) -> Stall | None:
    since_ms, times = history.watermark_since_ms, sample.max_event_times_us
    if history.advances < MIN_COMMITS:
        return None
    active = [tp for tp in sample.offsets if tp not in sample.idle]
    tp = min(active, key=lambda tp: (tp in times, times.get(tp, 0), tp), default=None)
    if tp is None:
        return None
    is_one_time = tp in times and all(times.get(other) == times[tp] and _advances(other, history) for other in active)
    timeout_ms = max(limits.stall_timeout_ms, ONE_TIME_TIMEOUT_MS) if is_one_time else limits.stall_timeout_ms
    if sample.at_ms - since_ms < timeout_ms:
        return None
    equal = sum(times.get(other) == times.get(tp) for other in active) - 1
    more_text = f" (and {equal} more)" if equal else ""
    state = (
        "has been unknown" if sample.watermark_us is None else f"has been at {format_utc(sample.watermark_us // 1000)}"
    )
    reason, do = _explain_watermark_stall(tp, history, sample, limits=limits)
    if is_one_time:
        do = f"A load of records with one event time ends by itself. Otherwise, check the producers' clocks. {do}"
    return Stall(
        StallKind.WATERMARK,
        since_ms,
        _partition_name(tp),
        f"{_partition_name(tp)}{more_text} holds the watermark back: commits advance the offsets, but the watermark "
        f"{state} since {_since_text(since_ms, sample)}: {reason}. {do}",
    )


def _explain_watermark_stall(
    tp: TopicPartition, history: SampleHistory, sample: WriterSample, *, limits: StallLimits
) -> tuple[str, str]:
    time_us = sample.max_event_times_us.get(tp)
    newest = (
        "it has no known event time" if time_us is None else f"its newest event time is {format_utc(time_us // 1000)}"
    )
    is_empty = time_us is None and sample.offsets[tp] == 0  # its first commit, at 0, brought no record
    if _advances(tp, history) and not is_empty:
        do = "Check the event times that its producers set. Also check its dead letters: they have no event time"
        return f"its records arrive, and {newest}", do
    timeout = format_elapsed(limits.idle_timeout_ms)
    cause = "the partition is empty: no records arrive" if is_empty else "no records arrive"
    do = f"after watermark.idle-timeout ({timeout}) without unread records, the partition no longer counts"
    return f"{cause}, and {newest}", f"Check its producers; {do}. To wait less, shorten the timeout"


def _advances(tp: TopicPartition, history: SampleHistory) -> bool:
    """Return whether the partition's records were committed since the watermark last moved."""
    return history.moved_at_ms.get(tp, 0) > history.watermark_since_ms


def _since_text(since_ms: int, sample: WriterSample) -> str:
    return f"{format_utc(since_ms)} ({format_elapsed(sample.at_ms - since_ms)})"


def _partition_name(tp: TopicPartition) -> str:
    return f"{tp[0]}-{tp[1]}"


class StallWatch:
    """Evaluates samples, and emits events when a stall begins or ends. Not thread-safe."""

    def __init__(self, stream: str, limits: StallLimits, *, emit: Callable[[StreamEvent], None]) -> None:
        self._stream, self._declared, self._limits, self._emit = stream, limits, limits, emit
        self._history: SampleHistory | None = None
        self._stall: Stall | None = None

    def set_stretch(self, stretch: float) -> None:
        interval_ms = round(self._declared.interval_ms * stretch)
        self._limits = dataclasses.replace(self._declared, interval_ms=interval_ms)

    def evaluate(self, sample: WriterSample) -> Stall | None:
        """Return the current stall, if any. During take-over and stop, repeats the last result."""
        self._history = add_sample(self._history, sample, limits=self._limits)
        if sample.phase in WORKING_PHASES:
            stall = find_stall(self._history, sample, limits=self._limits, stream=self._stream)
            previous = self._stall
            if (previous and previous.kind) != (stall and stall.kind):
                if previous is not None:
                    lasted_ms = sample.at_ms - previous.since_ms
                    self._emit(StallEnded(previous.kind, lasted_ms=lasted_ms, is_over=stall is None))
                if stall is not None:
                    self._emit(StallBegan(stall))
            self._stall = stall
        return self._stall
