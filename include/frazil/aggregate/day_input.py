"""Chooses the source snapshot of a day's aggregation, records it in the target, and finds missing days. No Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.metadata import TableMetadata

from frazil.aggregate.spec import AggregationSpec, parse_day
from frazil.commit.history import ancestors, ancestors_and_older_snapshots
from frazil.errors import SpecError
from frazil.partitions.windows import Grain, Window
from frazil.signals.signal_table import Signal, TableSignals, load_newest_signals
from frazil.table.branches import snapshot_summary
from frazil.table.catalogs import translate_catalog_errors

log = logging.getLogger(__name__)

NO_REVISIONS = "none"
"""Value of `revisions` for a day with a window that is unsignalled or held by a gate."""


@dataclass(frozen=True, slots=True)
class DayInput:
    """Input of one aggregation run: the source at one snapshot, with the revisions of the day's windows."""

    snapshot_id: int
    sequence_number: int
    revisions: str
    """`1` if all windows have revision 1, JSON of the other windows (`{"2013-12-30T15":2}`), or NO_REVISIONS."""


def load_day_signals(catalog: Catalog, spec: AggregationSpec, day: date) -> tuple[Signal, ...]:
    window = Window.parse(str(day))
    with translate_catalog_errors(catalog.name):
        return load_newest_signals(catalog, spec.source, from_us=window.start_us, to_us=window.end_us)


def is_complete(day: date, signals: Sequence[Signal]) -> bool:
    """Return whether signalled windows cover the whole day, and no gate holds one of them."""
    window = Window.parse(str(day))
    reached_us = window.start_us
    for signal in sorted(signals, key=lambda s: s.start_us):
        if signal.start_us > reached_us or not signal.sent:
            return False
        reached_us = max(reached_us, signal.end_us)
    return reached_us >= window.end_us


def held_windows(signals: Sequence[Signal]) -> list[str]:
    return [signal.partition for signal in signals if not signal.sent]


def choose_input(catalog: Catalog, spec: AggregationSpec, day: date, signals: Sequence[Signal]) -> DayInput:
    """Return a new run's input: the newest snapshot that a complete day's signals name, else the current one."""
    branch = _source_snapshots(catalog, spec.source)
    current = next(iter(branch))
    if not is_complete(day, signals):
        chosen, revisions, reason = (
            current,
            NO_REVISIONS,
            "the current snapshot, because not every window was signalled",
        )
    else:
        newest = max(signals, key=lambda s: s.sequence_number).snapshot_id
        chosen, revisions, reason = newest, encode_revisions(signals), "the snapshot that the day's signals name"
        if newest not in branch:
            chosen = current
            reason = f"the current snapshot, because the signals' snapshot {newest} has expired or was rolled back"
    log.info("reading %s of %s at snapshot %d: %s", day, spec.source, chosen, reason)
    return DayInput(chosen, branch[chosen], revisions)


def reuse_input(catalog: Catalog, spec: AggregationSpec, day: date, *, snapshot_id: int, revisions: str) -> DayInput:
    """Return the input that an earlier task chose. If its snapshot is gone, choose another snapshot for the same
    revisions. Raises SpecError in this case if the day's signals have changed, or if a quality gate holds one of its
    windows.
    """
    branch = _source_snapshots(catalog, spec.source)
    if snapshot_id in branch:
        return DayInput(snapshot_id, branch[snapshot_id], revisions)
    log.warning("%s no longer has snapshot %d: it has expired or was rolled back", spec.source, snapshot_id)
    signals = load_day_signals(catalog, spec, day)
    chosen = choose_input(catalog, spec, day, signals)
    if chosen.revisions != revisions or held_windows(signals):
        raise SpecError(
            f"{spec.source} no longer has snapshot {snapshot_id}: it has expired or was rolled back. Since the run "
            f"chose it, the signals of {day} have changed, or a gate holds one of the day's windows. To choose another "
            "snapshot, clear the run's first task, or omit --snapshot-id"
        )
    return chosen


def encode_revisions(signals: Sequence[Signal]) -> str:
    revised = {signal.partition: signal.revision for signal in signals if signal.revision != 1}
    return json.dumps(revised, separators=(",", ":")) if revised else "1"


def input_summary(spec: AggregationSpec, day: date, day_input: DayInput) -> dict[str, str]:
    return {
        "frazil.aggregation": spec.name,
        "frazil.day": str(day),
        "frazil.input-table": spec.source,
        "frazil.input-snapshot-id": str(day_input.snapshot_id),
        "frazil.input-sequence-number": str(day_input.sequence_number),
        "frazil.input-revisions": day_input.revisions,
    }


def find_newer_input(
    spec: AggregationSpec, day: date, day_input: DayInput, *, target: TableMetadata, source: TableMetadata
) -> Mapping[str, str] | None:
    """Return the input of the target's newest run for the day, if it is newer and in the source's history."""
    keys = input_summary(spec, day, day_input)
    for snapshot in ancestors(target):
        last = {key: str(snapshot.summary[key] or "") for key in keys} if snapshot.summary else {}
        if (last.get("frazil.aggregation"), last.get("frazil.day")) == (spec.name, str(day)):
            number = int(last["frazil.input-sequence-number"])
            is_newer = number > day_input.sequence_number
            return last if is_newer and is_in_history(source, int(last["frazil.input-snapshot-id"]), number) else None
    return None


def _source_snapshots(catalog: Catalog, source: str) -> dict[int, int]:
    """Return the sequence numbers of the source's snapshots by snapshot id, the current snapshot first."""
    with translate_catalog_errors(catalog.name):
        try:
            metadata = catalog.load_table(source).metadata
        except NoSuchTableError:
            text = f"table {source} does not exist yet: the first start of its stream's writer creates it"
            raise SpecError(text) from None
    branch = _sequence_numbers(metadata)
    if not branch:
        raise SpecError(f"table {source} has no snapshot yet: no rows were ever written to it")
    return branch


