"""The status of one stream: its run folder on this host, its table, its desired state and, if no writer reports a lag,
what Kafka has beyond the marker. It starts no JVM.

Whatever cannot be read is named in the stream's problems, and never hides the rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.history import changes_of, last_commit_ms, last_epoch, last_replay
from frazil.commit.marker import Marker, read_marker
from frazil.commit.rules import check_ancestry, check_same_source
from frazil.errors import FrazilError
from frazil.host.heartbeat import Heartbeat, Stall, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.installed import outdated
from frazil.spec.model import StreamSpec
from frazil.spec.references import kafka_properties
from frazil.status.flow import Flow, flow_of
from frazil.status.writer import WriterStatus, cut, look_at_writer
from frazil.supervise.desired import DesiredStore
from frazil.supervise.liveness import beating, has_committed, is_fenced, is_restarting, known_lag
from frazil.supervise.observed import Desired
from frazil.table.branches import head_of, live_rows
from frazil.table.lost import missing_table
from frazil.table.schema_update import undeclared_columns
from frazil.table.tables import check_fits, load_stream_table

KAFKA_ANSWERS_WITHIN_S = 1.0
LAG_UNKNOWN = "the lag is unknown"
"""Begins the problem that Kafka does not say what waits."""
ROUTED_NAMED = 5
"""At most this many tables of a route that lack rows are named."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream. Unknown values are None; `problems` says why."""

    name: str
    table: str
    desired: str | None
    desired_reason: str | None
    writer: WriterStatus
    epoch: int | None
    batch: int | None
    lag: int | None
    """Records not yet committed, as the live writer on this host reports, or else as Kafka says."""
    backpressure_ms: int | None
    """By how much the live writer's batches take longer than their interval; None without a heartbeat, and while it
    waits for a catalog, a storage or Kafka that is away: that is no backpressure."""
    last_commit_at_ms: int | None
    watermark_ms: int | None
    snapshot_id: int | None
    """The snapshot that the marker came with."""
    table_exists: bool | None
    rows: int | None
    """Of `table` alone: the tables of a route have their own."""
    problems: tuple[str, ...]
    in_transactions: int = 0
    """Offsets beyond `lag` that wait for transactions to end, as the live writer on this host reports."""
    stall: Stall | None = None
    """What holds the live writer back, as it reports; among the problems too."""
    throttle: str | None = None
    """Why it commits less often than declared, or should; among the problems too."""
    distribution: str | None = None
    """Whether its last batch's rows were shuffled, and why; None where the stream declares `distribution: none`."""
    undeclared: tuple[str, ...] = ()
    """The table's columns that are not declared, such as `gate: string`: others, or evolution, added them."""
    notices: tuple[str, ...] = ()
    """What the live writer, or the last one that ended, wants people to know; no problems."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """What became of the changes of the last batch, of an upsert stream; how many rows were dropped, with dedupe."""
    flow: Flow | None = None
    """What its newest commits brought; None where the table cannot be read, or does not exist."""
    replayed: Mapping[str, int] = field(default_factory=dict)
    """What became of the dead letters of the last replay, of an upsert stream."""
    replayed_at_ms: int | None = None
    routed: bool = False
    """Whether it has written to tables of a route."""
    amiss: Mapping[str, str] = field(default_factory=dict)
    """The tables of its route that lack rows, or were dropped, each with that in few words; among the problems too."""
    desired_at_ms: int | None = None
    """When a person asked for that last; None if nobody did."""
    commit_epoch: int | None = None
    """In which epoch the last commit was made. The stream has a newer one after a reset."""
    restarting: bool = False
    """Whether a person asked for another writer than the live one, which its supervisor has yet to end."""

    @property
    def commits_elsewhere(self) -> bool:
        """Whether the last commit is of another host: none ran here, or it is later than the last one that did."""
        if self.last_commit_at_ms is None or not self.writer.has_ended:
            return self.last_commit_at_ms is not None and self.writer.pid is None
        if self.writer.epoch is not None and self.commit_epoch is not None:
            return self.commit_epoch > self.writer.epoch
        return self.writer.ended_at_ms is not None and self.last_commit_at_ms > self.writer.ended_at_ms


@dataclass(frozen=True, slots=True)
class TableView:
    """What the table, and the objects beside it, say."""

    exists: bool | None
    marker: Marker | None = None
    last_commit_at_ms: int | None = None
    rows: int | None = None
    commit_epoch: int | None = None
    desired: Desired | None = None
    problems: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    changes: Mapping[str, int] = field(default_factory=dict)
    flow: Flow | None = None
    replay: Snapshot | None = None
    """The last one, of an upsert stream."""
    amiss: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where the stream stands: by the table if it can be read, otherwise by the last heartbeat."""

    epoch: int | None = None
    batch: int | None = None
    last_commit_at_ms: int | None = None
    watermark_ms: int | None = None
    snapshot_id: int | None = None


