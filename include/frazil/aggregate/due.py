"""Finds complete days that an aggregation has not written. Reads signals and target metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.metadata import TableMetadata

from frazil.aggregate.day_input import encode_revisions, is_complete, is_in_history
from frazil.aggregate.spec import AggregationSpec, parse_day
from frazil.commit.history import ancestors
from frazil.partitions.windows import Grain, Window
from frazil.signals.signal import Signal
from frazil.signals.signal_table import TableSignals
from frazil.table.catalogs import translate_catalog_errors

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
    """The days that an aggregation has written, according to the target's history."""

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
        done = _load_aggregated_days(catalog, spec)
    return day in done.days and not select_waiting_days(signals, done)


def _load_aggregated_days(catalog: Catalog, spec: AggregationSpec) -> AggregatedDays:
    try:
        source = catalog.load_table(spec.source).metadata
        return find_aggregated_days(catalog.load_table(spec.target).metadata, spec.name, source=source)
    except NoSuchTableError:
        return AggregatedDays({})


def select_waiting_days(signals: Sequence[Signal], done: AggregatedDays) -> tuple[WaitingDay, ...]:
    """Return the complete days whose newest revisions are not in the target."""
    by_day: dict[date, list[Signal]] = {}
    for signal in signals:
        by_day.setdefault(parse_day(Window.containing(signal.start_us, Grain.DAY).key), []).append(signal)
    complete = {
        WaitingDay(day, encode_revisions(of_day), max(s.signalled_at_ms for s in of_day)): of_day
        for day, of_day in sorted(by_day.items())
        if is_complete(day, of_day)
    }
    return tuple(waiting for waiting, of_day in complete.items() if not _is_up_to_date(waiting, of_day, done))


def _is_up_to_date(waiting: WaitingDay, signals: Sequence[Signal], done: AggregatedDays) -> bool:
    if (aggregated := done.days.get(waiting.day)) is None:
        return waiting.since_ms < done.oldest_ms
    revisions, sequence_number = aggregated
    return revisions == waiting.revisions or sequence_number >= max(s.sequence_number for s in signals)


def find_aggregated_days(target: TableMetadata, name: str, *, source: TableMetadata) -> AggregatedDays:
    """Return the days that an aggregation wrote, from the target's snapshots.

    Omits days whose input is not in the source's history.
    """
    days: dict[date, tuple[str, int]] = {}
    oldest_ms = 0
    for snapshot in ancestors(target):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
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
