"""How a stream runs, from its run folder on this host, its desired state and its table; no JVM, no Kafka."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil import clock
from frazil.commit.history import ancestors, commit_records
from frazil.commit.journal import JournalStore
from frazil.commit.marker import property_name, read_marker
from frazil.commit.reasons import Reason, reasons_in
from frazil.errors import FrazilError, RegistryUnavailable
from frazil.host.given_up import standing_given_up
from frazil.host.heartbeat import Stall
from frazil.host.launcher import Observation
from frazil.host.launchers import open_launcher
from frazil.host.records import ExitRecord
from frazil.maintenance.alert_rules import stale_after_ms
from frazil.maintenance.stream_rules import RULES_OF_RUN_FOLDER, RULES_OF_TABLE, StreamState
from frazil.spec.model import StreamSpec
from frazil.supervise.liveness import beating, has_committed
from frazil.supervise.observed import Desired, DesiredMode
from frazil.supervise.table_state import TableState
from frazil.table.lost import missing_table
from frazil.table.storage import open_store
from frazil.table.tables import load_stream_table, state_location

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
RECENT_MS = 300_000
"""Rates are means over this time, or over a commit interval that is longer: minutes without a commit have none."""
MAX_ERROR_CHARACTERS = 800
"""Characters of what a writer, or its supervisor, said last."""
MAX_WAITING = 1_000
"""At most this many waiting batches are counted."""


def observe_stream(spec: StreamSpec, problem: str | None, *, now_ms: int, out_of_reach: bool = False) -> StreamState:
    """The state of one stream. Never raises for what is out of reach: that stays unknown.

    Asks nothing of its catalog if that is known to be `out_of_reach`.
    """
    table, reachable = (None, False) if out_of_reach else _table(spec)
    newest = next(commit_records(table.metadata, spec.name), None) if table else None
    committed_ms = newest[0].timestamp_ms if newest else None
    stale_ms = stale_after_ms(spec.maintenance, spec.commit.longest_interval // timedelta(milliseconds=1))
    is_fresh = committed_ms is not None and now_ms - committed_ms <= stale_ms
    writer = _writer(spec.name)
    exits = _fruitless(writer, now_ms=now_ms)
    desired = None if out_of_reach else TableState(clock=clock.now_ms).desired(spec)
    recent_ms = min(max(RECENT_MS, spec.commit.longest_interval // timedelta(milliseconds=1)), HOUR_MS)
    hour, recent = (
        _landed(table.metadata if table else None, spec.name, now_ms=now_ms, within_ms=within_ms)
        for within_ms in (HOUR_MS, recent_ms)
    )
    missing, known = _missing(spec, writer) if table is None and reachable else (None, reachable)
    return StreamState(
        name=spec.name,
        table=spec.table.identifier,
        problem=problem,
        missing=missing,
        wanted=desired.mode is DesiredMode.RUNNING if isinstance(desired, Desired) else None,
        alive=_alive(
            writer,
            newest[0] if newest else None,
            is_fresh=is_fresh,
            may_be_elsewhere=not reachable or (table is not None and property_name(spec.name) in table.properties),
        ),
        ended_at_ms=_ended_at_ms(writer),
        last_words=_last_words(writer),
        given_up=_given_up(spec.name, writer),
        fruitless=len(exits),
        registry=_last_words(writer) if exits and exits[0].code == RegistryUnavailable.exit_code else None,
        stall=_stall(writer, now_ms=now_ms),
        waiting_batches=_waiting(table, spec.name) if table and not is_fresh else 0,
        records=hour.records,
        rejected=hour.rejected,
        stale=hour.stale,
        recent_minutes=recent_ms / 60_000,
        recent_records=recent.records,
        recent_reasons={name: recent.reasons.get(name, Reason(0)) for name in hour.reasons},
        unknown=(*(() if known else RULES_OF_TABLE), *(() if writer else RULES_OF_RUN_FOLDER)),
    )


def _table(spec: StreamSpec) -> tuple[Table | None, bool]:
    """The table, or None if it does not exist or cannot be read; and whether the catalog answered."""
    try:
        return load_stream_table(spec), True
    except Exception as error:  # catalogs raise what their clients raise; the table's own alert reports it
        log.warning("the table of stream %s cannot be read: %r", spec.name, error)
        return None, False


def _missing(spec: StreamSpec, writer: Observation | None) -> tuple[str | None, bool]:
    """Why a table that does not exist is no new one, and whether that is known."""
    try:
        return missing_table(spec, committed=writer is not None and has_committed(writer)), True
    except Exception as error:  # as above
        log.warning("where the table of stream %s would be made is not known: %r", spec.name, error)
        return None, False


def _writer(stream: str) -> Observation | None:
    try:
        return open_launcher(stream).observe()
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("the run folder of stream %s cannot be read: %r", stream, error)
        return None


def _alive(
    writer: Observation | None, newest: Snapshot | None, *, is_fresh: bool, may_be_elsewhere: bool
) -> bool | None:
    """Whether a stream that has no live writer here may be written on another host: its commits tell, and `freshness`
    covers the rest. If there is only a marker, a quiet writer may run.
    """
    if writer is not None and writer.process.is_alive:
        return True
    if writer is not None and writer.launch is not None and not _moved(writer, newest):
        return False
    if is_fresh:
        return True
    return None if may_be_elsewhere or newest is not None or writer is None else False


def _moved(writer: Observation, newest: Snapshot | None) -> bool:
    """Whether another host's writer has committed since the last one on this host ended."""
    if newest is None or not writer.exits:
        return False
    ours = writer.heartbeat is not None and writer.heartbeat.last_commit_snapshot == newest.snapshot_id
    return not ours and newest.timestamp_ms > writer.exits[-1].ended_at_ms


