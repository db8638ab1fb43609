"""Computes record rates and dead-letter counts from the snapshot summaries of a stream's newest commits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import takewhile

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.dead_letter_counts import Reason, Reasons, parse_reasons
from frazil.commit.history import ancestors, is_replay, parse_number, rejecting_commits
from frazil.spec.model import StreamSpec
from frazil.table.branches import snapshot_summary, summary_value

HOUR_MS = timedelta(hours=1) // timedelta(milliseconds=1)
DAY_MS = 24 * HOUR_MS
LAST_HOUR_BUCKETS = 30
RATE_PERIOD_MS = HOUR_MS // 6
RECENT_PERIOD_MS = HOUR_MS // 12
"""Usual period over which alerts count recent records. Long commit intervals extend it; a new stream's is shorter."""
MIN_RECENT_PERIOD_MS = HOUR_MS // 60
MIN_RECORDS = 100
"""Minimum number of records for which a percentage is meaningful."""
MIN_RATE_INTERVALS = 3
"""Minimum number of the stream's longest commit intervals that a rate covers."""


@dataclass(frozen=True, slots=True)
class CommitCounts:
    at_ms: int
    records: int


@dataclass(slots=True)
class CommitSums:
    records: int = 0
    """Records, including dead letters."""
    rejected: int = 0
    stale: int = 0
    """Changes that an upsert dropped because the table's rows were newer."""
    reasons: dict[str, Reason] = field(default_factory=dict)
    replayed: int = 0
    """Dead letters, perhaps of earlier commits, that replays have written to the table."""


@dataclass(frozen=True, slots=True)
class RecentCommits:
    """Rates and counts of a stream's recent commits, as far as the table still has their snapshots."""

    records_per_s: float | None
    """Average over ten minutes, or three longest commit intervals if that is longer; None before the first commit."""
    last_hour: tuple[int, ...]
    """Records in each two-minute part of the last hour, oldest first."""
    rejected_last_day: int = 0
    """Records that batches and backfills rejected, even if they were replayed or discarded since."""
    rejected_since_ms: int | None = None
    """When the count of rejected records starts, if it does not cover the last day. See `counted_since`."""
    rejected_since_reset: bool = False
    """Whether that count starts at the stream's last reset instead of the oldest snapshot."""
    measured: CommitSums = field(default_factory=CommitSums)
    """Sums over the commits of the last `measured_ms`, for percentages in alerts."""
    measured_ms: int = HOUR_MS
    """Length of the period of `measured`: an hour, or up to a day with fewer than `MIN_RECORDS` records in it."""
    recent: CommitSums = field(default_factory=CommitSums)
    recent_minutes: float = 5
    rate_ms: int = RATE_PERIOD_MS

    @property
    def recent_reasons(self) -> Reasons:
        """The recent dead letters by error class, with a count of 0 for the other classes of `measured`."""
        return {name: self.recent.reasons.get(name, Reason(0)) for name in self.measured.reasons}


def measure_recent_commits(metadata: TableMetadata, spec: StreamSpec, *, now_ms: int) -> RecentCommits:
    longest_ms = spec.commit.longest_interval // timedelta(milliseconds=1)
    over_ms = max(RATE_PERIOD_MS, MIN_RATE_INTERVALS * longest_ms)
    history = [*ancestors(metadata)]
    commits = list_commits(history, spec.name, since_ms=now_ms - max(DAY_MS, over_ms))
    recent_ms = min(max(RECENT_PERIOD_MS, longest_ms), HOUR_MS)
    if commits:  # the records of the oldest one arrived within an interval before it
        recent_ms = min(recent_ms, max(now_ms - commits[-1].at_ms + longest_ms, MIN_RECENT_PERIOD_MS))
    last_day = [*takewhile(lambda snapshot: snapshot.timestamp_ms >= now_ms - DAY_MS, history)]
    measured_since_ms = max(_measured_since(last_day, spec.name, now_ms=now_ms), _history_start_ms(history) or 0)
    recent = replace(
        compute_rates(commits, over_ms=over_ms, now_ms=now_ms),
        measured=sum_commits(last_day, spec.name, since_ms=measured_since_ms),
        measured_ms=now_ms - measured_since_ms,
        recent=sum_commits(last_day, spec.name, since_ms=now_ms - recent_ms),
        recent_minutes=recent_ms / 60_000,
    )
    since_ms, is_reset = counted_since(history, spec.name, since_ms=now_ms - DAY_MS)
    rejecting = rejecting_commits(
        (snapshot for snapshot in last_day if snapshot.timestamp_ms >= (since_ms or 0)), spec.name
    )
    rejected = sum(parse_number(summary_value(snapshot, "frazil.rejected")) for snapshot in rejecting)
    if since_ms is None:
        return replace(recent, rejected_last_day=rejected)
    unknown = max(since_ms - (now_ms - HOUR_MS), 0) * LAST_HOUR_BUCKETS // HOUR_MS
    if unknown and not is_reset:
        recent = replace(recent, last_hour=recent.last_hour[min(unknown, LAST_HOUR_BUCKETS - 1) :])
    return replace(recent, rejected_last_day=rejected, rejected_since_ms=since_ms, rejected_since_reset=is_reset)


