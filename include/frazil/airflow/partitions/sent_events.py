"""Finds which signals Airflow's assets have received, and which are missing.

The events themselves show it. But Airflow 3.3 refuses to list events if one of them started a run that is still queued
(its answer has no place for a run without a start), and a paused DAG keeps such a run forever. Then the notes count
that sending tasks wrote before they succeeded, because their events went out with their success.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, TaskInstanceState
from airflow.sdk.exceptions import AirflowException

from frazil.airflow.assets import reopened_asset
from frazil.airflow.untrusted import SentSignals, Store, published_pairs, sent_in, stored_mapping, stored_number
from frazil.signals.signal import Signal, SignalState
from frazil.signals.signal_table import TableSignals

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

SENT_TO = "frazil.sent-to"
"""Key in Airflow's store of an asset: the number of the signal up to which all are among Airflow's events."""
SENDING = "frazil.sending"
"""Signals sent after that: by a task of a run that may have failed, and before it."""
CLOCKS_APART = timedelta(days=1)
"""Largest difference between the clocks of a worker and of Airflow's server, when searching a signal's events."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """Signals that are missing from one asset."""

    missing: tuple[Signal, ...] = ()
    sent: SentSignals = frozenset()
    """Signals after SENT_TO that the asset has."""


def meet(signals: TableSignals, asset: Asset, context: Context) -> None:
    """Begin with the table's current signals: an Airflow that meets a table receives nothing older.

    If its store no longer has what was sent, begin with its first event instead.
    """
    store: Store = context["asset_state_store"][asset]
    if store.get(SENT_TO) is None:
        store.set(SENT_TO, signals.number)
    elif stored_number(store, SENT_TO, limit=signals.number) is None:
        published = [number for _, number in _published(asset, context, since=None) if number <= signals.number]
        store.set(SENT_TO, min(published) - 1 if published else signals.number)


def unsent(signals: TableSignals, asset: Asset, context: Context) -> Unsent:
    """An asset's signals that Airflow does not have; if there are none, the next check begins after them.

    Raises AirflowException if that is currently unknown.
    """
    store: Store = context["asset_state_store"][asset]
    new = signals.after(stored_number(store, SENT_TO) or 0)
    if not new:
        return Unsent()
    since = datetime.fromtimestamp(min(s.signalled_at_ms for s in new) / 1000, UTC) - CLOCKS_APART
    sent = _published(asset, context, since=since)
    missing = to_send(new, sent, reopened=asset == reopened_asset(signals.table))
    if not missing:
        store.set(SENT_TO, signals.number)
    return Unsent(tuple(missing), sent & {(s.partition, s.number) for s in new})


def write_down(sending: Collection[Signal], sent: SentSignals, asset: Asset, context: Context) -> None:
    """Record which signals this task will send to an asset if it succeeds, and which were sent before."""
    record: dict[str, Any] = {
        "run_id": context["ti"].run_id,
        "task_id": context["ti"].task_id,
        "telling": [[s.partition, s.number] for s in sending],
        "published": sorted(map(list, sent)),
    }
    context["asset_state_store"][asset].set(SENDING, record)


def to_send(signals: Iterable[Signal], sent: Collection[tuple[str, int]], *, reopened: bool) -> list[Signal]:
    """The signals of one asset that Airflow does not have, by number: the newest of each window, as keys have one
    event.

    `sent` are the signals among Airflow's events, by partition key and number. Requested repetitions go to the first
    asset whatever their revision, because its consumers missed them.
    """
    newest = {
        s.partition: s
        for s in sorted(signals, key=lambda s: s.number)
        if s.sent and (s.revision > 1 and s.state is not SignalState.AGAIN) == reopened
    }
    return [s for s in newest.values() if (s.partition, s.number) not in sent]


def _published(asset: Asset, context: Context, *, since: datetime | None) -> SentSignals:
    events: Any = context["inlet_events"][asset]
    try:
        return sent_in(events.after(since.isoformat()) if since else events, asset.name)
    except Exception as error:  # AirflowRuntimeError from a server, or what `dag.test()` makes of it
        log.warning(
            "Airflow does not list the events of the asset %s, as it does not while a run that they started is "
            "queued. What the sending tasks wrote down counts: %s",
            asset.name,
            error,
        )
        return _written_down(asset, context)


def _written_down(asset: Asset, context: Context) -> SentSignals:
    record = stored_mapping(context["asset_state_store"][asset], SENDING)
    published, telling = published_pairs(record.get("published")), published_pairs(record.get("telling"))
    run_id, task_id = str(record.get("run_id")), str(record.get("task_id"))
    states = context["ti"].get_task_states(dag_id=context["ti"].dag_id, task_ids=[task_id], run_ids=[run_id])
    state = states.get(run_id, {}).get(task_id)
    if state == TaskInstanceState.SUCCESS:
        return published | telling
    if telling and state in {TaskInstanceState.RUNNING, TaskInstanceState.QUEUED, TaskInstanceState.SCHEDULED}:
        raise AirflowException(
            f"whether {task_id} of {run_id} told the asset {asset.name} of {len(telling)} windows is not known while "
            "it runs again and Airflow does not list the asset's events: a run that they started is queued"
        )
    return published
