"""Finds Airflow components without a recent heartbeat, for every view and for actions that need one."""

from __future__ import annotations

from airflow.utils.session import create_session

from frazil.airflow.components import last_heartbeats, silent_components
from frazil.airflow.page.known import standing_alerts
from frazil.airflow.page.views import KEEP_S, answers
from frazil.operations.silence import ComponentHeartbeat, MissingComponent

MAX_WAIT_S = 0.2
"""Seconds for which an answer of Airflow's database is awaited."""


def silent_now() -> tuple[MissingComponent, ...]:
    """Return the components without a recent heartbeat. Empty if Airflow's database does not respond."""
    found = answers().one("Airflow", "components", _fetch, keep_s=KEEP_S, within_s=MAX_WAIT_S)
    if found.value is None or found.at_ms is None:
        return ()
    return silent_components(found.value, at_ms=found.at_ms)


def sentences() -> tuple[str, ...]:
    """Return a sentence for each component without a recent heartbeat."""
    found = silent_now()
    if not found:
        return ()
    alerts = answers().one("Airflow", "alerts", standing_alerts, keep_s=KEEP_S, within_s=MAX_WAIT_S).value
    return tuple(one.sentence(alerts.at_ms if alerts else None) for one in found)


def _fetch() -> dict[str, ComponentHeartbeat]:
    with create_session() as session:
        return last_heartbeats(session)
