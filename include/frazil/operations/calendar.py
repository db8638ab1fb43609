"""Builds the page's calendar of a table's windows, from signals and partition files. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from frazil.maintenance.health import PartitionFiles
from frazil.partitions.completeness import Feed, feeds_behind
from frazil.partitions.windows import Grain, Window, windows_between
from frazil.signals.signal_table import Signal, SignalState

SHOWN_PERIODS = {Grain.HOUR: timedelta(days=14), Grain.DAY: timedelta(weeks=26)}


@dataclass(frozen=True, slots=True)
class DelayReason:
    """Why the next window is not complete. `kind` is time, topic-partition, stream or gate."""

    kind: str
    name: str
    reason: str = ""


def find_complete_end_us(bound_us: int | None, held_us: Collection[int], grain: Grain) -> int | None:
    """Return the start of the first window that is open or held; None without `bound_us`."""
    return None if bound_us is None else min([grain.floor(bound_us), *held_us])


def find_delay_reasons(
    feeds: Iterable[Feed], following: Window | None, held_keys: Iterable[str], *, now_us: int
) -> tuple[DelayReason, ...]:
    feeds, gates = tuple(feeds), tuple(DelayReason("gate", key) for key in held_keys)
    if following is not None and following.end_us > now_us:
        return (DelayReason("time", f"the {following.grain} is not over"), *gates)
    waiting = feeds_behind(feeds, following) if following else tuple(f for f in feeds if f.watermark_us is None)
    return (*map(_delay_reason, waiting), *gates)


def _delay_reason(feed: Feed) -> DelayReason:
    if feed.problem:
        return DelayReason("stream", feed.stream, "cannot be read")
    if feed.waiting_us is not None and feed.complete_until_us == feed.waiting_us:
        return DelayReason("stream", feed.stream, "has rows on a branch")
    if feed.delaying_partition is not None:
        topic, partition = feed.delaying_partition
        return DelayReason("topic-partition", f"{topic}-{partition}")
    return DelayReason("stream", feed.stream, "has not started" if feed.watermark_us is None else "is idle")


@dataclass(frozen=True, slots=True)
class Cell:
    """`state` is complete, reopened, held, released, open or history. Without signals, it is written or empty."""

    key: str
    state: str
    rows: int | None = None
    late_rows: int = 0
    note: str | None = None
    files: int | None = None
    """Number of files in the window's partition. The partition may be longer than the window."""
    compacted: bool = False
    backfilled: bool = False


@dataclass(frozen=True, slots=True)
class Calendar:
    grain: str
    cells: tuple[Cell, ...]
    waits_for: str | None
    """Why the next window is not complete; None without signals."""


def build_calendar(
    grain: Grain, signals: Mapping[Window, Signal], *, through_us: int, now_us: int, waits_for: str
) -> Calendar:
    until_us = max(through_us, min(grain.floor(now_us) + grain.us, through_us + 48 * grain.us))
    from_us = until_us - SHOWN_PERIODS[grain] // timedelta(microseconds=1)
    first_us = min((window.start_us for window in signals), default=through_us)
    begin_us = max(from_us, min(first_us, through_us))
    windows = windows_between(grain, begin_us, until_us)
    cells = [_signal_cell(window, signals.get(window), through_us) for window in windows]
    return Calendar(grain, tuple(cells), waits_for)


def _signal_cell(window: Window, signal: Signal | None, through_us: int) -> Cell:
    if signal is None:
        # A window before the cursor without a signal is history: it was never signalled.
        return Cell(window.key, "open" if window.start_us >= through_us else "history")
    default_state = "reopened" if signal.revision > 1 else "complete"
    state = {SignalState.HELD: "held", SignalState.RELEASED: "released"}.get(signal.state, default_state)
    return Cell(window.key, state, signal.rows, signal.late_rows, signal.note)


def build_partition_calendar(
    partitions: Iterable[PartitionFiles], staged: Iterable[PartitionFiles], *, now_us: int
) -> Calendar | None:
    """Return a calendar of hourly or daily partitions; None without any. Windows of `staged` ones are backfilled."""
    files, waiting = _group_by_window(partitions, now_us), _group_by_window(staged, now_us)
    windows = {*files, *waiting}
    if not windows:
        return None
    grain = min((window.grain for window in windows), key=lambda grain: grain.us)
    alike = [window for window in windows if window.grain is grain]
    first, last = min(alike), max(alike)
    begin_us = max(first.start_us, last.end_us - SHOWN_PERIODS[grain] // timedelta(microseconds=1))
    cells = [_partition_cell(w, files.get(w, ()), now_us=now_us) for w in windows_between(grain, begin_us, last.end_us)]
    staged_keys = {window.key for window in waiting}
    return Calendar(grain, tuple(replace(cell, backfilled=cell.key in staged_keys) for cell in cells), None)


def _group_by_window(partitions: Iterable[PartitionFiles], now_us: int) -> dict[Window, list[PartitionFiles]]:
    """Group partitions by window. Skips partitions in the future, which come from wrong clocks."""
    by_window: dict[Window, list[PartitionFiles]] = {}
    for partition in partitions:
        window = _window_of(partition)
        if window is not None and window.start_us <= now_us:
            by_window.setdefault(window, []).append(partition)
    return by_window


def _window_of(partition: PartitionFiles) -> Window | None:
    begin_us, end_us = partition.window_begin_us, partition.window_end_us
    if begin_us is None or end_us is None:
        return None
    return next((Window(begin_us, grain) for grain in Grain if end_us - begin_us == grain.us), None)


def _partition_cell(window: Window, partitions: Sequence[PartitionFiles], *, now_us: int) -> Cell:
    files, is_over = sum(partition.files for partition in partitions), window.end_us <= now_us
    compacted = (
        files > 0
        and is_over
        and all(partition.small_files < 2 and not partition.delete_files for partition in partitions)
    )
    return Cell(window.key, "written" if files else "empty", files=files, compacted=compacted)


def merge_calendars(signalled: Calendar | None, partitions: Calendar | None) -> Calendar | None:
    """Return the signalled windows, with the files of their partitions. If one calendar is None, return the other."""
    if signalled is None or partitions is None:
        return signalled or partitions
    by_key = {cell.key: cell for cell in partitions.cells}

    def with_files(cell: Cell) -> Cell:
        # An hourly window may belong to the partition of a day.
        partition = by_key.get(cell.key) or by_key.get(cell.key[: len(next(iter(by_key)))])
        if partition is None:
            return cell
        compacted = partition.compacted and cell.state != "open"
        return replace(cell, files=partition.files, compacted=compacted, backfilled=partition.backfilled)

    return replace(signalled, cells=tuple(map(with_files, signalled.cells)))
