"""Finds stalls of a healthy writer, and the topic-partition that holds it back. Pure.

A process may be alive, send heartbeats and log although no record reaches the table, or although the watermark does not
move and partitions do not complete. Such a writer is not hung (`frazil.supervise.liveness`) and is not restarted. The
stall is reported within three commit intervals, or within 20 s if these are shorter. The first matching rule counts:

1. The writer waits, and its planner has had no answer from Kafka for three intervals, so the unread records are
   unknown.
2. The unread records of a topic-partition have made no progress towards a commit for three intervals.
3. Offsets of a topic-partition wait for a transaction, and its readable part has ended at the same offset for three
   intervals.
4. Commits advance the offsets, but the watermark has stayed the same for three intervals.

These are not stalls: a topic without unread records; a backlog whose committed offsets advance, however far behind; a
batch longer than three intervals whose records or phase advance. That last exception is only for the *first* batch over
the same offsets: a batch that is lost and read again brings no record nearer to the table.

Rule 4 needs two commits that left the watermark unchanged, so that one late record in a quiet topic is not a stall. The
rule reports a topic-partition without records even if `watermark.idle-timeout` will release the partition later: that
may take a day, and the sentence mentions it. The rule also reports event times that are all equal, because nothing
downstream can begin before they advance.
"""

from __future__ import annotations

from collections.abc import Callable

from frazil.events import StallBegan, StallEnded, StreamEvent
from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import TopicPartition
from frazil.spec.units import counted
from frazil.stream.stall_history import FIRST_ANSWER_MS, WORKING, History, Limits, Sample, Wait, remember
from frazil.timetext import ago, utc

MIN_COMMITS = 2


def find_stall(history: History, sample: Sample, *, limits: Limits, stream: str) -> Stall | None:
    """Return the stall at `sample`, the last sample in `history`; None if the writer is not stalled."""
    if sample.phase not in WORKING:
        return None
    return (
        _planner_silent(history, sample, limits=limits, stream=stream)
        or _offsets_stand(history, sample, limits=limits, stream=stream)
        or _transaction_open(history, sample, limits=limits)
        or _watermark_stands(history, sample, limits=limits)
    )


def _planner_silent(history: History, sample: Sample, *, limits: Limits, stream: str) -> Stall | None:
    """Find a planner without an answer from Kafka (rule 1), which is not polled while a batch runs."""
    if sample.phase is not Phase.WAITING:
        return None
    answered = sample.planned_at_ms is not None
    since_ms = max(sample.planned_at_ms or 0, sample.advanced_at_ms, history.began_at_ms)
    if sample.at_ms - since_ms < (limits.still_ms if answered else max(limits.still_ms, FIRST_ANSWER_MS)):
        return None
    largest = min(sample.unread, key=lambda tp: (-sample.unread[tp], tp), default=None)
    where = f", most of them in {_name(largest)}" if largest else ""
    seen = (
        f"{counted(sum(sample.unread.values()), 'record', 'was|were')} unread then{where}"
        if answered
        else "it never has before"
    )
    return Stall(
        StallKind.OFFSETS,
        since_ms,
        _name(largest) if largest else None,
        f"the planner has heard nothing from Kafka since {_since(since_ms, sample)}, so no batch starts ({seen}). "
        f"Check that the brokers answer, and see writer.log for the planner's last messages; {_restart(stream)}",
    )


def _offsets_stand(history: History, sample: Sample, *, limits: Limits, stream: str) -> Stall | None:
    """Find unread records without progress (rule 2).

    Names the topic-partition that has waited longest; among equals, the one with the most unread records.
    """
    tp = min(sample.unread, key=lambda tp: (history.waits[tp].nearer_at_ms, -sample.unread[tp], tp), default=None)
    if tp is None or sample.at_ms - (wait := history.waits[tp]).nearer_at_ms < limits.still_ms:
        return None
    at = "its beginning" if wait.offset is None else f"offset {wait.offset}"
    why, do = _no_commit(wait, sample, stream=stream)
    return Stall(
        StallKind.OFFSETS,
        wait.nearer_at_ms,
        _name(tp),
        f"{_name(tp)} holds the offsets back: {counted(sample.unread[tp], 'record')} from {at} on "
        f"{'is' if sample.unread[tp] == 1 else 'are'} unread ({sum(sample.unread.values()):,} in all), without "
        f"progress towards a commit since {_since(wait.nearer_at_ms, sample)}: {why}. {do}",
    )


def _no_commit(wait: Wait, sample: Sample, *, stream: str) -> tuple[str, str]:
    """Return why unread records are not committed, as far as the writer knows, and what to do."""
    restart = _restart(stream)
    if sample.batch is not None and sample.batch != wait.tried:
        why = f"batch {sample.batch} reads again what batch {wait.tried} read and did not commit"
        return why, "See writer.log for what became of that commit"
    if sample.batch is not None:
        read = counted(sample.batch_records, "record")
        why = f"batch {sample.batch} is {sample.phase}, has read {read} and makes no progress"
        parts = "brokers and executors" if sample.phase is Phase.STAGING else "catalog and storage"
        return why, f"Check that {parts} answer; {restart}"
    if wait.tried is not None:
        return (
            f"batch {wait.tried} ended without them, and no other starts",
            f"See writer.log for the reason; {restart}",
        )
    return "the planner sees them, but no batch starts", f"See writer.log for the planner's messages; {restart}"


