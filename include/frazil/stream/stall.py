"""Whether a healthy writer gets nowhere: a silent stall, named with the topic-partition that holds it back. Pure.

A process may live, beat and log while no record reaches the table, or while the watermark stands and whoever waits for
a complete partition waits on. Neither is hung (`frazil.supervise.liveness`), and nothing restarts it for this: it is
said, within three commit intervals, or 20 s where these are shorter. First match wins:

  1. the writer waits, and its planner has not heard from Kafka for three intervals: what is unread is unknown;
  2. a topic-partition's unread records have come no nearer to a commit for three intervals;
  3. commits move the offsets on, and for three intervals the watermark does not.

What is no stall: a topic with nothing unread; a backlog whose committed offsets move, however far behind they are; a
batch longer than three intervals whose records, or phase, advance. Only the *first* batch over the same offsets has
that credit: one that was lost, and is read again, moves much and brings no record nearer to the table.

In 3, two commits at least must have left the watermark where it is, so that one late record in a quiet topic says
nothing. A topic-partition without records is reported although `watermark.idle-timeout` will let go of it later: who
waits downstream cannot tell the two, the timeout may be a day, and a promise with an exception is none. The sentence
says that it will. Event times that are all equal are reported as well: nothing downstream can begin before they move.
"""

from __future__ import annotations

from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import TopicPartition
from frazil.stream.stall_history import FIRST_ANSWER_MS, WORKING, History, Limits, Sample, Wait
from frazil.timetext import ago, utc

COMMITS_AT_LEAST = 2


def find_stall(history: History, sample: Sample, *, limits: Limits, stream: str) -> Stall | None:
    """The stall that the history shows at `sample`, its last; None where there is none."""
    if sample.phase not in WORKING:
        return None
    return (
        _planner_silent(history, sample, limits=limits, stream=stream)
        or _offsets_stand(history, sample, limits=limits, stream=stream)
        or _watermark_stands(history, sample, limits=limits)
    )


def _planner_silent(history: History, sample: Sample, *, limits: Limits, stream: str) -> Stall | None:
    """Spark asks the planner for nothing while a batch runs: only a writer that waits should hear from it."""
    if sample.phase is not Phase.WAITING:
        return None
    answered = sample.planned_at_ms is not None
    since_ms = max(sample.planned_at_ms or 0, sample.advanced_at_ms, history.began_at_ms)
    if sample.at_ms - since_ms < (limits.still_ms if answered else max(limits.still_ms, FIRST_ANSWER_MS)):
        return None
    most = min(sample.unread, key=lambda tp: (-sample.unread[tp], tp), default=None)
    where = f", the most of them in {_name(most)}" if most else ""
    seen = f"{sum(sample.unread.values()):,} records were unread then{where}" if answered else "it never has before"
    return Stall(
        StallKind.OFFSETS,
        since_ms,
        _name(most) if most else None,
        f"the planner has heard nothing from Kafka since {_since(since_ms, sample)}, so no batch is made and the lag "
        f"is unknown ({seen}). Look whether the brokers answer, and in writer.log for the planner's last words; "
        f"`frazil restart {stream}` starts another writer, and loses nothing",
    )


def _offsets_stand(history: History, sample: Sample, *, limits: Limits, stream: str) -> Stall | None:
    """The topic-partition that waits longest, the one with the most unread where several do."""
    tp = min(sample.unread, key=lambda tp: (history.waits[tp].nearer_at_ms, -sample.unread[tp], tp), default=None)
    if tp is None or sample.at_ms - (wait := history.waits[tp]).nearer_at_ms < limits.still_ms:
        return None
    at = "its beginning" if wait.offset is None else f"offset {wait.offset}"
    why, do = _no_commit(wait, sample, stream=stream)
    return Stall(
        StallKind.OFFSETS,
        wait.nearer_at_ms,
        _name(tp),
        f"{_name(tp)} holds the offsets back: {sample.unread[tp]:,} records from {at} on are unread "
        f"({sum(sample.unread.values()):,} in all), and have come no nearer to a commit since "
        f"{_since(wait.nearer_at_ms, sample)}: {why}. {do}",
    )


def _no_commit(wait: Wait, sample: Sample, *, stream: str) -> tuple[str, str]:
    """Why unread records are not committed, as far as the writer knows, and what to do about it."""
    anew = f"`frazil restart {stream}` begins anew where the table stands, and loses nothing"
    if sample.batch is not None and sample.batch != wait.tried:
        why = f"batch {sample.batch} reads again what batch {wait.tried} read and did not commit"
        return why, "Look in writer.log for what became of that commit"
    if sample.batch is not None:
        why = f"batch {sample.batch} is {sample.phase}, has read {sample.batch_records:,} records and goes no further"
        parts = "brokers and executors" if sample.phase is Phase.STAGING else "catalog and storage"
        return why, f"Look whether {parts} answer; {anew}"
    if wait.tried is not None:
        return f"batch {wait.tried} ended without them, and no other is made", f"Look in writer.log for why; {anew}"
    return "the planner sees them, and no batch is made of them", f"Look in writer.log for the planner's words; {anew}"


def _watermark_stands(history: History, sample: Sample, *, limits: Limits) -> Stall | None:
    """The topic-partition with the lowest newest event time, or with none, among those that are not idle."""
    since_ms, times = history.watermark_since_ms, sample.max_event_times_us
    if sample.at_ms - since_ms < limits.still_ms or history.advances < COMMITS_AT_LEAST:
        return None
    active = [tp for tp in sample.offsets if tp not in sample.idle]
    tp = min(active, key=lambda tp: (tp in times, times.get(tp, 0), tp), default=None)
    if tp is None:
        return None
    equal = sum(times.get(other) == times.get(tp) for other in active) - 1
    others = f", as {equal} more do" if equal else ""
    at = "is unknown" if sample.watermark_us is None else f"stands at {utc(sample.watermark_us // 1000)}"
    why, do = _no_event_time(tp, history, sample, limits=limits)
    return Stall(
        StallKind.WATERMARK,
        since_ms,
        _name(tp),
        f"{_name(tp)} holds the watermark back{others}: commits move the offsets on, and the watermark {at} since "
        f"{_since(since_ms, sample)}: {why}. {do}",
    )


def _no_event_time(tp: TopicPartition, history: History, sample: Sample, *, limits: Limits) -> tuple[str, str]:
    """Why a topic-partition brings no newer event time, and what to do about it."""
    time_us = sample.max_event_times_us.get(tp)
    newest = "no event time is known there" if time_us is None else f"the newest event time there is {_event(time_us)}"
    if waiting := sample.in_transactions.get(tp):
        do = "Look for the producer whose transaction stays open (`kafka-transactions.sh find-hanging`)"
        return f"{waiting:,} offsets there wait for a transaction to end, and {newest}", do
    if history.moved_at_ms.get(tp, 0) > history.watermark_since_ms:
        do = "Look at the event times that its producers set, and at the dead letters, which have none"
        return f"its records arrive, and {newest}", do
    idle = f"with nothing unread for watermark.idle-timeout ({ago(limits.idle_timeout_ms)}) it holds nothing back"
    return f"no records arrive, and {newest}", f"Look at what produces to it; {idle}: shorten that to wait for less"


def _event(time_us: int) -> str:
    return utc(time_us // 1000)


def _since(since_ms: int, sample: Sample) -> str:
    return f"{utc(since_ms)} ({ago(sample.at_ms - since_ms)})"


def _name(tp: TopicPartition) -> str:
    return f"{tp[0]}-{tp[1]}"
