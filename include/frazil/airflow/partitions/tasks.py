"""The tasks of a table's partition DAG, which need PyIceberg but not Spark. A window is signalled once, by a row in
`frazil.signals`. If Airflow did not get the event, a later run sends it again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Connection, TaskInstanceState
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException, AirflowSkipException
from pyiceberg.catalog import Catalog

from frazil import clock
from frazil.airflow.dag_ids import partition_asset, reopened_asset
from frazil.airflow.declared_streams import streams_feeding
from frazil.airflow.gauges import export_windows
from frazil.airflow.page.address import docs_folder, docs_url
from frazil.airflow.spark import SPARK_CONNECTION
from frazil.airflow.untrusted_values import (
    AssetStore,
    SentSignals,
    extra_text,
    parse_signals,
    read_sent_signals,
    stored_mapping,
    stored_number,
)
from frazil.errors import SpecError
from frazil.partitions.completeness import MAX_WINDOWS, format_time
from frazil.partitions.windows import Window
from frazil.quality.gate import GateRequest, find_suite, read_suite, run_gates
from frazil.signals.completion import Assessment, GateOutcome, RunGates, assess_group, assess_table, signal_windows
from frazil.signals.signal_table import Signal, SignalState, TableSignals
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import is_template_view, partitions_dag_id
from frazil.table.branches import head_of
from frazil.table.catalogs import open_existing_catalog
from frazil.table.lost_tables import open_stream_catalog

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

HELD_REPORTED_TO_KEY = "frazil.published-to"
"""The store's key for the number of the last signal up to which held windows were reported."""
MAX_GATED_WINDOWS = 12
"""Maximum number of windows that one run gates, one after the other."""
MAX_EVENTS = 100
"""Maximum number of a task's events. Each has the facts about all windows: 100 events take 2 MB in the database."""
MAX_GROUP_WINDOWS = 2_000
GATED_KEY = "gated"
"""The store's key for whether the table's suite had expectations when it was last read."""
GATE_TIMEOUT_S = 300.0
"""Timeout for the gate of one window; a window of 1 M rows takes less than a minute."""


def find_work(table: str, streams: Path, context: Context) -> tuple[int, list[str]]:
    """Return the last signal's number, and the tasks with work. In a new Airflow, existing signals count as sent."""
    signals = _load_signals(table, streams)
    for asset in _assets_of(table).values():
        mark_current_as_sent(signals, asset, context)
    store = context["asset_state_store"][partition_asset(table)]
    if stored_number(store, HELD_REPORTED_TO_KEY, limit=signals.number) is None:
        store.set(HELD_REPORTED_TO_KEY, signals.number if store.get(HELD_REPORTED_TO_KEY) is None else 0)
    return signals.number, _tasks_with_work(signals, context)


def check_completeness(table: str, streams: Path, *, after: int, reopened: bool = True) -> tuple[bool, str]:
    """Return True if a window is complete or a signal has a number above `after`; otherwise False, and the reason."""
    specs = streams_feeding(streams, table)
    catalog = open_existing_catalog(specs[0].table.catalog)
    assessments = _assess(catalog, specs, reopened=reopened)
    number = TableSignals.load(catalog, table).number
    if any(assessment.has_work for assessment in assessments) or number > after:
        return True, ""
    if assessments:
        return False, assessments[0].decision.reason
    if is_template_view(specs[0]):
        return False, "no table has a window that may be complete"
    return False, f"the table {table} does not exist yet: its writer has not committed"


def _assess(
    catalog: Catalog, specs: Sequence[StreamSpec], *, limit: int = MAX_WINDOWS, reopened: bool = True
) -> list[Assessment]:
    if is_template_view(specs[0]):
        limit = MAX_GROUP_WINDOWS if limit == MAX_WINDOWS else limit
        return assess_group(catalog, specs[0], limit=limit, reopened=reopened)
    assessment = assess_table(catalog, specs, limit=limit)
    return [] if assessment is None else [assessment]


def signal_complete_windows(table: str, streams: Path, context: Context, *, expectations: Path | None) -> list[str]:
    """Signal complete windows, and return the downstream tasks that have something to do."""
    specs = streams_feeding(streams, table)
    catalog = open_stream_catalog(specs[0])
    gates = find_gate(expectations, table, context["asset_state_store"][partition_asset(table)])
    assessments = _assess(catalog, specs, limit=MAX_GATED_WINDOWS if gates else MAX_WINDOWS)
    sent = signal_windows(catalog, *assessments, clock_ms=clock.now_ms(), gates=gates)
    for s in sent:
        word = "is held by its quality gate" if not s.sent else "is complete" if s.revision == 1 else "was reopened"
        log.log(
            logging.INFO if s.sent else logging.ERROR,
            "%s %s %s: revision %s, %s rows, %s of them late, up to %s dead letters, snapshot %s%s",
            *(s.table, s.partition, word, s.revision, s.rows, s.late_rows, s.dead_letters),
            *(s.snapshot_id, f"; {s.note}" if s.note else ""),
        )
    for waiting in assessments[:MAX_EVENTS]:
        log.info("%s: %s", waiting.signals.table, waiting.decision.reason)
    signals = TableSignals.load(catalog, table)
    for member in signals.members():
        export_windows(member.table, member.cursor)
    return _tasks_with_work(signals, context) if assessments else []


