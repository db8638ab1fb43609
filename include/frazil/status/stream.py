"""Reads the state of one stream from its run folder on this host, its table and its desired state, without a JVM.

If no writer reports a lag, the lag is computed from Kafka's offsets. Parts that cannot be read are listed in the
stream's problems. The other parts are still shown.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.backfill.interrupted import progress_words
from frazil.commit.backfill_marker import read_backfill
from frazil.commit.history import last_commit_ms, last_epoch, last_replay, last_reset_ms, merge_counts
from frazil.commit.journal import JournalStore
from frazil.commit.marker import Marker, read_marker
from frazil.commit.rules import check_ancestry, check_same_source
from frazil.errors import FrazilError, RolledBack
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.host.launchers import open_launcher
from frazil.host.records import read_notes, read_watch
from frazil.installed import outdated
from frazil.offsets.spans import count_unread
from frazil.spec.model import StreamSpec
from frazil.spec.references import kafka_properties
from frazil.status.derive import evaluated, of_writer, process_problems, promise_ms, shortened
from frazil.status.flow import Flow, flow_of
from frazil.status.missing import missing_table
from frazil.status.state import StreamState
from frazil.supervise.decide import decide
from frazil.supervise.desired import DesiredStore, table_fingerprint
from frazil.supervise.liveness import fresh_heartbeat, has_committed, is_fenced, known_lag
from frazil.supervise.observed import Declared, Desired, Observed, Unreadable
from frazil.supervise.policy import Policy
from frazil.table.branches import head_of, live_rows
from frazil.table.schema_update import undeclared_columns
from frazil.table.storage import open_store
from frazil.table.tables import check_fits, load_stream_table, state_location

log = logging.getLogger(__name__)

KAFKA_ANSWERS_WITHIN_S = 1.0
LAG_UNKNOWN = "the lag is unknown"
"""How a problem begins if it makes the lag unknown."""
ROLLED_BACK = f"{LAG_UNKNOWN}: the table was rolled back, and the marker stands beyond what it holds"
MAX_WAITING = 1_000
"""Maximum number of waiting batches that are counted."""
WATCHED_MS = 30_000
"""Maximum age (ms) of a supervisor's last record in the run folder. If it is older, no supervisor counts as watching
the writer.
"""
ROUTED_NAMED = 5
"""Maximum number of routed tables with missing rows that are named."""


@dataclass(frozen=True, slots=True)
class TableView:
    """The state of the stream's table and of the objects stored with it."""

    exists: bool | None
    in_full: bool = True
    """Whether Kafka and routed tables are read too."""
    marker: Marker | None = None
    last_commit_at_ms: int | None = None
    rows: int | None = None
    commit_epoch: int | None = None
    desired: Desired | None = None
    missing: str | None = None
    """Why the catalog no longer has the stream's own table under its name; None if it has it, or if the table was never
    created.
    """
    fingerprint: str | None = None
    """See `table_fingerprint` in `frazil.supervise.desired`."""
    waiting_batches: int | None = 0
    rolled_back: bool = False
    reset_at_ms: int | None = None
    backfill: str | None = None
    problems: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    changes: Mapping[str, int] = field(default_factory=dict)
    flow: Flow | None = None
    replay: Snapshot | None = None
    """The snapshot of an upsert stream's last replay; None without one."""
    amiss: Mapping[str, str] = field(default_factory=dict)


def stream_state(
    spec: StreamSpec, *, now_ms: int, problem: str | None = None, in_full: bool = True, out_of_reach: bool = False
) -> StreamState:
    """Read the state of one stream. Parts that cannot be read become problems; only errors due to an upgrade of frazil
    are raised.

    `problem` is the error in the stream's declaration, or None. Without `in_full`, neither Kafka nor routed tables are
    read, and waiting batches are counted instead. `out_of_reach` means that the catalog does not respond, so it is not
    read.
    """
    known = StreamState(spec.name, spec.table.identifier, problem=problem)
    try:
        writer = open_launcher(spec.name).observe()
        notes, watch = read_notes(run_folder(spec.name)), read_watch(run_folder(spec.name))
    except (OSError, ValueError, TypeError, KeyError) as error:
        unread = f"the run folder {run_folder(spec.name)} cannot be read: {error!r}"
        view = _read_table(spec, committed=False, now_ms=now_ms, in_full=in_full, out_of_reach=out_of_reach)
        known = _with_table(replace(known, problems=(unread, *view.problems)), view, None)
        return evaluated(replace(known, alive=_alive(known, spec, view, now_ms=now_ms)), spec, now_ms=now_ms)
    view = _read_table(spec, committed=has_committed(writer), now_ms=now_ms, in_full=in_full, out_of_reach=out_of_reach)
    observed = Observed(
        writer,
        Unreadable(problem) if problem else Declared(spec.fingerprint()),
        view.desired or Unreadable(next(iter(view.problems), "")),
        notes,
        view.fingerprint,
        # The silence of a writer counts only while a supervisor watches it.
        watched_since_ms=watch.returned_at_ms if now_ms - watch.last_ms <= WATCHED_MS else now_ms,
        away_since_ms=watch.away_since_ms,
        returned_at_ms=watch.returned_at_ms,
    )
    decision = decide(observed, now_ms=now_ms, policy=Policy.for_stream(spec))
    known = of_writer(known, observed, decision, now_ms=now_ms)
    known = _with_kafka(known, spec, observed, view, now_ms=now_ms)
    return evaluated(replace(known, alive=_alive(known, spec, view, now_ms=now_ms)), spec, now_ms=now_ms)


