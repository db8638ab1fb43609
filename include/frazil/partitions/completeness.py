"""Computes watermarks, and decides which windows of a table are complete, reopened, or hidden. Pure.

A stream's lateness is added to a window's end. A window is complete when the watermark of every stream that feeds the
table has reached this time. While one of these watermarks is unknown, no window completes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from frazil.offsets.spans import TopicPartition
from frazil.partitions.windows import EPOCH, Grain, Window, windows_between
from frazil.spec.model import StreamSpec

MAX_WINDOWS = 500
"""Maximum number of windows in one decision. The next decision covers later windows."""


@dataclass(frozen=True, slots=True)
class Feed:
    stream: str
    watermark_us: int | None
    lateness_us: int = 0
    delaying_partition: TopicPartition | None = None
    """The topic-partition that holds the watermark back; None if all are idle."""
    waiting_us: int | None = None
    """Oldest event time of rows that are still hidden (`commit.align`)."""
    problem: str | None = None

    @property
    def complete_until_us(self) -> int | None:
        """Windows that end by this time are complete for this stream; None if its watermark is unknown."""
        if self.watermark_us is None:
            return None
        bound = self.watermark_us - self.lateness_us
        return bound if self.waiting_us is None else min(bound, self.waiting_us)

    def waits_for(self, window: Window | None = None) -> str:
        """Return a clause that says what must happen before `window`, or any window without it, is complete."""
        if self.problem:
            return f"the watermark of {self.stream} cannot be used: {self.problem}"
        topic, partition = self.delaying_partition or ("", 0)
        where = f"stream {self.stream}" + (f" in partition {topic}-{partition}" if topic else "")
        if self.watermark_us is None or window is None:
            return f"the watermark of {where} is unknown: no event has arrived"
        if self.waiting_us is not None and self.waiting_us < window.end_us <= self.watermark_us - self.lateness_us:
            return f"rows of {self.stream} since {_format_seconds(self.waiting_us)} wait on a branch"
        until, newest = format_time(window.end_us + self.lateness_us), _format_seconds(self.watermark_us)
        return (
            f"events from {until} or later must arrive; the newest event of {where} is from {newest}; events dated in "
            "the future do not count"
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """State of a table's window decisions: each window that begins in `[from, through)` has a signal."""

    grain: Grain
    from_us: int
    through_us: int
    sequence_number: int
    """Sequence number of the last commit whose late rows and dead letters are counted."""
    held: frozenset[int] = frozenset()
    """Starts of windows with a failed quality gate, unless an operator released the window."""
    table_uuid: str | None = None
    """The UUID of the table for which windows were decided, if known."""


@dataclass(frozen=True, slots=True)
class WindowDecision:
    """The windows to signal: `complete` for the first time, and `again` because late rows reopened them."""

    complete: tuple[Window, ...]
    again: Mapping[Window, int]
    """Windows that were signalled before, with the number of late rows since their signal."""
    from_us: int | None
    """Start of the new cursor's range; `through_us` is its end. Both are None if no watermark is known."""
    through_us: int | None
    reason: str

    @property
    def windows(self) -> tuple[Window, ...]:
        return (*sorted(self.again), *self.complete)


