"""What a stream's newest commits brought, from the summaries of snapshots alone: rates, and what was rejected. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import takewhile

from pyiceberg.table.metadata import TableMetadata

from frazil.commit.history import ancestors, commit_records
from frazil.commit.reasons import Reason, Reasons, reasons_in
from frazil.spec.model import StreamSpec

HOUR_MS = timedelta(hours=1) // timedelta(milliseconds=1)
DAY_MS = 24 * HOUR_MS
BUCKETS = 30
"""An hour in so many pieces, two minutes each."""
RATE_OVER_MS = HOUR_MS // 6
RECENT_MS = HOUR_MS // 12
"""Rates of alerts are means over this time, or over a commit interval that is longer: minutes without a commit have
none."""
INTERVALS = 3
"""A rate is taken over at least so many of the longest commit intervals."""


@dataclass(frozen=True, slots=True)
class Brought:
    """One commit of the stream."""

    at_ms: int
    records: int
    rejected: int


@dataclass(slots=True)
class Landed:
    """What a stream committed within some time."""

    records: int = 0
    """Dead letters included."""
    rejected: int = 0
    stale: int = 0
    """How many of them an upsert dropped, because their rows were newer."""
    reasons: dict[str, Reason] = field(default_factory=dict)
    """New dead letters by error class."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What commits brought lately, as far as the table's history tells."""

    records_per_s: float | None
    """Over the last ten minutes, or three commit intervals if that is longer; None where nothing was ever committed."""
    last_hour: tuple[int, ...]
    """Records by two minutes, oldest first."""
    rejected_last_day: int
    rejected_since_ms: int | None = None
    """Since when that is counted, where that is less than the day: see `counted_since`."""
    rejected_since_reset: bool = False
    """Whether that is the stream's last reset, and not the oldest snapshot."""
    hour: Landed = field(default_factory=Landed)
    recent: Landed = field(default_factory=Landed)
    """Within `recent_minutes`."""
    recent_minutes: float = 5

    @property
    def recent_reasons(self) -> Reasons:
        """New dead letters within `recent_minutes`; those of the hour that had none since count 0."""
        return {name: self.recent.reasons.get(name, Reason(0)) for name in self.hour.reasons}


def flow_of(metadata: TableMetadata, spec: StreamSpec, *, now_ms: int) -> Flow:
    """The flow of one stream into its table."""
    longest_ms = spec.commit.longest_interval // timedelta(milliseconds=1)
    over_ms = max(RATE_OVER_MS, INTERVALS * longest_ms)
    commits = brought(metadata, spec.name, since_ms=now_ms - max(DAY_MS, over_ms))
    recent_ms = min(max(RECENT_MS, longest_ms), HOUR_MS)
    found = replace(
        flow(commits, over_ms=over_ms, now_ms=now_ms),
        hour=landed(metadata, spec.name, since_ms=now_ms - HOUR_MS),
        recent=landed(metadata, spec.name, since_ms=now_ms - recent_ms),
        recent_minutes=recent_ms / 60_000,
    )
    since_ms, is_reset = counted_since(metadata, spec.name, since_ms=now_ms - DAY_MS)
    if since_ms is None:
        return found
    rejected = sum(one.rejected for one in commits if one.at_ms >= since_ms)
    return replace(found, rejected_last_day=rejected, rejected_since_ms=since_ms, rejected_since_reset=is_reset)


def counted_since(metadata: TableMetadata, stream: str, *, since_ms: int) -> tuple[int | None, bool]:
    """Since when rejected records are counted, where that is later than `since_ms`, and whether that is a reset.

    A reset lets a stream read again what it has rejected before.
    """
    for snapshot in takewhile(lambda one: one.timestamp_ms > since_ms, ancestors(metadata)):
        summary = snapshot.summary
        if summary and summary.get("frazil.operation") == "reset" and summary.get("frazil.stream") == stream:
            return snapshot.timestamp_ms, True
    return expired_before_ms(metadata, since_ms=since_ms), False


def expired_before_ms(metadata: TableMetadata, *, since_ms: int) -> int | None:
    """When the oldest snapshot was made, where the ones before it have expired and it is younger than `since_ms`."""
    oldest = None
    for oldest in ancestors(metadata):
        if oldest.timestamp_ms <= since_ms:
            return None
    return oldest.timestamp_ms if oldest and oldest.parent_snapshot_id is not None else None


def brought(metadata: TableMetadata, stream: str, *, since_ms: int) -> list[Brought]:
    """The stream's commits, newest first: those after a moment, and the one before it if the history has it."""
    found: list[Brought] = []
    for snapshot, _ in commit_records(metadata, stream):
        told = snapshot.summary
        records, rejected = (_number(told.get(f"frazil.{name}") if told else None) for name in ("records", "rejected"))
        found.append(Brought(snapshot.timestamp_ms, records, rejected))
        if snapshot.timestamp_ms < since_ms:
            break
    return found


def landed(metadata: TableMetadata, stream: str, *, since_ms: int) -> Landed:
    """What the stream has committed since a moment."""
    found = Landed()
    for snapshot in takewhile(lambda one: one.timestamp_ms >= since_ms, ancestors(metadata)):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if said.get("frazil.stream") == stream and "frazil.records" in said:
            dead = _number(said.get("frazil.rejected"))
            found.records += _number(said["frazil.records"]) + dead
            found.rejected += dead
            found.stale += _number(said.get("frazil.stale"))
            for name, reason in reasons_in(said).items():
                found.reasons[name] = found.reasons.get(name, Reason(0)) + reason
    return found


def flow(newest_first: Iterable[Brought], *, over_ms: int, now_ms: int) -> Flow:
    """From commits to rates."""
    commits = list(newest_first)
    lately = list(takewhile(lambda one: one.at_ms > now_ms - over_ms, commits))
    begin_ms = commits[len(lately)].at_ms if len(lately) < len(commits) else None
    span_ms = over_ms if begin_ms is not None else max(now_ms - lately[-1].at_ms, 1) if lately else over_ms
    # The oldest commit of all brought what came before the span.
    counted = lately if begin_ms is not None or len(lately) < 2 else lately[:-1]
    hour = [0] * BUCKETS
    for one in takewhile(lambda one: one.at_ms > now_ms - HOUR_MS, commits):
        hour[min((one.at_ms - (now_ms - HOUR_MS)) * BUCKETS // HOUR_MS, BUCKETS - 1)] += one.records
    return Flow(
        records_per_s=sum(one.records for one in counted) * 1000 / span_ms if commits else None,
        last_hour=tuple(hour),
        rejected_last_day=sum(one.rejected for one in commits if one.at_ms > now_ms - DAY_MS),
    )


def _number(text: str | None) -> int:
    """Others may write anything into a summary."""
    return int(text) if text and text.isdecimal() else 0