def _with_kafka(
    known: StreamState, spec: StreamSpec, observed: Observed, view: TableView, *, now_ms: int
) -> StreamState:
    """Add the live writer's report, the table and the lag to the state."""
    heartbeat, marker = fresh_heartbeat(observed.writer, now_ms=now_ms), view.marker
    known = replace(known, reset_at_ms=view.reset_at_ms)
    problems = process_problems(known, observed.notes.given_up, observed.writer, now_ms=now_ms)
    stall, throttle, outage = (
        (heartbeat.stall, heartbeat.throttle, heartbeat.outage) if heartbeat else (None, None, None)
    )
    problems += [said for said in (stall.reason if stall else None, throttle, outage) if said]
    writer, lag, silent = known.writer, known_lag(heartbeat) if heartbeat else None, None
    if heartbeat and marker and is_fenced(heartbeat, epoch=marker.at.epoch):
        # Its lag counts from its own position, which is no longer the stream's position.
        writer, lag = replace(writer, fenced=True), None
        problems.insert(0, _fenced(spec.name, heartbeat, marker))
    if lag is None and marker is not None and view.in_full:
        lag, silent = (None, ROLLED_BACK) if view.rolled_back else _ask_kafka(spec, marker)
        problems += [silent] if silent else []
    waits = bool(outage or silent or (stall and stall.kind is StallKind.OFFSETS))
    known = replace(
        known,
        writer=writer,
        lag=lag,
        in_transactions=heartbeat.in_transactions if heartbeat else 0,
        backpressure_ms=heartbeat.backpressure_ms if heartbeat and not waits else None,
        throttle=throttle,
        distribution=heartbeat.distribution if heartbeat else None,
        notices=_notices(spec, observed.writer),
        problems=_each_once((*problems, *view.problems)),
    )
    return _with_table(known, view, observed.heartbeat)


def _with_table(known: StreamState, view: TableView, heartbeat: Heartbeat | None) -> StreamState:
    """Add the stream's position to the state: from the table if it can be read, otherwise from the last heartbeat."""
    marker, desired = view.marker, view.desired
    known = replace(
        known,
        desired=str(desired.mode) if desired else None,
        desired_reason=(desired.reason or None) if desired else None,
        desired_at_ms=(desired.at_ms or None) if desired else None,
        table_exists=view.exists,
        missing=view.missing,
        rows=view.rows,
        undeclared=view.undeclared,
        changes=view.changes,
        flow=view.flow,
        replayed=merge_counts(view.replay.summary) if view.replay else {},
        replayed_at_ms=view.replay.timestamp_ms if view.replay else None,
        routed=marker is not None and marker.routed is not None,
        amiss=view.amiss,
        commit_epoch=view.commit_epoch,
        backfill=view.backfill,
        waiting_batches=view.waiting_batches,
        rolled_back=view.rolled_back,
        reset_at_ms=view.reset_at_ms,
    )
    if marker is not None:
        return replace(
            known,
            epoch=marker.at.epoch,
            batch=marker.at.batch,
            last_commit_at_ms=view.last_commit_at_ms,
            watermark_ms=marker.watermark_ms,
            snapshot_id=marker.snapshot_id,
        )
    if heartbeat is None or view.exists is not None:
        return known
    return replace(
        known,
        epoch=heartbeat.epoch,
        batch=heartbeat.batch,
        last_commit_at_ms=heartbeat.last_commit_at_ms,
        watermark_ms=heartbeat.watermark_ms,
        snapshot_id=heartbeat.last_commit_snapshot,
    )