def decide_windows(  # noqa: PLR0913 - the observation and the declaration
    feeds: tuple[Feed, ...],
    cursor: Cursor | None,
    late: Mapping[int, int],
    *,
    grain: Grain,
    complete_from_us: int | None = None,
    limit: int = MAX_WINDOWS,
) -> WindowDecision:
    """Decide which windows completed since the cursor, and which windows late rows reopened.

    `late` has the number of rows added after the cursor's commit, by window start. Without a cursor, signals begin with
    the window of `complete_from_us`, or else with the current window. After a change of grain, signals continue after
    the old cursor's windows.
    """
    bound = complete_until_us(feeds)
    if bound is None:
        unknown = next((feed.waits_for() for feed in feeds if feed.watermark_us is None), None)
        return WindowDecision((), {}, None, None, f"nothing is complete: {unknown or 'no stream feeds the table yet'}")
    if cursor is None:
        first = grain.floor(bound if complete_from_us is None else complete_from_us)
    else:  # rounded up after a change of grain: part of a larger window was signalled in the old grain
        first = cursor.from_us if cursor.grain is grain else -(-cursor.through_us // grain.us) * grain.us
    begin = cursor.through_us if cursor and cursor.grain is grain else first
    complete = tuple(windows_between(grain, begin, min(bound, begin + limit * grain.us)))
    through = complete[-1].end_us if complete else begin
    again = {Window.containing(start, grain): rows for start, rows in late.items() if first <= start < begin and rows}
    following = Window.containing(through, grain)
    reason = f"{following} is not complete: {waiting_text(feeds, following)}"
    return WindowDecision(complete, again, first, through, reason)


def complete_until_us(feeds: tuple[Feed, ...]) -> int | None:
    """Return the time up to which windows are complete; None while a stream's watermark is unknown."""
    ends = [feed.complete_until_us for feed in feeds]
    known_ends = [end for end in ends if end is not None]
    return min(known_ends) if known_ends and len(known_ends) == len(ends) else None


def feeds_behind(feeds: tuple[Feed, ...], window: Window) -> tuple[Feed, ...]:
    return tuple(f for f in feeds if f.complete_until_us is None or f.complete_until_us < window.end_us)


def never_signalled_text(window: Window, cursor: Cursor | None) -> str | None:
    """Return why a window will never get a signal, as the end of a sentence; None if it may get one."""
    if cursor is None or window.start_us >= cursor.from_us:
        return None
    return f"it is never signalled, because signals begin with {Window.containing(cursor.from_us, cursor.grain)}"


def waiting_text(feeds: tuple[Feed, ...], window: Window) -> str:
    """Return why a window has no signal yet, as the end of a sentence."""
    waiting = "; ".join(feed.waits_for(window) for feed in feeds_behind(feeds, window))
    return waiting or "it is complete, and the next run of the table's partition DAG signals it"


def format_time(us: int) -> str:
    """Format microseconds since 1970 as ISO 8601."""
    return (EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")


def _format_seconds(us: int) -> str:
    return format_time(us - us % 1_000_000)


def watermark_us(
    max_event_times_us: Mapping[TopicPartition, int],
    *,
    partitions: Collection[TopicPartition],
    idle: Collection[TopicPartition],
    previous_us: int | None,
) -> int | None:
    """Return the stream's watermark: the minimum of its topic-partitions' newest event times; None while unknown.

    Skips idle topic-partitions. While an active topic-partition has no record yet, the watermark does not change. If
    all are idle, returns the newest event time. Never decreases.
    """
    active = [tp for tp in partitions if tp not in idle]
    if any(tp not in max_event_times_us for tp in active):
        return previous_us
    times = [max_event_times_us[tp] for tp in active or partitions if tp in max_event_times_us]
    candidate = min(times) if active else max(times, default=None)
    return max((us for us in (candidate, previous_us) if us is not None), default=None)


def slowest_partition(
    max_event_times_us: Mapping[TopicPartition, int],
    *,
    partitions: Collection[TopicPartition],
    idle: Collection[TopicPartition],
) -> TopicPartition | None:
    """Return a partition that has had no record, else the one that is furthest behind. None if all are idle."""
    active = sorted(tp for tp in partitions if tp not in idle)
    return min(active, key=lambda tp: (tp in max_event_times_us, max_event_times_us.get(tp, 0)), default=None)


MAX_AHEAD_US = timedelta(days=1) // timedelta(microseconds=1)
"""Event times that are further (in us) past the newest trusted one count as wrong: their rows are not hidden."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Settings of a stream that hides rows until their window is complete (`commit.align`)."""

    column: str
    grain: Grain
    lateness_us: int = 0

    @classmethod
    def from_spec(cls, spec: StreamSpec) -> Alignment | None:
        if spec.commit.align == "none" or spec.window is None:
            return None
        lateness_us = spec.lateness // timedelta(microseconds=1)
        return cls(spec.event_time.column, Grain(spec.window), lateness_us)

    def waits(self, start_us: int, length_us: int, *, watermark_us: int | None, newest_us: int | None) -> bool:
        """Return whether rows in `[start, start + length)` stay hidden; True while both times are unknown."""
        end_us = max(self.grain.floor(start_us) + self.grain.us, start_us + length_us)
        if watermark_us is not None and end_us <= watermark_us - self.lateness_us:
            return False
        times = [us for us in (watermark_us, newest_us) if us is not None]
        return not times or start_us <= max(times) + MAX_AHEAD_US