def _sequence_numbers(metadata: TableMetadata) -> dict[int, int]:
    """Map snapshot ids to sequence numbers: of main's history, and of snapshots that are kept for signals."""
    return {s.snapshot_id: s.sequence_number or 0 for s in ancestors_and_older_snapshots(metadata)}


def is_in_history(source: TableMetadata, snapshot_id: int, sequence_number: int) -> bool:
    """Return whether a snapshot belongs to the source's current history. An expired snapshot does, unless it is newer
    than all others.
    """
    if any(s.snapshot_id == snapshot_id for s in source.snapshots):
        return snapshot_id in _sequence_numbers(source)
    return sequence_number <= max((s.sequence_number or 0 for s in source.snapshots), default=0)


MAX_DAYS = 35
"""Maximum number of days that are checked, back from the newest complete window."""


@dataclass(frozen=True, slots=True)
class WaitingDay:
    """A complete day whose newest revisions are not aggregated yet. `since_ms` is the time of its newest signal."""

    day: date
    revisions: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class AggregatedDays:
    days: Mapping[date, tuple[str, int]]
    """The input of each day's newest run: the revisions, and the source's sequence number."""
    oldest_ms: int = 0
    """Time of the oldest known snapshot of the target; 0 if the history is complete."""


def find_waiting_days(catalog: Catalog, spec: AggregationSpec, *, first: date) -> tuple[WaitingDay, ...]:
    """Return the waiting days, beginning with `first`, in order. Raises the catalog's errors."""
    with translate_catalog_errors(catalog.name):
        signals = TableSignals.load(catalog, spec.source)
        cursor = signals.cursor
        if cursor is None:
            return ()
        first_us = Window.parse(str(first)).start_us
        from_us = max(cursor.from_us, cursor.through_us - MAX_DAYS * Grain.DAY.us, first_us)
        newest = signals.newest(from_us=Grain.DAY.floor(from_us), to_us=cursor.through_us)
        return select_waiting_days(list(newest.values()), _load_aggregated_days(catalog, spec))


def find_open_day(catalog: Catalog, spec: AggregationSpec) -> date | None:
    """Return the first incomplete day, or the target's first day if that is earlier; None before the first signal."""
    with translate_catalog_errors(catalog.name):
        cursor = TableSignals.load(catalog, spec.source).cursor
        days = _load_aggregated_days(catalog, spec).days
    if cursor is None:
        return None
    return min([parse_day(Window.containing(cursor.through_us, Grain.DAY).key), *days])


def is_aggregated(catalog: Catalog, spec: AggregationSpec, day: date, signals: Sequence[Signal]) -> bool:
    """Return whether the target has the day, with these signals or from newer input."""
    with translate_catalog_errors(catalog.name):
        aggregated = _load_aggregated_days(catalog, spec)
    return day in aggregated.days and not select_waiting_days(signals, aggregated)


def _load_aggregated_days(catalog: Catalog, spec: AggregationSpec) -> AggregatedDays:
    try:
        source = catalog.load_table(spec.source).metadata
        return find_aggregated_days(catalog.load_table(spec.target).metadata, spec.name, source=source)
    except NoSuchTableError:
        return AggregatedDays({})


def select_waiting_days(signals: Sequence[Signal], aggregated: AggregatedDays) -> tuple[WaitingDay, ...]:
    by_day: dict[date, list[Signal]] = {}
    for signal in signals:
        by_day.setdefault(parse_day(Window.containing(signal.start_us, Grain.DAY).key), []).append(signal)
    complete = {
        WaitingDay(day, encode_revisions(of_day), max(s.signalled_at_ms for s in of_day)): of_day
        for day, of_day in sorted(by_day.items())
        if is_complete(day, of_day)
    }
    return tuple(waiting for waiting, of_day in complete.items() if not _is_up_to_date(waiting, of_day, aggregated))


def _is_up_to_date(waiting: WaitingDay, signals: Sequence[Signal], done: AggregatedDays) -> bool:
    if (aggregated := done.days.get(waiting.day)) is None:
        return waiting.since_ms < done.oldest_ms
    revisions, sequence_number = aggregated
    return revisions == waiting.revisions or sequence_number >= max(s.sequence_number for s in signals)


def find_aggregated_days(target: TableMetadata, name: str, *, source: TableMetadata) -> AggregatedDays:
    """Return the days that an aggregation wrote, except days whose input is not in the source's history."""
    days: dict[date, tuple[str, int]] = {}
    oldest_ms = 0
    for snapshot in ancestors(target):
        summary = snapshot_summary(snapshot)
        oldest_ms = snapshot.timestamp_ms if snapshot.parent_snapshot_id is not None else 0
        if summary.get("frazil.aggregation") == name and "frazil.day" in summary:
            day = date.fromisoformat(summary["frazil.day"])
            number = int(summary.get("frazil.input-sequence-number", 0))
            # Walking the source's history is expensive, so it is done once per day.
            if day not in days and is_in_history(source, int(summary.get("frazil.input-snapshot-id", -1)), number):
                days[day] = (summary.get("frazil.input-revisions", ""), number)
    return AggregatedDays(days, oldest_ms)


def select_overdue_days(waiting: Sequence[WaitingDay], *, within: timedelta, now_ms: int) -> tuple[WaitingDay, ...]:
    return tuple(w for w in waiting if now_ms - w.since_ms > within // timedelta(milliseconds=1))
