"""The code of the health task, which needs PyIceberg but not Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frazil import clock
from frazil.airflow.aggregations.reconcile import FIRST_DAY_KEY, read_first_day
from frazil.airflow.audits.findings import read_findings, read_last_audits
from frazil.airflow.declared_streams import declared_streams
from frazil.airflow.gauges import export_health
from frazil.airflow.health.subjects import (
    FailedRuns,
    IsPaused,
    RouteFindings,
    StoredState,
    build_watched_subjects,
    read_subjects,
)
from frazil.airflow.untrusted_values import AssetStore, stored_mapping, stored_names
from frazil.errors import error_text
from frazil.maintenance.alerts import (
    NO_LONGER_WATCHED,
    AlertStates,
    AlertStep,
    Reading,
    evaluate_readings,
    evaluate_table_rules,
    mark_reported_together,
)
from frazil.maintenance.due import find_due_actions
from frazil.maintenance.health import TableHealth
from frazil.maintenance.measure import LagQuery, measure
from frazil.maintenance.tables import MaintainedTable, maintained_tables
from frazil.operations.message import MAX_SEPARATE
from frazil.operations.overview import NOT_MEASURED
from frazil.spec.maintenance import Alerts, Maintenance
from frazil.spec.units import format_rounded_bytes
from frazil.table.catalogs import open_existing_catalog
from frazil.table.parallel import DaemonThreads, read_in_parallel

log = logging.getLogger(__name__)

READ_TIMEOUT_S = 15.0
"""Time after which a catalog that has answered no read of a measurement counts as unresponsive."""
ROUTED_TABLES_KEY = "made by routes"
SUBJECTS_KEY = "tables"


def measure_all(  # noqa: PLR0913 - keywords, each with a default
    streams: Path,
    store: AssetStore,
    *,
    aggregations: Path | None = None,
    expectations: Path | None = None,
    again: Mapping[str, AssetStore] = MappingProxyType({}),
    failed: FailedRuns = lambda *_: 0,
    is_paused: IsPaused = lambda _: False,
) -> dict[str, Any]:
    """Measure all tables, read every other subject, and update the alerts that `store` keeps. Alerts of a table that no
    file declares any longer resolve, unless an invalid file might declare the table.
    """
    declared = declared_streams(streams)
    problems = [f"{found.name}: {found.problem}" for found in declared if found.problem and found.spec is None]
    for problem in problems:
        log.warning("cannot watch the table of an invalid declaration: %s", problem)
    tables = {t.name: t for t in maintained_tables(found.spec for found in declared if found.spec is not None)}
    now_ms = clock.now_ms()
    threads = DaemonThreads(1, "tables")
    measured = threads.submit(partial(_measure_tables, tables, now_ms=now_ms))
    with _stored_first_days(again) as first_days, _stored_findings(store) as findings:
        stored = StoredState(first_days, findings, read_findings(store), read_last_audits(store))
        subjects = build_watched_subjects(declared, aggregations, stored, now_ms=now_ms, expectations=expectations)
        readings_by_name = read_subjects(subjects, failed, is_paused, timeout_s=READ_TIMEOUT_S)
    found = measured.result()
    threads.close()
    steps: dict[str, AlertStep] = {}
    for name in dict.fromkeys([*tables, *subjects, *stored_names(store, SUBJECTS_KEY)]):
        alerts, reason = Alerts(), NO_LONGER_WATCHED
        readings: Iterable[Reading] | str = ()
        if name in subjects:
            readings, alerts = readings_by_name[name], subjects[name].alerts
        elif name in tables:
            settings = tables[name].settings
            readings, alerts = _table_readings(found.get(name), settings, now_ms=now_ms), settings.alerts
            reason = NO_LONGER_WATCHED if found.get(name) else "the table does not exist"
        elif problems and " " not in name:
            readings = f"a declaration is invalid: {'; '.join(problems)}"
        else:
            reason = "no stream declares it"
        states = AlertStates.from_json(stored_mapping(store, name))
        steps[name] = evaluate_readings(states, name, readings, alerts, now_ms=now_ms, unwatched=reason)
    changes = _store_states(mark_reported_together(steps, MAX_SEPARATE), store)
    export_health(found, changes["active"])
    audited = {stream.name: stored.audited.get(stream.name) for stream in declared}
    return {**changes, "due": _due_actions(found, tables), "audited": audited}


def _due_actions(
    measured: Mapping[str, TableHealth | str | None], tables: Mapping[str, MaintainedTable]
) -> dict[str, list[str]]:
    def actions(name: str, health: TableHealth | str | None) -> list[str]:
        if isinstance(health, str):
            return [NOT_MEASURED]
        decided = find_due_actions(health, tables[name].settings) if health else {}
        return [str(action) for action, answer in decided.items() if answer.due]

    return {name: actions(name, health) for name, health in measured.items()}


@contextmanager
def _stored_first_days(stores: Mapping[str, AssetStore]) -> Iterator[dict[str, date | None]]:
    first_days = {name: read_first_day(stored) for name, stored in stores.items()}
    days = dict(first_days)
    yield days
    for name, day in days.items():
        if day is not None and first_days[name] is None:
            stores[name].set(FIRST_DAY_KEY, str(day))


@contextmanager
def _stored_findings(store: AssetStore) -> Iterator[dict[str, RouteFindings]]:
    items = stored_mapping(store, ROUTED_TABLES_KEY).items()
    stored = {name: RouteFindings.from_json(findings) for name, findings in items if isinstance(findings, Mapping)}
    yield stored
    if stored:
        store.set(ROUTED_TABLES_KEY, {name: findings.to_json() for name, findings in stored.items()})


def _table_readings(health: TableHealth | str | None, settings: Maintenance, *, now_ms: int) -> Iterable[Reading] | str:
    if isinstance(health, TableHealth):
        return evaluate_table_rules(health, settings, now_ms=now_ms)
    return health or ()


def _store_states(steps: Mapping[str, AlertStep], store: AssetStore) -> dict[str, list[dict[str, Any]]]:
    for name, step in steps.items():
        store.set(name, step.states.to_json())
    store.set(SUBJECTS_KEY, sorted(name for name, step in steps.items() if step.states.rules))
    changes = {
        kind: [alert.to_json() for step in steps.values() for alert in getattr(step, kind)]
        for kind in ("fired", "resolved", "active")
    }
    for kind, level in (("active", logging.WARNING), ("resolved", logging.INFO)):
        for alert in changes[kind]:
            log.log(level, "%s: %s", kind, alert["sentence"])
    return changes


def _measure_tables(tables: Mapping[str, MaintainedTable], *, now_ms: int) -> dict[str, TableHealth | str | None]:
    measured = read_in_parallel(
        tables,
        lambda name: _measure(tables[name], now_ms=now_ms),
        timeout_s=READ_TIMEOUT_S,
        group=lambda name: tables[name].catalog or "default",
    )
    return {name: error_text(health) if isinstance(health, Exception) else health for name, health in measured.items()}


def _measure(table: MaintainedTable, *, now_ms: int) -> TableHealth | None:
    health = measure(open_existing_catalog(table.catalog), table, now_ms=now_ms, lag_query=LagQuery.FOR_ALERTS)
    log.info("%s: %s", table.name, _describe_measurement(health) if health else "the table does not exist yet")
    return health


def _describe_measurement(table: TableHealth) -> str:
    waits = [f"{s.name} {'unknown' if s.lag is None else f'{s.lag:,}'}" for s in table.streams]
    files, metadata = format_rounded_bytes(table.average_file_bytes), format_rounded_bytes(table.metadata_bytes)
    return (
        f"{table.data_files:,} data files of {files} on average, {table.rows:,} rows, {table.manifests:,} manifests, "
        f"{table.snapshots:,} snapshots, {metadata} of metadata.json"
        + (f"; unread records: {', '.join(waits)}" if waits else "")
    )
