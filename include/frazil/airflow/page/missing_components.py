"""Finds Airflow components without a recent heartbeat, for every view and for actions that need one."""

from __future__ import annotations

from airflow.utils.session import create_session

from frazil.airflow.components import last_heartbeats, silent_components
from frazil.airflow.page.airflow_database import read_last_measurement
from frazil.airflow.page.views import CACHE_S, answer_cache
from frazil.operations.page_actions import ComponentHeartbeat, MissingComponent

DATABASE_TIMEOUT_S = 0.2


def find_missing_components() -> tuple[MissingComponent, ...]:
    """Return the components without a recent heartbeat; empty if Airflow's database does not respond."""
    found = answer_cache().fetch_one(
        "Airflow", "components", _fetch_heartbeats, keep_s=CACHE_S, timeout_s=DATABASE_TIMEOUT_S
    )
    if found.value is None or found.at_ms is None:
        return ()
    return silent_components(found.value, at_ms=found.at_ms)


def describe_missing_components() -> tuple[str, ...]:
    found = find_missing_components()
    if not found:
        return ()
    alerts = (
        answer_cache()
        .fetch_one("Airflow", "alerts", read_last_measurement, keep_s=CACHE_S, timeout_s=DATABASE_TIMEOUT_S)
        .value
    )
    return tuple(one.sentence(alerts.at_ms if alerts else None) for one in found)


def _fetch_heartbeats() -> dict[str, ComponentHeartbeat]:
    with create_session() as session:
        return last_heartbeats(session)
