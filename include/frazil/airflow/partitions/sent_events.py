"""Finds the signals whose events Airflow has, in Airflow's list of an asset's events. Airflow 3.3 cannot list events if
one of them started a run that is still queued. Then frazil uses the records of the sending tasks instead. A task writes
its record before it succeeds, and Airflow publishes its events only afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, TaskInstanceState
from airflow.sdk.exceptions import AirflowException

from frazil.airflow.dag_ids import reopened_asset
from frazil.airflow.untrusted_values import (
    AssetStore,
    SentSignals,
    parse_signals,
    read_sent_signals,
    stored_mapping,
    stored_number,
)
from frazil.signals.signal_table import Signal, SignalState, TableSignals

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

SENT_TO_KEY = "frazil.sent-to"
"""The store's key for a signal's number: Airflow has the events of all signals up to this number."""
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
    """The signals count as sent only if the task succeeds."""
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
