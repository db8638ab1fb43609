"""Counts a stream's rejected records for the page, and how many are left after replays and discards. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.dead_letter_counts import (
    ACCEPTED_KEY,
    HOUR_MS,
    REASONS_KEY,
    UNCHANGED_COUNTS,
    CountChanges,
    Counts,
    Reason,
    Reasons,
    parse_dead_letter_summary,
    parse_reasons,
    span_start,
    sum_by_span,
)
from frazil.commit.history import ancestors, merge_counts, rejecting_commits
from frazil.history.points import EventKind, HistoryEvent
from frazil.spec.units import format_count
from frazil.status.recent_commits import DAY_MS, counted_since
from frazil.table.branches import snapshot_summary

USUAL_COMMIT_DELAY_MS = 600_000


@dataclass(frozen=True, slots=True)
class RejectedRecords:
    """Records of one error class that were rejected in the last day."""

    reason: str
    count: int
    coordinates: tuple[str, ...]
    """Coordinates of examples rejected after the last replay or discard of this error class."""
    remaining: int


@dataclass(frozen=True, slots=True)
class Treatment:
    at_ms: int
    sentence: str
    changes: CountChanges

    @property
    def event(self) -> HistoryEvent:
        return HistoryEvent(self.at_ms, EventKind.DEAD_LETTERS, self.sentence)


def find_treatments(
    dead_letters: TableMetadata | None, main: TableMetadata, stream: str, *, since_ms: int
) -> list[Treatment]:
    treatments: list[Treatment] = []
    landed = {summary["frazil.backfill"]: summary for summary in published_summaries(main, stream, since_ms=since_ms)}
    for snapshot in _recent_snapshots(dead_letters, since_ms) if dead_letters else ():
        summary = snapshot_summary(snapshot)
        if summary.get("frazil.operation") == "replay" and summary.get("frazil.backfill-stream") == stream:
            sentence = _replay_message(landed.get(summary.get("frazil.backfill", "")))
        elif summary.get("frazil.dead-letters-of") == stream:
            by, reason = summary.get("frazil.discarded-by", "an unknown user"), summary.get("frazil.reason", "")
            sentence = f"dead letters were discarded by {by}: {reason}"
        else:
            continue
        treatments.append(Treatment(snapshot.timestamp_ms, sentence, parse_dead_letter_summary(summary)))
    return treatments[::-1]


def published_summaries(main: TableMetadata, stream: str, *, since_ms: int) -> list[Mapping[str, str]]:
    summaries = map(snapshot_summary, _recent_snapshots(main, since_ms))
    return [s for s in summaries if s.get("frazil.backfill-stream") == stream and "frazil.backfill" in s]


def _recent_snapshots(metadata: TableMetadata, since_ms: int) -> Iterator[Snapshot]:
    return takewhile(lambda snapshot: snapshot.timestamp_ms >= since_ms, ancestors(metadata))


def _replay_message(summary: Mapping[str, str] | None) -> str:
    landed, failed = ((summary or {}).get(f"frazil.{name}", "") for name in ("records", "rejected"))
    if not (landed.isdecimal() and failed.isdecimal()):
        return "dead letters were replayed"
    repeated = merge_counts(summary).get("repeated", 0)
    dropped_text = f" {repeated:,} repeated a row and {'was' if repeated == 1 else 'were'} dropped," if repeated else ""
    rows = format_count(int(landed) - repeated, "record")
    return f"dead letters were replayed: {rows} landed,{dropped_text} {int(failed):,} failed again"


def count_rejected(
    main: TableMetadata, stream: str, treatments: Sequence[Treatment], *, now_ms: int
) -> list[RejectedRecords]:
    """Count the last day's rejected records, and those that are still dead letters, by error class, highest first.

    The count begins later if older snapshots have expired or the stream was reset. Replays and discards record their
    changes only per span of several hours. A span may begin before the count, so the number of remaining dead letters
    is approximate.
    """
    day_ms = now_ms - DAY_MS
    begin_ms = counted_since([*ancestors(main)], stream, since_ms=day_ms)[0] or day_ms
    since = [treatment for treatment in treatments if treatment.at_ms >= begin_ms]
    span = max((treatment.changes.span for treatment in since), default=UNCHANGED_COUNTS.span)
    first, last = (span_start(ms // HOUR_MS, span) for ms in (begin_ms - USUAL_COMMIT_DELAY_MS, begin_ms))
    reasons: dict[str, Reason] = {}
    remaining, of_first = Counter[str](), Counter[str]()
    for at_ms, by_class, changes in _list_changes(main, stream, since, begin_ms=begin_ms):
        for name, summary in by_class.items():
            reasons[name] = reasons.get(name, Reason(0)) + summary
            remaining[name] += summary.count
            of_first[name] += summary.count if at_ms < (last + span) * HOUR_MS + USUAL_COMMIT_DELAY_MS else 0
        changes_by_class = _sum_counted_changes(range(first, last + 1), of_first, sum_by_span(changes.by, span))
        for name, change in changes_by_class.items():
            remaining[name] = max(remaining[name] + change, 0)
            if change > 0:
                reasons.setdefault(name, Reason(0))
            elif reason := reasons.get(name):
                reasons[name] = Reason(reason.count)
    rejected = [RejectedRecords(name, r.count, r.coordinates, remaining[name]) for name, r in reasons.items()]
    return sorted(rejected, key=lambda records: (-records.count, records.reason))


def _list_changes(
    main: TableMetadata, stream: str, treatments: Iterable[Treatment], *, begin_ms: int
) -> Iterator[tuple[int, Reasons, CountChanges]]:
    changes: list[tuple[int, Reasons, CountChanges]] = [
        (commit.timestamp_ms, parse_reasons(snapshot_summary(commit), key), UNCHANGED_COUNTS)
        for commit in rejecting_commits(_recent_snapshots(main, begin_ms), stream)
        for key in (REASONS_KEY, ACCEPTED_KEY)
    ]
    changes += [(treatment.at_ms, {}, treatment.changes) for treatment in treatments]
    return iter(sorted(changes, key=lambda change: change[0]))


def _sum_counted_changes(first: range, of_first: Counter[str], counts: Counts) -> Counter[str]:
    """Sum each class's changes. In the hours `first`, a class cannot decrease by more than its count in `of_first`."""
    sums = Counter[str]()
    for (name, hour), change in counts.items():
        if hour in first:
            meant = max(change, -of_first[name])
            of_first[name] += meant
        else:
            meant = change if hour >= first.stop else 0
        sums[name] += meant
    return sums


def merge_treatments(events: Iterable[HistoryEvent], treatments: Iterable[Treatment]) -> tuple[HistoryEvent, ...]:
    return tuple(sorted((*events, *(treatment.event for treatment in treatments)), key=lambda event: event.at_ms))
