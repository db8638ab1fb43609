"""What the tasks of a maintenance Dag do, in their own process: PyIceberg alone, no Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from pyiceberg.catalog import Catalog

from frazil.airflow.declared import declared_streams
from frazil.airflow.table_health import Store
from frazil.maintenance.due import Action, due
from frazil.maintenance.measure import measure
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.plans import Planner
from frazil.maintenance.tables import MaintainedTable, maintained_tables
from frazil.table.catalogs import load_catalog

log = logging.getLogger(__name__)

DAY_MS = 23 * 3_600_000
"""A run may come some minutes earlier than the day before's."""


def look(names: Collection[str], streams: Path, *, actions: Collection[str], dry_run: bool) -> list[str]:
    """What is due, a sentence each. A dry run logs what would be done, from all manifests; then nothing is due."""
    found = []
    for table, catalog in _tables(names, streams):
        health = measure(catalog, table, now_ms=_now_ms())
        if health is None:
            log.info("%s: there is no table yet", table.identifier)
            continue
        for action, answer in due(health, table.settings).items():
            if action in actions:
                sentence = f"{table.identifier}: {action} is {'' if answer.due else 'not '}due: {answer.reason}"
                log.info("%s", sentence)
                found += [sentence] if answer.due else []
        if dry_run:
            _log_plans(Planner(catalog, table, _now_ms()), table)
    return [] if dry_run else found


def _log_plans(planner: Planner, table: MaintainedTable) -> None:
    plans = {
        Action.COMPACTION: planner.compaction()[1].sentence,
        Action.MANIFESTS: planner.manifests()[1].sentence,
        Action.EXPIRY: planner.expiry()[1].sentence,
    }
    for action, sentence in plans.items():
        log.info("%s: %s would be: %s", table.identifier, action, sentence)


def orphans(names: Collection[str], streams: Path, store: Store, *, dry_run: bool) -> dict[str, Any]:
    """Clean up the tables whose last clean-up, by Airflow's `store`, is a day ago; in a dry run all of them.

    Raises AirflowSkipException where there is none, and AirflowFailException where one refused, after all were tried.
    """
    reports = {}
    for table, catalog in _tables(names, streams):
        key, now_ms = f"orphans:{table.identifier}", _now_ms()
        if not table.settings.orphans.enabled or not (dry_run or now_ms - int(store.get(key, 0)) >= DAY_MS):
            continue
        if not catalog.table_exists(table.identifier):
            log.info("%s: there is no table yet", table.identifier)
            continue
        reports[table.identifier] = clean_orphans(catalog, table, now_ms=now_ms, dry_run=dry_run)
        if not dry_run:
            store.set(key, now_ms)
    if not reports:
        raise AirflowSkipException("orphans were looked for within a day, or the tables' streams say orphans: off")
    if refused := [report.sentence for report in reports.values() if report.refused]:
        raise AirflowFailException("\n".join(refused))
    return {name: asdict(report) for name, report in reports.items()}


def _tables(names: Collection[str], streams: Path) -> Iterator[tuple[MaintainedTable, Catalog]]:
    specs = [found.spec for found in declared_streams(streams) if found.spec is not None]
    for table in maintained_tables(specs):
        if table.identifier in names:
            yield table, load_catalog(table.catalog)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
