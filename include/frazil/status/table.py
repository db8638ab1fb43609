"""Reads what a stream's table shows about the stream, and whether the catalog still has the stream's tables."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.backfill.rules import describe_progress
from frazil.commit.backfill_records import read_backfill
from frazil.commit.commit_checks import check_ancestry
from frazil.commit.followers import TableAbsence
from frazil.commit.history import (
    is_replay,
    last_commit_ms,
    last_epoch,
    last_reset_ms,
    merge_counts,
    parse_number,
    published_snapshots,
)
from frazil.commit.journal import JournalStore
from frazil.commit.marker import Marker, keep_same_topics, read_marker
from frazil.commit.open_streams import explain_lost_table, open_read_only
from frazil.errors import Failure, FrazilError, RolledBack, TableLost, error_text, explain
from frazil.host.local import LocalLauncher
from frazil.offsets.spans import count_unread
from frazil.outdated_code import explain_outdated
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.status.fixes import Service, explain_error
from frazil.status.freshness import freshness_limit_ms
from frazil.status.recent_commits import measure_recent_commits
from frazil.status.state import StreamState
from frazil.stream.circuit_breaker import read_acceptance
from frazil.stream.dropped_tables import find_lagging_and_dropped_tables
from frazil.supervise.decision import DesiredState, has_committed
from frazil.supervise.desired_state import DesiredStore, table_fingerprint
from frazil.table.branches import count_live_rows, head_of, summary_value
from frazil.table.catalogs import call_catalog, open_existing_catalog, translate_catalog_errors
from frazil.table.lost_tables import describe_new_catalog, explain_dropped_table
from frazil.table.schema_update import undeclared_columns
from frazil.table.tables import check_declaration_fits, load_stream_table
from frazil.table.unresponsive import Unresponsive
from frazil.timetext import format_elapsed

log = logging.getLogger(__name__)

MAX_NAMED_TABLES = 5
MAX_GAP_MS = 300_000
"""Maximum time between two failed reads of one problem."""
_failed_reads_ms: dict[tuple[str, str | None, str], tuple[int, int]] = {}
"""The times of the first and the last of consecutive reads that failed, by stream, catalog and table."""


@dataclass(frozen=True, slots=True)
class TableReading:
    state: StreamState
    """The fields of the stream's state that come from the table, and the problems of reading it."""
    marker: Marker | None = None
    desired: DesiredState | None = None
    fingerprint: str | None = None
    in_full: bool = True
    """Whether to read Kafka and routed tables, too."""


def read_stream_table(  # noqa: PLR0913 - each choice is an argument
    spec: StreamSpec,
    *,
    committed: bool,
    now_ms: int,
    in_full: bool,
    catalogs: Unresponsive | None = None,
    has_rejects: bool = False,
) -> TableReading:
    """Read the stream's table. Errors become problems, except those that come from an upgrade of frazil.

    `has_rejects` is set if rejected records ended the last writer. An operator may have accepted them.
    """
    known = StreamState(spec.name, spec.table.identifier)

    def read() -> TableReading:
        table = load_stream_table(spec)
        if table is not None:
            return _read_existing(known, table, spec, now_ms=now_ms, in_full=in_full, has_rejects=has_rejects)
        desired = DesiredStore(spec.name, None).read()
        missing = describe_missing_table(spec, None, committed=committed)
        absent = replace(known, table_exists=False, missing=missing, problems=(missing,) if missing else ())
        return TableReading(_with_desired(absent, desired), desired=desired)

    key = (spec.name, spec.table.catalog, spec.table.identifier)
    try:
        reading = read() if catalogs is None else call_catalog(spec.table.catalog, read, catalogs)
    except Exception as error:  # catalogs raise what their clients raise; other streams are still shown
        raise_if_outdated(error)
        unread = explain_error(Service.TABLE, error, "the table cannot be read")
        since_ms, last_ms = _failed_reads_ms.get(key, (now_ms, now_ms))
        since_ms = since_ms if now_ms - last_ms <= MAX_GAP_MS else now_ms
        _failed_reads_ms[key] = since_ms, now_ms
        return TableReading(replace(known, unread=unread, unread_since_ms=since_ms, problems=(unread,)))
    _failed_reads_ms.pop(key, None)
    return reading


def _with_desired(known: StreamState, desired: DesiredState | None) -> StreamState:
    if desired is None:
        return known
    return replace(
        known,
        desired=str(desired.mode),
        desired_by=desired.by or None,
        desired_reason=desired.reason or None,
        desired_at_ms=desired.at_ms or None,
    )


