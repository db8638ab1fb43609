"""Does the work of one table's maintenance tasks, with PyIceberg and without Spark."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from pyiceberg.catalog import Catalog

from frazil import clock
from frazil.airflow.declared_streams import all_streams, valid_specs
from frazil.airflow.maintenance.route import CLEANUP_INTERVAL_MS, RouteTables
from frazil.airflow.untrusted_values import AssetStore, stored_number
from frazil.maintenance.due import Action, DueCheck, find_due_actions, is_enabled
from frazil.maintenance.measure import measure
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.plans import MaintenancePlanner
from frazil.maintenance.tables import MaintainedTable, group_by_session, maintained_tables
from frazil.spec.units import format_count
from frazil.table.catalogs import open_existing_catalog

log = logging.getLogger(__name__)


def find_tables_with_due_rewrites(name: str, streams: Path, *, actions: Collection[str], dry_run: bool) -> list[str]:
    """Return the tables to rewrite. Raises AirflowSkipException if no action is due, and in a dry run."""
    if route := RouteTables.find(name, valid_specs(streams)):
        names = route.due(actions)
        due = [f"{format_count(len(names), 'table', 'needs|need')} a rewrite"] if names else []
    else:
        names = list_maintenance_group(name, streams)
        due = due_messages(names, streams, actions=actions, dry_run=dry_run)
    if dry_run or not due:
        raise AirflowSkipException("; ".join([*(["dry run"] if dry_run else []), *(due or ["no rewrite is due"])]))
    return names


def clean(name: str, streams: Path, store: AssetStore, *, dry_run: bool) -> dict[str, Any]:
    """Return the report of each table; for a route, only numbers."""
    if route := RouteTables.find(name, valid_specs(streams)):
        return route.clean(store, dry_run=dry_run)
    return clean_tables(list_maintenance_group(name, streams), streams, store, dry_run=dry_run)


def list_maintenance_group(name: str, streams: Path) -> list[str]:
    return [table.name for table in group_by_session(valid_specs(streams)).get(name, ())] or [name]


def due_actions(catalog: Catalog, table: MaintainedTable, actions: Collection[str]) -> Mapping[Action, DueCheck]:
    health = measure(catalog, table, now_ms=clock.now_ms())
    answers = find_due_actions(health, table.settings, full_check_at=table.full_check_at) if health else {}
    return {action: answer for action, answer in answers.items() if action in actions}


def describe_due(name: str, action: Action, answer: DueCheck) -> str:
    return f"{name}: {action} is {'' if answer.due else 'not '}due: {answer.reason}"


def due_messages(names: Collection[str], streams: Path, *, actions: Collection[str], dry_run: bool) -> list[str]:
    found = []
    for table, catalog in _open_tables(names, streams):
        answers = due_actions(catalog, table, actions)
        if not answers:
            log.info("%s: nothing to measure: the table does not exist yet, or only orphans were requested", table.name)
        for action, answer in answers.items():
            log.info("%s", text := describe_due(table.name, action, answer))
            found += [text] if answer.due else []
            if dry_run and is_enabled(table.settings, action):
                plan = MaintenancePlanner(catalog, table, clock.now_ms()).plan(action)
                log.info("%s: %s would be: %s", table.name, action, plan.sentence)
    return found


def orphans_due(table: MaintainedTable, store: AssetStore) -> bool:
    if not table.settings.orphans.enabled:
        return False
    now_ms = clock.now_ms()
    return now_ms - (stored_number(store, _orphans_key(table), limit=now_ms) or 0) >= CLEANUP_INTERVAL_MS


def _orphans_key(table: MaintainedTable) -> str:
    return f"orphans:{table.name}"


def clean_tables(names: Collection[str], streams: Path, store: AssetStore, *, dry_run: bool) -> dict[str, Any]:
    """Clean the due tables, or check all in a dry run. Raises AirflowFailException at the end for failures."""
    reports, problems = {}, []
    for table, catalog in _open_tables(names, streams):
        now_ms = clock.now_ms()
        if not (orphans_due(table, store) or (dry_run and table.settings.orphans.enabled)):
            continue
        try:
            if not catalog.table_exists(table.identifier):
                log.info("%s: the table does not exist yet", table.name)
                continue
            report = clean_orphans(catalog, table, now_ms=now_ms, dry_run=dry_run)
        except Exception as error:  # whatever a catalog or storage raises: the other tables are still maintained
            log.exception("%s: cannot search for orphan files", table.name)
            problems.append(f"{table.name}: {error!r}")
            continue
        reports[table.name] = asdict(report)
        problems += [report.sentence] if report.refused else []
        if not dry_run:
            store.set(_orphans_key(table), now_ms)
    if problems:
        raise AirflowFailException("\n".join(problems))
    if not reports:
        raise AirflowSkipException("orphans were cleaned up less than a day ago, or the streams have `orphans: off`")
    return reports


def _open_tables(names: Collection[str], streams: Path) -> Iterator[tuple[MaintainedTable, Catalog]]:
    """Yield the tables. Raises AirflowFailException at the end if only a file that was never valid may declare one."""
    declared = all_streams(streams)
    specs = [stream.spec for stream in declared if stream.spec is not None and not stream.removed]
    tables = [table for table in maintained_tables(specs) if table.name in names]
    for table in tables:
        yield table, open_existing_catalog(table.catalog)
    missing = ", ".join(sorted(set(names) - {table.name for table in tables}))
    unread = [stream.problem for stream in declared if stream.spec is None and stream.problem]
    if missing and (unread or not declared):
        cause = "; ".join(unread) or f"{streams} has no declarations"
        raise AirflowFailException(
            f"{missing}: not maintained, because this worker has never read a valid declaration. {cause}. Fix the "
            "declarations"
        )
    if missing:
        log.info("%s: not maintained, because no file in %s declares it", missing, streams)
