"""Finds which signals Airflow's assets have received, and which are missing.

Normally Airflow's list of an asset's events shows this. But Airflow 3.3 fails to list events if one of them started a
run that is still queued, for example because its DAG is paused. In that case, the records of sending tasks are used:
they are written before a task succeeds, and Airflow publishes the task's events when it succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, TaskInstanceState
from airflow.sdk.exceptions import AirflowException

from frazil.airflow.assets import reopened_asset
from frazil.airflow.untrusted_values import (
    AssetStore,
    SentSignals,
    parse_signals,
    read_sent_signals,
    stored_mapping,
    stored_number,
)
from frazil.signals.signal import Signal, SignalState
from frazil.signals.signal_table import TableSignals

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

SENT_TO_KEY = "frazil.sent-to"
"""The key of a signal's number in the asset's store. Airflow has the events of all signals up to this number."""
SENDING_KEY = "frazil.sending"
"""The key of a record in the same store. It has the signals that the last sending task sends if it succeeds. It also
has the signals after SENT_TO_KEY's number that were sent before.
"""
MAX_CLOCK_DIFFERENCE = timedelta(days=1)
"""Maximum difference between the clocks of a worker and of Airflow's server. Events are searched from this much before
their signal.
"""


@dataclass(frozen=True, slots=True)
class UnsentSignals:
    """The signals that one asset has not received."""

    missing: Mapping[str, Signal] = field(default_factory=dict)
    """The signals by the partition key of their event."""
    sent: SentSignals = frozenset()
    """Signals after SENT_TO_KEY's number that the asset has received."""


def mark_current_as_sent(signals: TableSignals, asset: Asset, context: Context) -> None:
    """Mark all current signals of a table as sent, if the asset's state store has no entry for the table yet.

    Otherwise a new Airflow installation would get an event for each old signal. If the stored number is invalid, begin
    with the first event that Airflow has.
    """
    store: AssetStore = context["asset_state_store"][asset]
    if store.get(SENT_TO_KEY) is None:
        store.set(SENT_TO_KEY, signals.number)
    elif stored_number(store, SENT_TO_KEY, limit=signals.number) is None:
        published = [number for _, number in _list_sent_signals(asset, context, since=None) if number <= signals.number]
        store.set(SENT_TO_KEY, min(published) - 1 if published else signals.number)


def find_unsent_signals(signals: TableSignals, asset: Asset, context: Context) -> UnsentSignals:
    """Return the signals that an asset has not received. If it has received all, the next check begins after them.

    Raises AirflowException if it is currently unknown which signals the asset has received.
    """
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
    """Record the signals that this task sends to an asset if it succeeds, and the signals that were sent before."""
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
    """Return the signals to send to one asset, by partition key and sorted by number: the newest signal of each key.

    `signals` are by partition key and number. `sent` has the keys and numbers of Airflow's events. Signals that an
    operator requested again go to the first asset whatever their revision, because the first asset's consumers missed
    them.
    """
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
        problem = (
            "Airflow cannot list the events of the asset %s, probably because a run that they started is queued. "
            "The records of the sending tasks are used instead: %s"
        )
        log.warning(problem, asset.name, error)
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
            f"it is unknown whether {task_id} of {run_id} sent {len(publishing)} windows to the asset {asset.name}: "
            "the task "
            "runs again, and Airflow cannot list the asset's events while a run that they started is queued"
        )
    return published