def _ended_at_ms(writer: Observation | None) -> int | None:
    """When the latest launch on this host ended, or beat last."""
    if writer is None:
        return None
    beats = [writer.heartbeat.written_at_ms] if writer.heartbeat else []
    return max([*beats, *(end.ended_at_ms for end in writer.exits[-1:])], default=None)


def _last_words(writer: Observation | None) -> str:
    """What the writer that ended last on this host ended with; its heartbeat says it before its exit is recorded."""
    if writer is None:
        return ""
    end, beat = next(reversed(writer.exits), None), writer.heartbeat
    if beat is not None and beat.error and (end is None or beat.written_at_ms > end.ended_at_ms):
        error: str | None = beat.error
    else:
        error = end.error if end is not None else None
    return f"The last one said: {' '.join(error.split())[:MAX_ERROR_CHARACTERS]}." if error else ""


def _given_up(stream: str, writer: Observation | None) -> str | None:
    try:
        given_up = standing_given_up(stream, writer) if writer else None
    except (OSError, ValueError, TypeError) as error:
        log.warning("the supervisor's notes on stream %s cannot be read: %r", stream, error)
        return None
    return " ".join(given_up.reason.split())[:MAX_ERROR_CHARACTERS] if given_up else None


def _stall(writer: Observation | None, *, now_ms: int) -> Stall | None:
    beat = beating(writer, now_ms=now_ms) if writer else None
    return beat.stall if beat else None


def _fruitless(writer: Observation | None, *, now_ms: int) -> list[ExitRecord]:
    """How many of the newest consecutive ends, within an hour, were without a commit and without a request to stop.

    Zero once the running writer has committed, or has nothing to commit and has lived longer than each of them. Only
    times of this host are compared.
    """
    if writer is None:
        return []
    launch, beat = writer.launch, writer.heartbeat
    if writer.process.is_alive and launch and beat and (beat.last_commit_at_ms or 0) > launch.launched_at_ms:
        return []

    def belongs(end: ExitRecord) -> bool:
        return now_ms - end.ended_at_ms <= HOUR_MS and not end.committed and end.stopped_for is None

    row = list(takewhile(belongs, (end for end in reversed(writer.exits) if end.is_supervised)))
    if writer.process.is_alive and launch and beat and beat.lag == 0:
        longest_ms = max((end.ended_at_ms - end.started_at_ms for end in row), default=0)
        return row if now_ms - launch.launched_at_ms <= longest_ms else []
    return row


@dataclass(slots=True)
class _Landed:
    """What a stream committed within some time."""

    records: int = 0
    """Dead letters included."""
    rejected: int = 0
    stale: int = 0
    reasons: dict[str, Reason] = field(default_factory=dict)


def _landed(metadata: TableMetadata | None, stream: str, *, now_ms: int, within_ms: int) -> _Landed:
    found = _Landed()
    snapshots = ancestors(metadata) if metadata else ()
    for snapshot in takewhile(lambda s: now_ms - s.timestamp_ms <= within_ms, snapshots):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if said.get("frazil.stream") == stream and "frazil.records" in said:
            dead = int(said.get("frazil.rejected", 0))
            found.records += int(said["frazil.records"]) + dead
            found.rejected += dead
            found.stale += int(said.get("frazil.stale", 0))
            for name, reason in reasons_in(said).items():
                found.reasons[name] = found.reasons.get(name, Reason(0)) + reason
    return found


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