def _restart(stream: str) -> str:
    how = f"`frazil restart {stream}` (in the foreground: Ctrl-C, then `frazil run {stream}`)"
    return f"{how} starts again at the table's position without losing anything"


def _transaction_open(history: History, sample: Sample, *, limits: Limits) -> Stall | None:
    """Find offsets that wait for a transaction (rule 3). Names the topic-partition that has waited longest."""
    tp = min(sample.in_transactions, key=lambda tp: (history.open_since[tp][1], tp), default=None)
    if tp is None or sample.at_ms - (since_ms := history.open_since[tp][1]) < limits.still_ms:
        return None
    do = sample.transaction or (
        "find the producer whose transaction stays open (`kafka-transactions.sh find-hanging`): it must commit or abort"
    )
    waiting = counted(sample.in_transactions[tp], "offset")
    return Stall(
        StallKind.TRANSACTION,
        since_ms,
        _name(tp),
        f"{_name(tp)} waits for a transaction to end: {waiting} behind offset {history.open_since[tp][0]} cannot be "
        f"read since {_since(since_ms, sample)}: {do}",
    )


def _watermark_stands(history: History, sample: Sample, *, limits: Limits) -> Stall | None:
    """Find a watermark that does not move (rule 4), and the topic-partition that holds it back.

    Among the partitions that are not idle, it is one without event times, or else the one with the smallest time.
    """
    since_ms, times = history.watermark_since_ms, sample.max_event_times_us
    if sample.at_ms - since_ms < limits.still_ms or history.advances < MIN_COMMITS:
        return None
    active = [tp for tp in sample.offsets if tp not in sample.idle]
    tp = min(active, key=lambda tp: (tp in times, times.get(tp, 0), tp), default=None)
    if tp is None:
        return None
    equal = sum(times.get(other) == times.get(tp) for other in active) - 1
    others = f", like {equal} more" if equal else ""
    at = "is unknown" if sample.watermark_us is None else f"stands at {utc(sample.watermark_us // 1000)}"
    why, do = _no_event_time(tp, history, sample, limits=limits)
    return Stall(
        StallKind.WATERMARK,
        since_ms,
        _name(tp),
        f"{_name(tp)} holds the watermark back{others}: commits advance the offsets, but the watermark {at} since "
        f"{_since(since_ms, sample)}: {why}. {do}",
    )


def _no_event_time(tp: TopicPartition, history: History, sample: Sample, *, limits: Limits) -> tuple[str, str]:
    """Return why a topic-partition's newest event time does not advance, and what to do."""
    time_us = sample.max_event_times_us.get(tp)
    newest = "no event time is known there" if time_us is None else f"the newest event time there is {_event(time_us)}"
    is_empty = time_us is None and sample.offsets[tp] == 0  # its first commit, at 0, brought no record
    if history.moved_at_ms.get(tp, 0) > history.watermark_since_ms and not is_empty:
        do = "Check the event times that its producers set, and the dead letters, which have none"
        return f"its records arrive, and {newest}", do
    idle = f"after watermark.idle-timeout ({ago(limits.idle_timeout_ms)}) without unread records it is left out"
    silent = "it is empty: no records arrive" if is_empty else "no records arrive"
    return f"{silent}, and {newest}", f"Check its producers; {idle}: shorten that to wait less"


def _event(time_us: int) -> str:
    return utc(time_us // 1000)


def _since(since_ms: int, sample: Sample) -> str:
    return f"{utc(since_ms)} ({ago(sample.at_ms - since_ms)})"


def _name(tp: TopicPartition) -> str:
    return f"{tp[0]}-{tp[1]}"


class StallWatch:
    """Evaluates samples of the heartbeat's thread, and emits events when a stall begins or ends. Not thread-safe."""

    def __init__(self, stream: str, limits: Limits, *, emit: Callable[[StreamEvent], None]) -> None:
        self._stream, self._declared, self._limits, self._emit = stream, limits, limits, emit
        self._history: History | None = None
        self._stall: Stall | None = None

    def stretch(self, stretch: float) -> None:
        """Set the factor by which the commit interval is stretched."""
        self._limits = self._declared.stretched(stretch)

    def evaluate(self, sample: Sample) -> Stall | None:
        """Return the stall at the sample's time; None without one.

        While the writer takes over or stops, returns the previous result.
        """
        self._history = remember(self._history, sample, limits=self._limits)
        if sample.phase in WORKING:
            found = find_stall(self._history, sample, limits=self._limits, stream=self._stream)
            self._emit_change(found, now_ms=sample.at_ms)
            self._stall = found
        return self._stall

    def _emit_change(self, found: Stall | None, *, now_ms: int) -> None:
        """Emit events if a stall ended or began. A stall of the same kind counts as the same stall."""
        before = self._stall
        if (before and before.kind) == (found and found.kind):
            return
        if before is not None:
            self._emit(StallEnded(before.kind, lasted_ms=now_ms - before.since_ms))
        if found is not None:
            self._emit(StallBegan(found))