def _alive(known: StreamState, spec: StreamSpec, view: TableView, *, now_ms: int) -> bool | None:
    """Return whether a writer runs; None if that is unknown.

    A writer on another host is visible only through its commits. A marker without recent commits may belong to a writer
    that has no records.
    """
    if known.writer.pid is not None:
        return True
    if known.writer.has_ended and not known.commits_elsewhere:
        return False
    committed_ms = known.last_commit_at_ms
    if committed_ms is not None and now_ms - committed_ms <= promise_ms(spec):
        return True
    unknown = view.exists is None or view.marker is not None or known.writer.state == "unknown"
    return None if unknown or committed_ms is not None else False


def _fenced(stream: str, heartbeat: Heartbeat, marker: Marker) -> str:
    return (
        f"the writer of epoch {heartbeat.epoch} is fenced: a reset or another writer began epoch {marker.at.epoch}. It "
        "commits nothing more, and ends with 13 (Fenced) within a minute, or after the batch that it stages. After a "
        f"reset, `frazil resume {stream}` starts the next one once this one has ended; in the foreground, "
        f"`frazil run {stream}`"
    )


def _each_once(problems: tuple[str, ...]) -> tuple[str, ...]:
    """Drop problems whose error the first problem already contains, such as an error of the table that also ended the
    writer.
    """
    said = problems[0] if problems else ""

    def is_said(problem: str) -> bool:
        words = shortened(problem.removeprefix(f"{LAG_UNKNOWN}: ").partition(": ")[2])
        return bool(words) and words in said

    return (*problems[:1], *(one for one in problems[1:] if not is_said(one)))


def _notices(spec: StreamSpec, observation: Observation) -> tuple[str, ...]:
    """Return the writer's notices. If the running writer was started with an older declaration, adds a warning."""
    heartbeat = observation.heartbeat
    if heartbeat is None:
        return ()
    if not observation.process.is_alive or heartbeat.spec_fingerprint == spec.fingerprint():
        return heartbeat.notices
    return (*heartbeat.notices, _older_declaration(observation.process))


def _older_declaration(process: ProcessState) -> str:
    how = (
        "no supervisor restarts a writer in the foreground: end it (Ctrl-C) and run it again to take the new one over"
        if process is ProcessState.FOREGROUND
        else "its supervisor (Airflow) restarts it after the current batch"
    )
    return f"the running writer was started with another declaration than the file has now; {how}"


def _ask_kafka(spec: StreamSpec, marker: Marker) -> tuple[int | None, str | None]:
    """Return the number of records after the marker. If Kafka does not respond at once, returns None and the reason."""
    from frazil.kafka.admin import KafkaOffsets  # noqa: PLC0415 - librdkafka, which few calls need
    from frazil.kafka.logs import check_no_gap, check_not_truncated, find_truncations  # noqa: PLC0415

    try:
        properties = {**kafka_properties(spec, os.environ), "log_level": "0"}
        with KafkaOffsets(properties, spec.source.reads, timeout_s=KAFKA_ANSWERS_WITHIN_S) as kafka:
            topics = kafka.describe()
            check_same_source(marker.source, topics.identity, stream=spec.name)
            ends, first = kafka.ends(topics.partitions), kafka.earliest(topics.partitions)
            check_no_gap(marker.offsets, first, stream=spec.name)
            read = {tp: offset for tp, offset in marker.offsets.items() if tp in ends}
            cut = find_truncations(kafka, read, marker.leader_epochs, pause=lambda: None)
            check_not_truncated(read, cut, stream=spec.name)
    except FrazilError as error:
        return None, f"{LAG_UNKNOWN}: {_words(error)}"
    return count_unread(marker.offsets, first, ends), None


def _read_table(
    spec: StreamSpec, *, committed: bool, now_ms: int, in_full: bool, out_of_reach: bool = False
) -> TableView:
    if out_of_reach:
        return TableView(exists=None, problems=("the catalog does not answer",))
    try:
        table = load_stream_table(spec)
        if table is not None:
            return _view(table, spec, now_ms=now_ms, in_full=in_full)
        desired = DesiredStore(spec.name, None).read()
        missing = missing_table(spec, None, committed=committed)
        return TableView(exists=False, desired=desired, missing=missing, problems=(missing,) if missing else ())
    except Exception as error:  # catalogs raise what their clients raise; other streams are still shown
        _raise_if_outdated(error)
        return TableView(exists=None, problems=(f"the table cannot be read: {_words(error)}",))


