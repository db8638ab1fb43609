"""Reads the state of one stream from its run folder on this host, its table and its desired state, without a JVM.

If no writer reports a lag, the lag is computed from Kafka's offsets.
"""

from __future__ import annotations

import os
from dataclasses import replace

from frazil.commit.commit_checks import check_same_source
from frazil.commit.marker import Marker
from frazil.errors import CircuitOpen, Failure, FrazilError, explain, shorten_error
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, StallKind
from frazil.host.launcher import Observation
from frazil.host.local import LocalLauncher
from frazil.host.records import read_notes, read_supervision_times
from frazil.host.supervision import MAX_WATCH_AGE_MS, find_supervision
from frazil.offsets.spans import count_unread
from frazil.spec.model import StreamSpec
from frazil.spec.references import declared_kafka_properties, resolve_kafka_properties
from frazil.spec.units import format_count
from frazil.status.derive import derive_from_decision, drop_repeats, process_problems, refine_state
from frazil.status.freshness import freshness_limit_ms
from frazil.status.state import StreamState
from frazil.status.table import TableReading, read_stream_table
from frazil.supervise.decision import (
    DecisionInput,
    SupervisionPolicy,
    UnreadableState,
    ValidDeclaration,
    error_name,
    get_fresh_heartbeat,
    get_known_lag,
    has_committed,
    is_fenced,
)
from frazil.supervise.decision_rules import RESTARTABLE_EXIT_CODES, decide, exits_without_commit
from frazil.table.unresponsive import Unresponsive
from frazil.timetext import format_utc

KAFKA_TIMEOUT_S = 1.0
LAG_UNKNOWN = "the lag is unknown"
BROKERS = Unresponsive(keep_s=3.0)
ROLLED_BACK = Failure("the table was rolled back to a snapshot before the marker's", about=LAG_UNKNOWN)


def read_stream_state(
    spec: StreamSpec,
    *,
    now_ms: int,
    problem: str | None = None,
    in_full: bool = True,
    catalogs: Unresponsive | None = None,
) -> StreamState:
    """Read the state of one stream. Parts that cannot be read become problems.

    `problem` is the error in its declaration. Without `in_full`, waiting batches are counted instead of Kafka and
    routed tables. `catalogs` limits the wait for the catalog, and remembers those that did not answer.

    Raises only errors that an upgrade of frazil caused.
    """
    folder = run_folder(spec.name)
    try:
        writer = LocalLauncher(spec.name).observe()
        notes, watch = read_notes(folder), read_supervision_times(folder)
    except (OSError, ValueError, TypeError, KeyError) as error:
        view = read_stream_table(spec, committed=False, now_ms=now_ms, in_full=in_full, catalogs=catalogs)
        unread = Failure(f"the run folder {folder} cannot be read: {error!r}")
        stream = replace(view.state, problem=problem, problems=(unread, *view.state.problems))
        return _finish_state(stream, spec, now_ms=now_ms)
    committed = has_committed(writer, spec.table.identifier)
    view = read_stream_table(
        spec,
        committed=committed,
        now_ms=now_ms,
        in_full=in_full,
        catalogs=catalogs,
        has_rejects=bool(writer.exits) and writer.exits[-1].code == CircuitOpen.exit_code,
    )
    observed = DecisionInput(
        writer,
        UnreadableState(problem) if problem else ValidDeclaration(spec.fingerprint()),
        view.desired or UnreadableState(str(next(iter(view.state.problems), ""))),
        SupervisionPolicy.for_stream(spec),
        notes,
        view.fingerprint,
        # The silence of a writer counts only while a supervisor watches it.
        watched_since_ms=watch.returned_at_ms if now_ms - watch.last_ms <= MAX_WATCH_AGE_MS else now_ms,
        away_since_ms=watch.away_since_ms,
        returned_at_ms=watch.returned_at_ms,
    )
    decision = decide(observed, now_ms=now_ms)
    stream = derive_from_decision(replace(view.state, problem=problem), observed, decision, now_ms=now_ms)
    if stream.replaced_exit and not find_supervision(spec, now_ms=now_ms, observed=writer).is_active:
        stream = replace(stream, replaced_exit="")
    stream = _add_writer_report(stream, spec, observed, view, now_ms=now_ms)
    return _finish_state(stream, spec, now_ms=now_ms)


def _finish_state(stream: StreamState, spec: StreamSpec, *, now_ms: int) -> StreamState:
    return refine_state(replace(stream, alive=_has_writer(stream, spec, now_ms=now_ms)), spec, now_ms=now_ms)