def stream_status(spec: StreamSpec, *, now_ms: int) -> StreamStatus:
    """Read the status of one stream. Never raises for what is out of reach; an error that is `outdated` is raised."""
    writer, observation, problems = look_at_writer(spec.name, now_ms=now_ms)
    committed = observation is not None and has_committed(observation)
    view = _look_at_table(spec, committed=committed, now_ms=now_ms)
    beat = observation.heartbeat if observation else None
    beat_now = beating(observation, now_ms=now_ms) if observation else None
    at = _position(view, beat)
    stall, throttle = (beat_now.stall, beat_now.throttle) if beat_now else (None, None)
    outage = beat_now.outage if beat_now else None
    problems += [said for said in (stall.reason if stall else None, throttle, outage) if said]
    lag = known_lag(beat_now) if beat_now else None
    if beat_now and view.marker and is_fenced(beat_now, epoch=view.marker.at.epoch):
        # Its lag is that of where it stands, not of where the stream does.
        writer, lag = replace(writer, fenced=True), None
        problems.insert(0, _fenced(spec.name, beat_now, view.marker))
    silent = None
    if lag is None and view.marker is not None:
        lag, silent = _ask_kafka(spec, view.marker)
        problems += [silent] if silent else []
    waits = bool(outage or silent or (stall and stall.kind is StallKind.OFFSETS))
    return StreamStatus(
        name=spec.name,
        table=spec.table.identifier,
        desired=str(view.desired.mode) if view.desired else None,
        desired_reason=(view.desired.reason or None) if view.desired else None,
        writer=writer,
        epoch=at.epoch,
        batch=at.batch,
        lag=lag,
        in_transactions=beat_now.in_transactions if beat_now else 0,
        backpressure_ms=beat_now.backpressure_ms if beat_now and not waits else None,
        last_commit_at_ms=at.last_commit_at_ms,
        watermark_ms=at.watermark_ms,
        snapshot_id=at.snapshot_id,
        table_exists=view.exists,
        rows=view.rows,
        problems=_each_once((*problems, *view.problems)),
        stall=stall,
        throttle=throttle,
        distribution=beat_now.distribution if beat_now else None,
        undeclared=view.undeclared,
        notices=_notices(spec, observation),
        changes=view.changes,
        flow=view.flow,
        replayed=changes_of(view.replay.summary) if view.replay else {},
        replayed_at_ms=view.replay.timestamp_ms if view.replay else None,
        routed=view.marker is not None and view.marker.routed is not None,
        amiss=view.amiss,
        desired_at_ms=(view.desired.at_ms or None) if view.desired else None,
        commit_epoch=view.commit_epoch,
        restarting=bool(observation and view.desired and is_restarting(observation, view.desired)),
    )


def _fenced(stream: str, beat: Heartbeat, marker: Marker) -> str:
    return (
        f"the writer of epoch {beat.epoch} is fenced: a reset or another writer began epoch {marker.at.epoch}. It "
        "commits nothing more, and ends with 13 (Fenced) within a minute, or after the batch that it stages. After a "
        f"reset, `frazil resume {stream}` starts the next one once this one has ended; in the foreground, "
        f"`frazil run {stream}`"
    )


def _each_once(problems: tuple[str, ...]) -> tuple[str, ...]:
    """Without what the writer's last words say already: the table may still have what it ended for."""
    said = problems[0] if problems else ""

    def is_said(problem: str) -> bool:
        words = cut(problem.partition(": ")[2])
        return bool(words) and words in said

    return (*problems[:1], *(one for one in problems[1:] if not is_said(one)))


def _notices(spec: StreamSpec, observation: Observation | None) -> tuple[str, ...]:
    """Of a writer that runs or has ended, and whether a running one has an older declaration than the file."""
    beat = observation.heartbeat if observation else None
    if observation is None or beat is None:
        return ()
    if not observation.process.is_alive or beat.spec_fingerprint == spec.fingerprint():
        return beat.notices
    return (*beat.notices, _older_declaration(observation.process))


def _older_declaration(process: ProcessState) -> str:
    how = (
        "no supervisor restarts a writer in the foreground: end it (Ctrl-C) and run it again to take the new one over"
        if process is ProcessState.FOREGROUND
        else "its supervisor (Airflow) restarts it after the current batch"
    )
    return f"the running writer was started with another declaration than the file has now; {how}"