def _behind(spec: StreamSpec, marker: Marker) -> tuple[list[str], dict[str, str]]:
    """Return problems of the route's tables, as sentences for some of them and as a few words for each table.

    A table has a problem if it is missing rows or was dropped.
    """
    from frazil.commit.opened import read_stream  # noqa: PLC0415 - with the committer, which few streams need here
    from frazil.stream.dropped_tables import behind_default_table  # noqa: PLC0415 - as above

    try:
        tables = read_stream(spec).tables
        behind, dropped = behind_default_table(spec, tables, marker)
        now_ms = tables.clock_ms()
        missing = [b for b in behind if not b.is_coming(now_ms)]
        found = [*map(str, missing), *map(str, dropped)]
        amiss = {b.target: b.amiss for b in missing} | {d.target: str(d.amiss) for d in dropped}
    except Exception as error:  # as above: catalogs raise what their clients raise
        _raise_if_outdated(error)
        return [f"the tables of its route cannot be read: {_words(error)}"], {}
    more = (
        [f"{len(found) - ROUTED_NAMED:,} more are missing rows or were dropped: `frazil route {spec.name}`"]
        if len(found) > ROUTED_NAMED
        else []
    )
    return [*found[:ROUTED_NAMED], *more], amiss


def _view(table: Table, spec: StreamSpec, *, now_ms: int, in_full: bool) -> TableView:
    problems: list[str] = []
    marker, amiss, rolled_back = None, dict[str, str](), False
    undeclared: tuple[str, ...] = ()
    try:
        check_fits(table, spec)
        undeclared = undeclared_columns(table, spec)
    except FrazilError as error:
        problems.append(_words(error))
    try:
        marker = read_marker(table.properties, spec.name)
        if marker:
            check_ancestry(table.metadata, marker, table=spec.table.identifier)
    except FrazilError as error:
        rolled_back = isinstance(error, RolledBack)
        problems.append(_words(error))
    missing = missing_table(spec, table, committed=False)
    problems += [missing] if missing else []
    if in_full and marker is not None and marker.routed is not None:
        behind, amiss = _behind(spec, marker)
        problems += behind
    desired = None
    try:
        desired = DesiredStore(spec.name, table).read()
    except Exception as error:  # as above: storage raises what its clients raise
        _raise_if_outdated(error)
        problems.append(f"the desired state cannot be read: {_words(error)}")
    committed_ms = last_commit_ms(table.metadata, spec.name)
    is_fresh = committed_ms is not None and now_ms - committed_ms <= promise_ms(spec)
    return TableView(
        exists=True,
        missing=missing,
        in_full=in_full,
        rolled_back=rolled_back,
        marker=marker,
        fingerprint=table_fingerprint(table, spec.name),
        waiting_batches=0 if in_full or is_fresh else _waiting(table, spec.name),
        last_commit_at_ms=committed_ms,
        rows=_rows(table.metadata),
        commit_epoch=last_epoch(table.metadata, spec.name),
        reset_at_ms=last_reset_ms(table.metadata, spec.name),
        backfill=_open_backfill(table.metadata, spec.name, now_ms=now_ms),
        desired=desired,
        problems=tuple(problems),
        undeclared=undeclared,
        changes=_changes(table.metadata, spec.name) if spec.mode == "upsert" or spec.dedupe else {},
        flow=flow_of(table.metadata, spec, now_ms=now_ms),
        replay=last_replay(table.metadata, spec.name) if spec.mode == "upsert" else None,
        amiss=amiss,
    )


def _waiting(table: Table, stream: str) -> int | None:
    try:
        marker = read_marker(table.properties, stream)
        journals = JournalStore(open_store(table.location(), table.io.properties), state_location(table, stream))
        settled = marker.settled if marker else None
        waiting = journals.after(settled, journals.keys(), table_uuid=str(table.metadata.table_uuid), stream=stream)
        return sum(1 for _ in zip(range(MAX_WAITING), waiting, strict=False))
    except (FrazilError, OSError) as error:
        log.warning("the journals of stream %s cannot be read: %s", stream, error)
        return None


def _changes(metadata: TableMetadata, stream: str) -> dict[str, int]:
    """Return the merge counts of the newest batch whose snapshot exists; empty if there is none."""
    for snapshot in reversed(metadata.snapshots):
        summary = snapshot.summary
        counts = merge_counts(summary)
        if summary and summary.get("frazil.stream") == stream and counts:
            return counts
    return {}


def _open_backfill(metadata: TableMetadata, stream: str, *, now_ms: int) -> str | None:
    try:
        last = read_backfill(metadata.properties, stream)
    except FrazilError as error:
        return _words(error)
    return progress_words(last, metadata, now_ms=now_ms) if last and last.is_open else None


def _rows(metadata: TableMetadata) -> int | None:
    head = head_of(metadata)
    return live_rows(head) if head else 0


def _raise_if_outdated(error: Exception) -> None:
    """Raise an error again if its cause is that frazil was upgraded while this process runs."""
    if outdated(error):
        raise error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