def counted_since(history: Sequence[Snapshot], stream: str, *, since_ms: int) -> tuple[int | None, bool]:
    """Return when the count of rejected records starts (None: at `since_ms`), and whether a reset is the reason."""
    for snapshot in history:
        if snapshot.timestamp_ms <= since_ms:
            return None, False
        is_own = summary_value(snapshot, "frazil.stream") == stream
        if is_own and summary_value(snapshot, "frazil.operation") == "reset":
            return snapshot.timestamp_ms, True
    return _history_start_ms(history), False


def _history_start_ms(history: Sequence[Snapshot]) -> int | None:
    """Return the time of the oldest snapshot, if older ones have expired."""
    oldest = history[-1] if history else None
    # The parent's id does not show that older snapshots expired: PyIceberg removes it.
    has_gap = oldest and (oldest.parent_snapshot_id is not None or (oldest.sequence_number or 0) > 1)
    return oldest.timestamp_ms if oldest and has_gap else None


def list_commits(history: Sequence[Snapshot], stream: str, *, since_ms: int) -> list[CommitCounts]:
    """Return the stream's commits since `since_ms` and the last one before, newest first."""
    commits: list[CommitCounts] = []
    for snapshot in history:
        summary = snapshot_summary(snapshot)
        if summary.get("frazil.stream") == stream and summary.get("frazil.commit-record"):
            commits.append(CommitCounts(snapshot.timestamp_ms, parse_number(summary.get("frazil.records"))))
            if snapshot.timestamp_ms < since_ms:
                break
    return commits


def _measured_since(snapshots: Iterable[Snapshot], stream: str, *, now_ms: int) -> int:
    """Return the start of the measured period: an hour, or longer (up to a day) until it has `MIN_RECORDS` records."""
    records = 0
    for snapshot in snapshots:
        records += sum_commits([snapshot], stream, since_ms=snapshot.timestamp_ms).records
        if records >= MIN_RECORDS:
            return min(snapshot.timestamp_ms, now_ms - HOUR_MS)
    return now_ms - DAY_MS


def sum_commits(snapshots: Iterable[Snapshot], stream: str, *, since_ms: int) -> CommitSums:
    """Sum the stream's commits since `since_ms`. The snapshots are newest first."""
    sums = CommitSums()
    for snapshot in takewhile(lambda candidate: candidate.timestamp_ms >= since_ms, snapshots):
        summary = snapshot_summary(snapshot)
        if summary.get("frazil.stream") == stream and "frazil.records" in summary:
            dead = parse_number(summary.get("frazil.rejected"))
            sums.records += parse_number(summary["frazil.records"]) + dead
            sums.rejected += dead
            sums.stale += parse_number(summary.get("frazil.stale"))
            for name, reason in parse_reasons(summary).items():
                sums.reasons[name] = sums.reasons.get(name, Reason(0)) + reason
        elif is_replay(snapshot, stream):
            sums.replayed += parse_number(summary.get("frazil.records"))
    return sums


def compute_rates(commits: Sequence[CommitCounts], *, over_ms: int, now_ms: int) -> RecentCommits:
    """Compute the rates from the stream's commits, newest first. `over_ms` is the period of the records per second."""
    recent = list(takewhile(lambda commit: commit.at_ms > now_ms - over_ms, commits))
    begin_ms = commits[len(recent)].at_ms if len(recent) < len(commits) else None
    span_ms = over_ms if begin_ms is not None else max(now_ms - recent[-1].at_ms, 1) if recent else over_ms
    # The records of the oldest commit arrived before the span, so they do not count.
    counted = recent if begin_ms is not None or len(recent) < 2 else recent[:-1]
    hour = [0] * LAST_HOUR_BUCKETS
    for commit in takewhile(lambda commit: commit.at_ms > now_ms - HOUR_MS, commits):
        hour[min((commit.at_ms - (now_ms - HOUR_MS)) * LAST_HOUR_BUCKETS // HOUR_MS, LAST_HOUR_BUCKETS - 1)] += (
            commit.records
        )
    return RecentCommits(
        records_per_s=sum(commit.records for commit in counted) * 1000 / span_ms if commits else None,
        last_hour=tuple(hour),
        rate_ms=span_ms,
    )