def _ask_kafka(spec: StreamSpec, marker: Marker) -> tuple[int | None, str | None]:
    """How many records wait beyond the marker; None, and a reason, if Kafka does not answer at once."""
    from frazil.kafka.admin import KafkaOffsets  # noqa: PLC0415 - librdkafka, which few calls need
    from frazil.kafka.log_watch import find_cut  # noqa: PLC0415
    from frazil.kafka.retention import check_no_gap  # noqa: PLC0415
    from frazil.kafka.truncation import check_not_cut  # noqa: PLC0415

    try:
        properties = {**kafka_properties(spec, os.environ), "log_level": "0"}
        with KafkaOffsets(properties, spec.source.reads, timeout_s=KAFKA_ANSWERS_WITHIN_S) as kafka:
            topics = kafka.describe()
            check_same_source(marker.source, topics.identity, stream=spec.name)
            ends, first = kafka.ends(topics.partitions), kafka.earliest(topics.partitions)
            check_no_gap(marker.offsets, first, stream=spec.name)
            read = {tp: offset for tp, offset in marker.offsets.items() if tp in ends}
            cut = find_cut(kafka, read, marker.leader_epochs, pause=lambda: None)
            check_not_cut(read, cut, stream=spec.name)
            starts = {**first, **read}
    except FrazilError as error:
        return None, f"{LAG_UNKNOWN}: {_words(error)}"
    return sum(max(end - starts[tp], 0) for tp, end in ends.items()), None


def _position(view: TableView, beat: Heartbeat | None) -> StreamPosition:
    if (marker := view.marker) is not None:
        return StreamPosition(
            marker.at.epoch, marker.at.batch, view.last_commit_at_ms, marker.watermark_ms, marker.snapshot_id
        )
    if beat is None or view.exists is not None:
        return StreamPosition()
    return StreamPosition(beat.epoch, beat.batch, beat.last_commit_at_ms, beat.watermark_ms, beat.last_commit_snapshot)


def _look_at_table(spec: StreamSpec, *, committed: bool, now_ms: int) -> TableView:
    try:
        table = load_stream_table(spec)
        if table is not None:
            return _view(table, spec, now_ms=now_ms)
        desired = DesiredStore(spec.name, None).read()
        missing = missing_table(spec, committed=committed)
        problems = (missing,) if missing else ()
        return TableView(exists=False, desired=desired, problems=problems)
    except Exception as error:  # catalogs raise what their clients raise; the other streams go on
        _raise_if_outdated(error)
        return TableView(exists=None, problems=(f"the table cannot be read: {_words(error)}",))


def _behind(spec: StreamSpec, marker: Marker) -> tuple[list[str], dict[str, str]]:
    """Which tables of the route lack rows that home has, or were dropped, and why; and all of them in few words."""
    from frazil.commit.opened import read_stream  # noqa: PLC0415 - with the committer, which few streams need here
    from frazil.stream.dropped_tables import not_with_home  # noqa: PLC0415 - as above

    try:
        tables = read_stream(spec).tables
        behind, dropped = not_with_home(spec, tables, marker)
        now_ms = tables.clock_ms()
        lacking = [b for b in behind if not b.is_coming(now_ms)]
        found = [*map(str, lacking), *map(str, dropped)]
        amiss = {b.target: b.amiss for b in lacking} | {d.target: str(d.amiss) for d in dropped}
    except Exception as error:  # as above: catalogs raise what their clients raise
        _raise_if_outdated(error)
        return [f"the tables of its route cannot be read: {_words(error)}"], {}
    more = (
        [f"{len(found) - ROUTED_NAMED:,} more lack rows or were dropped: `frazil route {spec.name}`"]
        if len(found) > ROUTED_NAMED
        else []
    )
    return [*found[:ROUTED_NAMED], *more], amiss


def _view(table: Table, spec: StreamSpec, *, now_ms: int) -> TableView:
    problems: list[str] = []
    marker, amiss = None, dict[str, str]()
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
        problems.append(_words(error))
    if marker is not None and marker.routed is not None:
        behind, amiss = _behind(spec, marker)
        problems += behind
    desired = None
    try:
        desired = DesiredStore(spec.name, table).read()
    except Exception as error:  # as above: storage raises what its clients raise
        _raise_if_outdated(error)
        problems.append(f"the desired state cannot be read: {_words(error)}")
    return TableView(
        exists=True,
        marker=marker,
        last_commit_at_ms=last_commit_ms(table.metadata, spec.name),
        rows=_rows(table.metadata),
        commit_epoch=last_epoch(table.metadata, spec.name),
        desired=desired,
        problems=tuple(problems),
        undeclared=undeclared,
        changes=_changes(table.metadata, spec.name) if spec.mode == "upsert" or spec.dedupe else {},
        flow=flow_of(table.metadata, spec, now_ms=now_ms),
        replay=last_replay(table.metadata, spec.name) if spec.mode == "upsert" else None,
        amiss=amiss,
    )


def _changes(metadata: TableMetadata, stream: str) -> dict[str, int]:
    """By the summary of the newest batch that has not expired."""
    for snapshot in reversed(metadata.snapshots):
        told = snapshot.summary
        counts = changes_of(told)
        if told and told.get("frazil.stream") == stream and counts:
            return counts
    return {}


def _rows(metadata: TableMetadata) -> int | None:
    head = head_of(metadata)
    return live_rows(head) if head else 0


def _raise_if_outdated(error: Exception) -> None:
    """Nothing is known of a table, where what would read it was replaced under this process."""
    if outdated(error):
        raise error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