def send(table: str, streams: Path, name: str, context: Context) -> None:
    """Send missing events. Raises AirflowSkipException if none is missing, because a successful task sends an event."""
    asset = _assets_of(table)[name]
    unsent = find_unsent_signals(_load_signals(table, streams), asset, context)
    sending = dict(list(unsent.missing.items())[:MAX_EVENTS])
    if not sending:
        raise AirflowSkipException(f"Airflow already has every event of the asset {asset.name}")
    outlet = context["outlet_events"][asset]
    outlet.add_partitions(list(sending))
    outlet.extra = {key: window_facts(s) for key, s in sending.items()}
    record_sending(sending, unsent.sent, asset, context)


def take_held_signals(table: str, streams: Path, context: Context) -> list[Signal]:
    signals = _load_signals(table, streams)
    context["asset_state_store"][partition_asset(table)].set(HELD_REPORTED_TO_KEY, signals.number)
    return signals.held()


def window_facts(s: Signal) -> dict[str, Any]:
    return {
        "revision": s.revision,
        "rows": s.rows,
        "dead_letters": s.dead_letters,
        "late_rows": s.late_rows,
        "watermark": format_time(s.watermark_us),
        "snapshot_id": s.snapshot_id,
        "sequence_number": s.sequence_number,
        "number": s.number,
        **({"note": s.note} if s.note else {}),
    }


def _load_signals(table: str, streams: Path) -> TableSignals:
    return TableSignals.load(open_stream_catalog(streams_feeding(streams, table)[0]), table)


def _assets_of(table: str) -> dict[str, Asset]:
    return {"complete": partition_asset(table), "reopened": reopened_asset(table)}


def _tasks_with_work(signals: TableSignals, context: Context) -> list[str]:
    missing = [
        name
        for name, asset in _assets_of(signals.table).items()
        if find_unsent_signals(signals, asset, context).missing
    ]
    published_to = (
        stored_number(context["asset_state_store"][partition_asset(signals.table)], HELD_REPORTED_TO_KEY) or 0
    )
    unpublished = any(not s.sent for s in signals.after(published_to))
    return [*missing, *(["held"] if unpublished else [])]


def find_gate(expectations: Path | None, table: str, store: AssetStore) -> RunGates | None:
    """Return a function that gates windows; None without a suite. Raises SpecError if the suite was removed."""
    suite = find_suite(expectations, table) if expectations else None
    if suite is not None:
        if store.get(GATED_KEY) != (gated := bool(read_suite(suite).content["expectations"])):
            store.set(GATED_KEY, gated)
        return partial(_run_gate, suite)
    if expectations is not None and store.get(GATED_KEY) is True:
        raise SpecError(
            f"the quality gate of {table}, {expectations / f'{table}.json'}, is missing, so no window is signalled. "
            'Restore the file. To remove the gate, set `"expectations": []` in the restored file, let '
            f"{partitions_dag_id(table)} run once, then delete the file"
        )
    return None


def _run_gate(suite: Path, assessment: Assessment, windows: Sequence[Window]) -> Mapping[Window, GateOutcome]:
    head = head_of(assessment.table.metadata)
    if head is None:
        return {}
    properties = _spark_properties()
    requests = [
        GateRequest(
            suite=suite,
            catalog=assessment.specs[0].table.catalog,
            table=assessment.signals.table,
            snapshot_id=head.snapshot_id,
            event_time=assessment.specs[0].event_time.column,
            from_us=window.start_us,
            to_us=window.end_us,
            partition=window.key,
            docs=docs_folder(),
            spark=properties,
        )
        for window in windows
    ]
    results = run_gates(requests, timeout_s=GATE_TIMEOUT_S * len(windows))
    gate_results = {}
    for window, result in zip(windows, results, strict=True):
        page = docs_url(result.docs)
        verb = "passes" if result.passed else "fails"
        log.info("%s of %s, %d rows, %s its suite: %s", window, assessment.signals.table, result.rows, verb, page)
        reason = None if result.passed else f"{'; '.join(result.failures)} ({page})"
        gate_results[window] = GateOutcome(result.passed, reason)
    return gate_results


def _spark_properties() -> dict[str, str]:
    try:
        path = extra_text(Connection.get(SPARK_CONNECTION).extra_dejson, "properties-file")
    except AirflowNotFoundException:
        return {}
    if not path or not Path(path).is_file():
        return {}
    lines = [line.strip() for line in Path(path).read_text().splitlines()]
    pairs = [re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}


