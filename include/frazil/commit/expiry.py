"""Decides from metadata alone which snapshots of a table expire, which are kept longer, and why.

Main's recent history is kept without gaps, because readers follow parent links. Older snapshots are kept while
something refers to them. A plan may be executed later: streams only move to newer snapshots, and Iceberg never expires
a branch's head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from frazil.commit.backfill_records import branch_name, open_backfills
from frazil.commit.commit_checks import check_ancestry, check_open_branch
from frazil.commit.history import SUMMARY_ONLY_KEYS, ancestors, is_fold, may_add_late_rows
from frazil.commit.marked_update import OPEN_SNAPSHOT_KEY
from frazil.commit.marker import Marker, open_branch_name, read_markers
from frazil.errors import MarkerUnreadable, RolledBack
from frazil.partitions.completeness import Cursor
from frazil.spec.maintenance import Expiry
from frazil.spec.units import format_count, shorten_list
from frazil.table.branches import MAIN, head_of, snapshot_summary, summary_value
from frazil.table.tables import may_delete_files

READER_TAG_PREFIX = "frazil-reader-"
"""Prefix of incremental readers' tags. The tagged snapshot and all newer ones are kept."""
MAX_UNREAD_AGE = timedelta(days=7)
"""Maximum age of commits that are kept until their windows have a signal."""
MAX_AUDIT_AGE = timedelta(days=1)
"""How long snapshots are kept for the audit of a backfill, after its last commit."""
AUDIT_RETENTION = timedelta(hours=6)
"""Minimum retention of snapshots that hourly audits need."""
MAX_LISTED_REASONS = 3


@dataclass(frozen=True, slots=True)
class Pins:
    """The snapshots that signals and downstream jobs need, which the table's metadata does not show."""

    cursor: Cursor | None = None
    """The commit up to which signals have counted late rows and dead letters."""
    signalled_snapshots: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    expire: tuple[int, ...]
    retained_reasons: Mapping[int, str]
    sentence: str
    refused: bool = False
    """Whether an operator must act before anything expires. `sentence` gives the reason."""


def plan_expiry(metadata: TableMetadata, settings: Expiry, pins: Pins, *, table: str, now_ms: int) -> ExpiryPlan:
    try:
        markers = list(read_markers(metadata.properties).values())
        for marker in markers:
            check_ancestry(metadata, marker, table=table)
            check_open_branch(metadata, marker, table=table)
        branches = (branch_name(backfill.stream) for backfill in open_backfills(metadata.properties))
        backfills = [head for branch in branches if (head := head_of(metadata, branch))]
    except (MarkerUnreadable, RolledBack) as error:
        return ExpiryPlan((), {}, f"no snapshot expires until this is fixed: {error}", refused=True)
    if forbidden := _find_forbidding_setting(metadata):
        return ExpiryPlan((), {}, forbidden, refused=True)
    main = list(ancestors(metadata))
    horizon_ms = now_ms - settings.keep // timedelta(milliseconds=1)
    readable = next((index for index in range(1, len(main)) if main[index - 1].timestamp_ms < horizon_ms), len(main))
    plain = max(min(readable, settings.at_most), settings.at_least)
    unread = [] if pins.cursor is None else _uncounted_commits(main, pins.cursor)
    holds = _held_positions(metadata, main, unread, now_ms=now_ms) | _audited_positions(main, backfills, now_ms=now_ms)
    line = main[: max([plain, *(index + 1 for index in holds)])]
    referenced = _referenced_snapshots(metadata, markers, pins, main=main, now_ms=now_ms)
    single = _kept_outside(line, metadata, referenced)
    kept = {line[i].snapshot_id: holds.get(i, "an older snapshot must be kept") for i in range(plain, len(line))}
    stays = {s.snapshot_id for s in line} | set(single)
    open_lines = (ancestors(metadata, open_branch_name(marker.stream)) for marker in markers)
    ours = {s.snapshot_id for s in chain(main, *open_lines, _left_by_writers(metadata, main))}
    may_expire = (s.snapshot_id for s in metadata.snapshots if s.snapshot_id in ours or s.timestamp_ms < horizon_ms)
    expire = tuple(snapshot_id for snapshot_id in may_expire if snapshot_id not in stays)
    lost = sum(index >= len(line) for index in unread)
    return ExpiryPlan(expire, kept | single, _describe_plan(expire, len(line) - len(kept), kept | single, lost))