def _add_writer_report(
    stream: StreamState, spec: StreamSpec, observed: DecisionInput, view: TableReading, *, now_ms: int
) -> StreamState:
    heartbeat, marker = get_fresh_heartbeat(observed.writer, now_ms=now_ms), view.marker
    problems = process_problems(stream, observed, now_ms=now_ms)
    last, unknown = observed.heartbeat, (None, None, None)
    stall, throttle, outage = (heartbeat.stall, heartbeat.throttle, heartbeat.outage) if heartbeat else unknown
    problems += [stall.failure] if stall else []
    problems += [Failure(reason) for reason in (throttle, outage) if reason]
    writer, lag, silent = stream.writer, get_known_lag(heartbeat) if heartbeat else None, None
    if heartbeat and marker and is_fenced(heartbeat, epoch=marker.key.epoch):
        # Its lag counts from its own position, which is no longer the stream's position.
        writer, lag = replace(writer, fenced=True), None
        problems.insert(0, _explain_fence(spec.name, heartbeat, marker))
    is_unreachable = stall is not None and stall.kind in {StallKind.KAFKA, StallKind.TOPIC}
    if lag is None and marker is not None and view.in_full and not is_unreachable:
        lag, silent = (None, ROLLED_BACK) if stream.rolled_back else fetch_lag(spec, marker)
        problems += [silent] if silent else []
    is_waiting = bool(outage or silent or is_unreachable or (stall and stall.kind is StallKind.OFFSETS))
    stream = replace(
        stream,
        writer=writer,
        lag=lag,
        caught_up_at_ms=last.caught_up_at_ms if last and not (stream.commits_elsewhere or writer.fenced) else None,
        in_transactions=heartbeat.in_transactions if heartbeat else 0,
        backpressure_ms=heartbeat.backpressure_ms if heartbeat and not is_waiting else None,
        throttle=throttle,
        distribution=heartbeat.distribution if heartbeat else None,
        notices=(*_notices(spec, observed.writer, now_ms=now_ms), *_recovery_notices(observed, stream, now_ms=now_ms)),
        unreachable_since_ms=stream.unreachable_since_ms
        or (stall.since_ms if stall is not None and is_unreachable else None),
        problems=drop_repeats((*problems, *stream.problems)),
    )
    if last is None or stream.table_exists is not None:
        return stream
    return replace(
        stream,
        epoch=last.epoch,
        batch=last.batch,
        last_commit_at_ms=last.last_commit_at_ms,
        watermark_ms=last.watermark_ms,
        snapshot_id=last.last_commit_snapshot,
    )


def _has_writer(stream: StreamState, spec: StreamSpec, *, now_ms: int) -> bool | None:
    """Whether a writer runs; None if unknown, because only commits show a writer on another host."""
    if stream.writer.pid is not None:
        return True
    if stream.writer.has_ended and not stream.commits_elsewhere:
        return False
    committed_ms = stream.last_commit_at_ms
    if committed_ms is not None and now_ms - committed_ms <= freshness_limit_ms(spec):
        return True
    unknown = stream.table_exists is None or stream.epoch is not None or stream.writer.state == "unknown"
    return None if unknown or committed_ms is not None else False


def _explain_fence(stream: str, heartbeat: Heartbeat, marker: Marker) -> Failure:
    return Failure(
        f"the writer of epoch {heartbeat.epoch} is fenced: a reset or another writer began epoch {marker.key.epoch}. "
        "It commits nothing more, and exits with 13 (Fenced) within a minute, or after the batch that it stages",
        f"After a reset, `frazil resume {stream}` starts the next writer once this one has ended; in the foreground, "
        f"use `frazil run {stream}`",
    )


def _notices(spec: StreamSpec, observation: Observation, *, now_ms: int) -> tuple[str, ...]:
    heartbeat = observation.heartbeat
    if heartbeat is None:
        return ()
    if not observation.process.is_alive or heartbeat.spec_fingerprint == spec.fingerprint():
        return heartbeat.notices
    replacement = find_supervision(spec, now_ms=now_ms, observed=observation).replacement
    older = f"the running writer was started with an older declaration than the file's current one; {replacement}"
    return (*heartbeat.notices, older)


def _recovery_notices(observed: DecisionInput, stream: StreamState, *, now_ms: int) -> tuple[str, ...]:
    exits, window_ms = observed.exits, observed.policy.crash_window_ms
    if not exits or stream.crashes or not observed.process.is_alive or now_ms - exits[-1].ended_at_ms > window_ms:
        return ()
    if exits[-1].code not in RESTARTABLE_EXIT_CODES or not (row := exits_without_commit(exits, window_ms=window_ms)):
        return ()
    cause = row[0].cause or Failure(error_name(row[0].code))
    notice = f"failed {format_count(len(row), 'time')} before {format_utc(row[0].ended_at_ms)}, and runs again"
    return (f"{notice}: {shorten_error(str(cause))}",)


def fetch_lag(spec: StreamSpec, marker: Marker) -> tuple[int | None, Failure | None]:
    """Return the lag, or why it is unknown. Brokers that did not answer are not asked again for other streams."""
    connection = frozenset(declared_kafka_properties(spec).items())
    try:
        return BROKERS.call(connection, lambda: count_lag(spec, marker)), None
    except FrazilError as error:
        return None, explain(error, LAG_UNKNOWN)


def count_lag(spec: StreamSpec, marker: Marker, *, timeout_s: float = KAFKA_TIMEOUT_S) -> int:
    """Return the number of records after the marker. Raises the errors that keep a writer from continuing there."""
    from frazil.kafka.admin import KafkaAdmin  # librdkafka, which few calls need
    from frazil.kafka.logs import check_no_gap, check_not_truncated, find_truncations

    properties = {**resolve_kafka_properties(spec, os.environ), "log_level": "0"}
    with KafkaAdmin(properties, spec.source.reads, timeout_s=timeout_s) as kafka:
        topics = kafka.describe()
        check_same_source(marker.source, topics.identity, stream=spec.name)
        ends, first = kafka.ends(topics.partitions), kafka.earliest(topics.partitions)
        check_no_gap(marker.offsets, first, stream=spec.name)
        read = {tp: offset for tp, offset in marker.offsets.items() if tp in ends}
        truncated = find_truncations(kafka, read, marker.leader_epochs, pause=lambda: None)
        check_not_truncated(read, truncated, stream=spec.name)
    return count_unread(marker.offsets, first, ends)