def _read_existing(  # noqa: PLR0913 - as `read_stream_table`
    known: StreamState, table: Table, spec: StreamSpec, *, now_ms: int, in_full: bool, has_rejects: bool
) -> TableReading:
    undeclared, problems = _find_undeclared(table, spec)
    marker, marker_error = _read_valid_marker(table, spec)
    problems += [explain(marker_error)] if marker_error else []
    missing = describe_missing_table(spec, table, committed=False)
    problems += [missing] if missing else []
    is_routed, table_problems = marker is not None and marker.routed is not None, dict[str, str]()
    if in_full and marker is not None and is_routed:
        routed_problems, table_problems = _read_routed_problems(spec, marker)
        problems += routed_problems
    desired, desired_problems = _read_desired(table, spec)
    committed_ms = last_commit_ms(table.metadata, spec.name)
    is_fresh = committed_ms is not None and now_ms - committed_ms <= freshness_limit_ms(spec)
    known = replace(
        _with_snapshots(_with_desired(known, desired), table.metadata, spec, now_ms=now_ms),
        table_exists=True,
        missing=missing,
        rolled_back=isinstance(marker_error, RolledBack),
        waiting_batches=0 if in_full or is_fresh else _count_waiting(table, spec.name),
        problems=(*problems, *desired_problems),
        undeclared=undeclared,
        routed=is_routed,
        table_problems=table_problems,
    )
    if marker is not None:
        known = replace(
            known,
            epoch=marker.key.epoch,
            batch=marker.key.batch,
            last_commit_at_ms=committed_ms,
            watermark_ms=marker.watermark_ms,
        )
        known = _with_acceptance(known, table, marker, now_ms=now_ms) if in_full or has_rejects else known
    return TableReading(known, marker, desired, table_fingerprint(table, spec.name), in_full)


def _find_undeclared(table: Table, spec: StreamSpec) -> tuple[tuple[str, ...], list[Failure]]:
    try:
        check_declaration_fits(table, spec)
        return undeclared_columns(table, spec), []
    except FrazilError as error:
        return (), [explain(error)]


def _read_valid_marker(table: Table, spec: StreamSpec) -> tuple[Marker | None, FrazilError | None]:
    """Return the marker, and why it is invalid. A marker of a table that was rolled back is returned, too."""
    marker = None
    try:
        marker = read_marker(table.properties, spec.name)
        if marker:
            check_ancestry(table.metadata, marker, table=spec.table.identifier)
    except FrazilError as error:
        return marker, error
    return marker, None


def _read_desired(table: Table, spec: StreamSpec) -> tuple[DesiredState | None, list[Failure]]:
    try:
        return DesiredStore(spec.name, table).read(), []
    except Exception as error:  # as above: storage raises what its clients raise
        raise_if_outdated(error)
        return None, [explain(error, "the desired state cannot be read")]


def _with_snapshots(known: StreamState, metadata: TableMetadata, spec: StreamSpec, *, now_ms: int) -> StreamState:
    """Add what the table's snapshots show, except the writer's position."""
    head, published = head_of(metadata), [*published_snapshots(metadata, spec.name)]
    replay = next((backfill for backfill in published if is_replay(backfill, spec.name)), None)
    return replace(
        known,
        rows=count_live_rows(head) if head else 0,
        snapshot_id=head.snapshot_id if head else None,
        commit_epoch=last_epoch(metadata, spec.name),
        reset_at_ms=last_reset_ms(metadata, spec.name),
        backfill=_describe_open_backfill(metadata, spec.name, now_ms=now_ms),
        changes=_last_merge_counts(metadata, spec.name) if spec.sinks.mode.merges else {},
        recent_commits=measure_recent_commits(metadata, spec, now_ms=now_ms),
        replayed=_replay_counts(replay) if replay else {},
        replayed_at_ms=replay.timestamp_ms if replay else None,
        published_at_ms=published[0].timestamp_ms if published else None,
        published_by=("replay" if published[0] is replay else "backfill") if published else "",
    )


def _read_routed_problems(spec: StreamSpec, marker: Marker) -> tuple[list[Failure], dict[str, str]]:
    try:
        tables = open_read_only(spec).tables
        behind, dropped = find_lagging_and_dropped_tables(spec, tables, marker)
        now_ms = tables.clock_ms()
        missing = [b for b in behind if not b.is_about_to_commit(now_ms)]
        found = [
            Failure(w.reason, w.remedy) for w in (*(b.explain() for b in missing), *(d.explanation for d in dropped))
        ]
        table_problems = {b.target: b.problem for b in missing} | {d.target: str(d.absence) for d in dropped}
    except Exception as error:  # as above: catalogs raise what their clients raise
        raise_if_outdated(error)
        return [explain(error, "the tables of its route cannot be read")], {}
    if (more := len(found) - MAX_NAMED_TABLES) > 0:
        rest = f"{more:,} more are missing rows or were dropped: `frazil route {spec.name}`"
        found[MAX_NAMED_TABLES:] = [Failure(rest)]
    return found, table_problems