SENT_TO_KEY = "frazil.sent-to"
"""The store's key for the number of the last signal up to which Airflow has all events."""
SENDING_KEY = "frazil.sending"
"""The store's key for the record of the last task that sent events: see `record_sending`."""
MAX_CLOCK_DIFFERENCE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class UnsentSignals:
    missing: Mapping[str, Signal] = field(default_factory=dict)
    sent: SentSignals = frozenset()
    """Signals after SENT_TO_KEY's number whose events the asset has."""


def mark_current_as_sent(signals: TableSignals, asset: Asset, context: Context) -> None:
    """Mark all signals as sent if the store has no entry yet: a new Airflow installation gets no old events."""
    store: AssetStore = context["asset_state_store"][asset]
    if store.get(SENT_TO_KEY) is None:
        store.set(SENT_TO_KEY, signals.number)
    elif stored_number(store, SENT_TO_KEY, limit=signals.number) is None:
        published = [number for _, number in _list_sent_signals(asset, context, since=None) if number <= signals.number]
        store.set(SENT_TO_KEY, min(published) - 1 if published else signals.number)


def find_unsent_signals(signals: TableSignals, asset: Asset, context: Context) -> UnsentSignals:
    """Store where the next check begins. Raises AirflowException while it is unknown which events were sent."""
    store: AssetStore = context["asset_state_store"][asset]
    new = signals.after(stored_number(store, SENT_TO_KEY) or 0)
    if not new:
        return UnsentSignals()
    since = datetime.fromtimestamp(min(s.signalled_at_ms for s in new) / 1000, UTC) - MAX_CLOCK_DIFFERENCE
    sent = _list_sent_signals(asset, context, since=since)
    numbered = {(signals.event_key(s), s.number): s for s in new}
    missing = signals_to_send(numbered, sent, reopened=asset == reopened_asset(signals.table))
    if not missing:
        store.set(SENT_TO_KEY, signals.number)
    return UnsentSignals(missing, sent & numbered.keys())


def record_sending(sending: Mapping[str, Signal], sent: SentSignals, asset: Asset, context: Context) -> None:
    """Record the signals that this task sends. They count as sent only if the task succeeds."""
    record: dict[str, Any] = {
        "run_id": context["ti"].run_id,
        "task_id": context["ti"].task_id,
        "publishing": [[key, s.number] for key, s in sending.items()],
        "published": sorted(map(list, sent)),
    }
    context["asset_state_store"][asset].set(SENDING_KEY, record)


def signals_to_send(
    signals: Mapping[tuple[str, int], Signal], sent: Collection[tuple[str, int]], *, reopened: bool
) -> dict[str, Signal]:
    """Return each key's newest signal, if unsent. `reopened` selects reopened windows, otherwise all others."""
    newest = {
        key: s
        for (key, number), s in sorted(signals.items(), key=lambda item: item[0][1])
        if s.sent and (s.revision > 1 and s.state is not SignalState.AGAIN) == reopened
    }
    return {key: s for key, s in newest.items() if (key, s.number) not in sent}


def _list_sent_signals(asset: Asset, context: Context, *, since: datetime | None) -> SentSignals:
    """List the signals in Airflow's events of the asset, or in the records of the sending tasks.

    Airflow 3.3 cannot list events if one of them started a run that is still queued. A task writes its record before it
    succeeds, and Airflow publishes its events only afterwards.
    """
    events: Any = context["inlet_events"][asset]
    try:
        return read_sent_signals(events.after(since.isoformat()) if since else events, asset.name)
    except Exception as error:  # AirflowRuntimeError from a server, or what `dag.test()` makes of it
        log.warning(
            "Airflow cannot list the events of the asset %s: %s. Probably a run started by one of them is queued. "
            "Using the records of the tasks that sent the events",
            asset.name,
            error,
        )
        return _read_recorded_signals(asset, context)


def _read_recorded_signals(asset: Asset, context: Context) -> SentSignals:
    record = stored_mapping(context["asset_state_store"][asset], SENDING_KEY)
    published, publishing = parse_signals(record.get("published")), parse_signals(record.get("publishing"))
    run_id, task_id = str(record.get("run_id")), str(record.get("task_id"))
    states = context["ti"].get_task_states(dag_id=context["ti"].dag_id, task_ids=[task_id], run_ids=[run_id])
    state = states.get(run_id, {}).get(task_id)
    if state == TaskInstanceState.SUCCESS:
        return published | publishing
    if publishing and state in {TaskInstanceState.RUNNING, TaskInstanceState.QUEUED, TaskInstanceState.SCHEDULED}:
        raise AirflowException(
            f"cannot determine whether {task_id} of {run_id} sent {len(publishing)} windows to the asset {asset.name}: "
            "the task is not finished. Airflow cannot list the asset's events while a run that one of them started is "
            "queued"
        )
    return published
