"""What the health task does, in its own process: PyIceberg alone, no Spark."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from frazil.airflow.declared import declared_streams
from frazil.errors import FrazilError
from frazil.maintenance.alerts import Alert, AlertState, AlertStates, Step, step
from frazil.maintenance.health import TableHealth
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import MaintainedTable, maintained_tables
from frazil.table.catalogs import load_catalog

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Tables that are measured together: a catalog that does not answer costs its timeout once."""
UNMEASURED = "unmeasured"
"""The rule of a table that cannot be measured: it fires at once, for none of the others can."""


class Store(Protocol):
    """Airflow's store of an asset, whose values are JSON."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...


def measure_all(streams: Path, store: Store) -> dict[str, list[dict[str, Any]]]:
    """Measure the tables of all sound declarations, and step their alerts, whose states `store` keeps by table.

    The alerts that `fired` and that `resolved` now, and all that are `active`.
    """
    tables = maintained_tables(found.spec for found in declared_streams(streams) if found.spec is not None)
    now_ms = time.time_ns() // 1_000_000
    changes: dict[str, list[dict[str, Any]]] = {"fired": [], "resolved": [], "active": []}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for table, found in zip(tables, pool.map(partial(_measured, now_ms=now_ms), tables), strict=True):
            if found is None:
                continue
            before = AlertStates.from_json(store.get(table.identifier))
            if isinstance(found, str):
                made = _unmeasured(before, table.identifier, found, now_ms)
            else:
                made = step(before, found, table.settings, now_ms=now_ms)
            store.set(table.identifier, made.states.to_json())
            for name, listed in changes.items():
                listed += [asdict(alert) for alert in getattr(made, name)]
    for name, level in (("active", logging.WARNING), ("resolved", logging.INFO)):
        for alert in changes[name]:
            log.log(level, "%s: %s", name, alert["sentence"])
    return changes


def _measured(table: MaintainedTable, *, now_ms: int) -> TableHealth | str | None:
    """The table's health, None where there is no table, or why it cannot be known."""
    try:
        found = measure(load_catalog(table.catalog), table, now_ms=now_ms, ask_kafka=True)
    except Exception as error:  # whatever a catalog, a storage or a network raises: the other tables are measured
        return f"{type(error).__name__}: {error}" if isinstance(error, FrazilError) else repr(error)
    log.info("%s: %s", table.identifier, found or "there is no table yet")
    return found


def _unmeasured(before: AlertStates, table: str, problem: str, now_ms: int) -> Step:
    """All that stood stands; what comes on top is that nothing is known."""
    was = before.rules.get(UNMEASURED)
    states = {**before.rules, UNMEASURED: was or AlertState(now_ms, active=True)}
    sentence = f"{table} cannot be measured, and none of its alerts can fire: {problem}"
    alert = Alert(UNMEASURED, table, problem, states[UNMEASURED].since_ms, sentence)
    return Step(AlertStates(states), () if was else (alert,), (), (alert,))