def _left_by_writers(metadata: TableMetadata, main: Sequence[Snapshot]) -> Iterator[Snapshot]:
    """Yield frazil's snapshots older than main's history. Writers left them when they expired newer snapshots."""
    oldest = (main[-1].sequence_number or 0) if main else 0
    for snapshot in metadata.snapshots:
        written = snapshot_summary(snapshot)
        if (snapshot.sequence_number or 0) < oldest and written.keys() & {"frazil.stream", "frazil.operation"}:
            yield snapshot


def expirable_by_writers(plan: ExpiryPlan, metadata: TableMetadata) -> list[Snapshot]:
    """Return the planned snapshots that writers may expire.

    A snapshot before the removal of a file stays, because maintenance finds the removed file by this snapshot.
    Snapshots of other programs that removed files stay, too.
    """
    main, planned = list(ancestors(metadata)), set(plan.expire)
    with_children = zip(main[1:], main, strict=False)
    pairs = (pair for pair in with_children if pair[0].snapshot_id in planned and _removes_no_file(pair[1]))
    return [older for older, _ in pairs if _removes_no_file(older) or is_fold(older)]


def _removes_no_file(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    if summary is None or summary.operation is Operation.APPEND:
        return summary is not None
    removed = any(int(summary.get(key) or 0) for key in ("deleted-data-files", "removed-delete-files"))
    return "frazil.stream" in summary.additional_properties and not removed


def _find_forbidding_setting(metadata: TableMetadata) -> str | None:
    if not may_delete_files(metadata.properties):
        return "no snapshot expires: the table has `gc.enabled=false`, so another table may share its files"
    main = metadata.refs.get(MAIN)
    if main and (main.max_snapshot_age_ms or main.min_snapshots_to_keep):
        return (
            "no snapshot expires: branch main has its own retention, and Iceberg would apply it to snapshots that "
            "streams still need. Remove the branch's retention, or declare `maintenance: {expiry: off}`"
        )
    return None


def _uncounted_commits(main: Sequence[Snapshot], cursor: Cursor) -> list[int]:
    return [
        index
        for index, snapshot in enumerate(main)
        if (snapshot.sequence_number or 0) > cursor.sequence_number
        and (may_add_late_rows(snapshot, cursor) or int(summary_value(snapshot, "frazil.rejected") or 0))
    ]


def _held_positions(
    metadata: TableMetadata, main: Sequence[Snapshot], unread: Sequence[int], *, now_ms: int
) -> dict[int, str]:
    """Return indexes in `main`, with reasons. All snapshots from the head to an index must be kept."""
    oldest_ms = now_ms - MAX_UNREAD_AGE // timedelta(milliseconds=1)
    late = [position for position in unread if main[position].timestamp_ms >= oldest_ms]
    index = {snapshot.snapshot_id: position for position, snapshot in enumerate(main)}
    tags = {name: ref.snapshot_id for name, ref in metadata.refs.items() if name.startswith(READER_TAG_PREFIX)}
    return {
        **dict.fromkeys(late, "no signal has counted its late rows or dead letters"),
        **{index[tagged]: f"tag {name} refers to it" for name, tagged in tags.items() if tagged in index},
    }


def _audited_positions(main: Sequence[Snapshot], backfills: Sequence[Snapshot], *, now_ms: int) -> dict[int, str]:
    """Return the index in `main` of the oldest snapshot that audits of open backfills may need, if any."""
    oldest_ms = now_ms - MAX_AUDIT_AGE // timedelta(milliseconds=1)
    numbers = [head.sequence_number or 0 for head in backfills if head.timestamp_ms >= oldest_ms]
    if not (numbers and main):
        return {}
    first = next((index for index, s in enumerate(main) if (s.sequence_number or 0) < min(numbers)), len(main) - 1)
    return {first: "the audit of an open backfill may need it"}


def _referenced_snapshots(
    metadata: TableMetadata, markers: Sequence[Marker], pins: Pins, *, main: Sequence[Snapshot], now_ms: int
) -> dict[int, str]:
    """Return why snapshots are referenced, by snapshot id."""
    ours = {MAIN, *(open_branch_name(marker.stream) for marker in markers)}
    reasons = dict(_branch_snapshots(metadata, main, ours, now_ms=now_ms))
    oldest_ms = now_ms - AUDIT_RETENTION // timedelta(milliseconds=1)
    young = [s for s in metadata.snapshots if s.timestamp_ms >= oldest_ms]
    snapshot_ids = [s.snapshot_id for s in young if any(summary_value(s, key) for key in SUMMARY_ONLY_KEYS)]
    reasons |= dict.fromkeys(snapshot_ids, "the audit of its hour needs its numbers of backfilled or skipped records")
    reasons |= dict.fromkeys(pins.signalled_snapshots, "a signal refers to it")
    reasons |= {marker.snapshot_id: f"it is the last commit of stream {marker.stream!r}" for marker in markers}
    reasons |= {ref.snapshot_id: f"{ref.snapshot_ref_type} {name} refers to it" for name, ref in metadata.refs.items()}
    return reasons


def _kept_outside(line: Sequence[Snapshot], metadata: TableMetadata, referenced: Mapping[int, str]) -> dict[int, str]:
    """Return why snapshots outside main's kept history (`line`) are kept, by snapshot id."""
    reasons = dict(referenced)
    for snapshot in (*line, *(s for s in metadata.snapshots if s.snapshot_id in reasons)):
        if waiting := summary_value(snapshot, OPEN_SNAPSHOT_KEY):
            reasons.setdefault(int(waiting), "a kept snapshot of main refers to it")
    present = {s.snapshot_id for s in metadata.snapshots} - {s.snapshot_id for s in line}
    return {snapshot_id: reason for snapshot_id, reason in reasons.items() if snapshot_id in present}


def _branch_snapshots(
    metadata: TableMetadata, main: Sequence[Snapshot], ours: set[str], *, now_ms: int
) -> Iterator[tuple[int, str]]:
    """Yield snapshots of other users' branches: not in main, or within the branch's own retention."""
    in_main = {snapshot.snapshot_id for snapshot in main}
    for name, ref in metadata.refs.items():
        if ref.snapshot_ref_type is not SnapshotRefType.BRANCH or name in ours:
            continue
        for index, snapshot in enumerate(ancestors(metadata, name)):
            young = ref.max_snapshot_age_ms and now_ms - snapshot.timestamp_ms <= ref.max_snapshot_age_ms
            if snapshot.snapshot_id not in in_main or young or index < (ref.min_snapshots_to_keep or 0):
                yield snapshot.snapshot_id, f"branch {name} contains it"


def _describe_plan(expire: Sequence[int], newest: int, retained_reasons: Mapping[int, str], lost: int) -> str:
    """Describe a plan. `newest` is the number of main's snapshots that the declared retention keeps."""
    expired = (
        format_count(len(expire), "snapshot", "expires|expire") if expire else "no snapshot is old enough to expire"
    )
    sentence = f"{expired}. Kept: the newest {newest:,} of branch main, by maintenance.expiry"
    if retained_reasons:
        reason_texts = [f"{reason} ({count:,})" for reason, count in Counter(retained_reasons.values()).most_common()]
        reasons = ", ".join(shorten_list(reason_texts, MAX_LISTED_REASONS, "reason"))
        sentence += f", and {format_count(len(retained_reasons), 'other')}: {reasons}"
    if lost:
        sentence += (
            f". No signal will ever count the late rows and dead letters of {format_count(lost, 'commit')} older than "
            f"{MAX_UNREAD_AGE.days} days: find out what holds the watermark back"
        )
    return sentence
