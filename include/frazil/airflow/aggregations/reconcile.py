"""Finds complete days that were never aggregated, and requests them. Compares DAG runs with the signals table. Airflow
loses the events of a paused DAG. It also loses partial roll-ups when a partition mapper changes or a DAG disappears.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, DagRunState
from airflow.sdk.exceptions import AirflowSkipException

from frazil import clock
from frazil.aggregate.day_input import WaitingDay, find_open_day, find_waiting_days, select_overdue_days
from frazil.aggregate.spec import find_aggregation, parse_day
from frazil.airflow.dag_ids import AGAIN_PREFIX, again_asset, partition_asset
from frazil.airflow.untrusted_values import AssetStore, stored_mapping, stored_text
from frazil.errors import SpecError
from frazil.table.catalogs import open_existing_catalog

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

FIRST_DAY_KEY = "frazil.first-day"
"""The store's key for the first day that is reconciled. Earlier days run only on request."""
REQUESTED = "asked for"
Runs = Mapping[str, Sequence[tuple[str, int]]]
"""The runs and requests of each day, each with its state (or REQUESTED) and start time (ms)."""
MAX_CLOCK_DIFFERENCE = timedelta(days=1)
REQUESTED_DAYS_KEY = "frazil.requested-days"
"""The store's key for the time of each day's last request, in ms. Read only if Airflow cannot list events."""


def reconcile(name: str, aggregations: Path, dag_id: str, context: Context) -> None:
    spec, asset = find_aggregation(aggregations, name), again_asset(name)
    catalog, store = open_existing_catalog(spec.catalog), context["asset_state_store"][asset]
    first = read_first_day(store)
    if first is None:
        if (opened := find_open_day(catalog, spec)) is None:
            raise AirflowSkipException(f"no window of {spec.source} has been signalled yet")
        store.set(FIRST_DAY_KEY, str(opened))
        first = opened
    now_ms = clock.now_ms()
    # This is half of the declared time. The run has the other half before an alert fires.
    late = select_overdue_days(find_waiting_days(catalog, spec, first=first), within=spec.within / 2, now_ms=now_ms)
    if not late:
        raise AirflowSkipException(f"all days of {name} that were complete {spec.within / 2} ago are aggregated")
    since = datetime.fromtimestamp(min(w.since_ms for w in late) / 1000, UTC) - MAX_CLOCK_DIFFERENCE
    runs = _list_runs(dag_id, [asset, partition_asset(spec.source)], since, context)
    requested_before = _read_earlier_requests(store, late)
    if runs is None:
        if unfinished := context["ti"].get_dr_count(dag_id, states=[DagRunState.QUEUED, DagRunState.RUNNING]):
            raise AirflowSkipException(
                f"cannot determine the days of {unfinished} unfinished runs of {dag_id}: Airflow cannot list an "
                "asset's events while a run started by one of them is queued"
            )
        # The queued run may belong to another, paused DAG. A day whose run failed is then requested again.
        runs = {day: [(REQUESTED, at_ms)] for day, at_ms in requested_before.items()}
    requested = find_days_to_request(late, runs, requested_after_ms=now_ms - spec.within // timedelta(milliseconds=1))
    if not requested:
        raise AirflowSkipException(f"all {len(late)} overdue days were already requested, or have a run of {dag_id}")
    for request in requested:
        log.warning(
            "%s: %s is complete (revisions %s) but not aggregated: requesting it", name, request.day, request.revisions
        )
    store.set(REQUESTED_DAYS_KEY, {**requested_before, **{str(request.day): now_ms for request in requested}})
    outlet = context["outlet_events"][asset]
    outlet.add_partitions([str(request.day) for request in requested])
    outlet.extra = {str(request.day): {"revisions": request.revisions} for request in requested}


def find_days_to_request(waiting: Iterable[WaitingDay], runs: Runs, *, requested_after_ms: int) -> list[WaitingDay]:
    """Return the waiting days to request: those without a run in progress, and without a failed run or a request
    since the day's newest signal. Ignores requests before `requested_after_ms`.
    """

    def is_covered(day: WaitingDay, state: str, at_ms: int) -> bool:
        if state in {DagRunState.QUEUED, DagRunState.RUNNING}:
            return True
        if state == REQUESTED:
            return at_ms >= max(day.since_ms, requested_after_ms)
        return state == DagRunState.FAILED and at_ms >= day.since_ms

    return [day for day in waiting if not any(is_covered(day, *run) for run in runs.get(str(day.day), ()))]


def read_first_day(store: AssetStore) -> date | None:
    text = stored_text(store, FIRST_DAY_KEY)
    try:
        return parse_day(text) if text else None
    except SpecError:
        log.warning("ignoring %s in Airflow's store, because it is not a day: %.100r", FIRST_DAY_KEY, text)
        return None


def _read_earlier_requests(store: AssetStore, waiting: Iterable[WaitingDay]) -> dict[str, int]:
    days, stored = {str(request.day) for request in waiting}, stored_mapping(store, REQUESTED_DAYS_KEY)
    return {day: at_ms for day, at_ms in stored.items() if day in days and isinstance(at_ms, int)}


def _list_runs(dag_id: str, assets: Iterable[Asset], since: datetime, context: Context) -> Runs | None:
    runs: dict[str, list[tuple[str, int]]] = {}
    for asset in assets:
        events: Any = context["inlet_events"][asset]
        try:
            listed = list(events.after(since.isoformat()))
        except Exception as error:  # AirflowRuntimeError: see frazil.airflow.partitions.tasks
            log.warning("Airflow cannot list the events of the asset %s: %s", asset.name, error)
            return None
        for event in listed:
            if asset.name.startswith(AGAIN_PREFIX) and event.partition_key is not None:
                runs.setdefault(event.partition_key, []).append((REQUESTED, clock.epoch_ms(event.timestamp)))
            for run in event.created_dagruns:
                if run.dag_id == dag_id and run.partition_key is not None:
                    runs.setdefault(run.partition_key, []).append((run.state, clock.epoch_ms(run.start_date)))
    return runs