def _with_acceptance(known: StreamState, table: Table, marker: Marker, *, now_ms: int) -> StreamState:
    try:
        found = read_acceptance(JournalStore.of_table(table, marker.stream), marker.stream)
    except (FrazilError, OSError) as error:
        return replace(known, accepted=f"unknown: {error_text(error)}")
    offsets = keep_same_topics(found.offsets, found.source, marker.source) if found else {}
    if found is None or not (unread := count_unread(marker.offsets, dict.fromkeys(offsets, 0), offsets)):
        return known
    records = format_count(unread, "more offset", "is|are")
    by = f"{found.by} ({found.reason})" if found.reason else found.by
    accepted = f"{format_elapsed(now_ms - found.at_ms)} ago by {by}; {records} covered"
    return replace(known, accepted=accepted, accepted_at_ms=found.at_ms)


def _count_waiting(table: Table, stream: str) -> int | None:
    try:
        marker = read_marker(table.properties, stream)
        journals = JournalStore.of_table(table, stream)
        settled = marker.settled if marker else None
        waiting = journals.after(settled, journals.keys(), table_uuid=str(table.metadata.table_uuid), stream=stream)
        return sum(1 for _ in zip(range(1_000), waiting, strict=False))
    except (FrazilError, OSError) as error:
        log.warning("the journals of stream %s cannot be read: %s", stream, error)
        return None


def _last_merge_counts(metadata: TableMetadata, stream: str) -> dict[str, int]:
    for snapshot in reversed(metadata.snapshots):
        counts = merge_counts(snapshot.summary)
        if counts and summary_value(snapshot, "frazil.stream") == stream:
            return counts
    return {}


def _replay_counts(replay: Snapshot) -> dict[str, int]:
    landed, failed = (parse_number(summary_value(replay, f"frazil.{name}")) for name in ("records", "rejected"))
    return (merge_counts(replay.summary) or {"landed": landed}) | {"failed again": failed}


def _describe_open_backfill(metadata: TableMetadata, stream: str, *, now_ms: int) -> str | None:
    try:
        last = read_backfill(metadata.properties, stream)
    except FrazilError as error:
        return error_text(error)
    return describe_progress(last, metadata, now_ms=now_ms) if last and last.is_open else None


def describe_missing_table(spec: StreamSpec, table: Table | None, *, committed: bool) -> Failure | None:
    """Return why the stream's own table is missing or replaced. `committed`: a writer on this host has committed."""
    found = explain_lost_table(spec, table)
    if found is None and table is None and committed:
        found = explain_dropped_table(spec, open_existing_catalog(spec.table.catalog))
    if found is None:
        return None
    common = None
    if table is None and (new := describe_new_catalog(catalog := open_existing_catalog(spec.table.catalog))):
        lost = f"the catalog {catalog.name!r} does not have tables that it had: {new}"
        remedy = "Check that FRAZIL_HOME or .pyiceberg.yaml names the right catalog, or restore it"
        common = Failure(lost, f"{remedy}. `frazil status STREAM` names a table's files", TableLost.__name__)
    return Failure(found, error=TableLost.__name__, common=common)


def describe_own_missing_table(spec: StreamSpec, table: Table | None) -> Failure | None:
    """Call `describe_missing_table`. The run folder on this host shows whether a writer has committed."""
    try:
        committed = table is None and has_committed(LocalLauncher(spec.name).observe(), spec.table.identifier)
    except (OSError, ValueError, TypeError, KeyError):  # the stream's state reports this error
        committed = False
    return describe_missing_table(spec, table, committed=committed)


def describe_missing_tables(spec: StreamSpec) -> dict[str, Failure]:
    """Return why each missing table of the stream and its route is missing. Raises the errors of the catalog."""
    table = load_stream_table(spec)
    if table is None:
        reason = describe_own_missing_table(spec, None)
        return {spec.table.identifier: reason} if reason else {}
    default_marker = read_marker(table.properties, spec.name)
    if default_marker is None or default_marker.routed is None:
        return {}
    with translate_catalog_errors(table.catalog.name):
        behind, dropped = find_lagging_and_dropped_tables(
            spec, open_read_only(spec).tables, default_marker, only_missing=True
        )
    found = {table.target: Failure(str(table)) for table in behind if table.absence is TableAbsence.MISSING}
    return found | {table.target: Failure(str(table)) for table in dropped}


def raise_if_outdated(error: Exception) -> None:
    """Raise the error again if it occurred because frazil was upgraded while this process runs."""
    if explain_outdated(error):
        raise error
