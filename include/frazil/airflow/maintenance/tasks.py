"""What the tasks of a maintenance DAG do in their own process, with PyIceberg and without Spark."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from pyiceberg.catalog import Catalog

from frazil import clock
from frazil.airflow.declared import all_streams
from frazil.airflow.untrusted import Store, stored_number
from frazil.maintenance.due import due, enabled
from frazil.maintenance.measure import measure
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.plans import MaintenancePlanner
from frazil.maintenance.tables import MaintainedTable, maintained_tables
from frazil.table.catalogs import existing_catalog

log = logging.getLogger(__name__)

DAY_MS = 23 * 3_600_000
"""Less than a day, because a run may come some minutes earlier than the one of the day before."""


def look(names: Collection[str], streams: Path, *, actions: Collection[str], dry_run: bool) -> list[str]:
    """What is due, a sentence each. A dry run only logs what would be done, from all manifests, and returns nothing."""
    found = []
    for table, catalog in _tables(names, streams):
        health = measure(catalog, table, now_ms=clock.now_ms())
        if health is None:
            log.info("%s: there is no table yet", table.name)
            continue
        for action, answer in due(health, table.settings).items():
            if action in actions:
                sentence = f"{table.name}: {action} is {'' if answer.due else 'not '}due: {answer.reason}"
                log.info("%s", sentence)
                found += [sentence] if answer.due else []
                if dry_run and enabled(table.settings, action):
                    plan = MaintenancePlanner(catalog, table, clock.now_ms()).plan(action)
                    log.info("%s: %s would be: %s", table.name, action, plan.sentence)
    return [] if dry_run else found


def orphans(names: Collection[str], streams: Path, store: Store, *, dry_run: bool) -> dict[str, Any]:
    """Clean up the tables whose last clean-up, according to `store`, was a day ago; in a dry run, look at all of them.

    Raises AirflowSkipException if there is none. After all were tried, raises AirflowFailException if one refused or
    could not be read.
    """
    reports, problems = {}, []
    for table, catalog in _tables(names, streams):
        key, now_ms = f"orphans:{table.name}", clock.now_ms()
        last_ms = stored_number(store, key, most=now_ms) or 0
        if not table.settings.orphans.enabled or not (dry_run or now_ms - last_ms >= DAY_MS):
            continue
        try:
            if not catalog.table_exists(table.identifier):
                log.info("%s: there is no table yet", table.name)
                continue
            report = clean_orphans(catalog, table, now_ms=now_ms, dry_run=dry_run)
        except Exception as error:  # whatever a catalog or a storage raises: the other tables still have their turn
            log.exception("%s: orphans were not looked for", table.name)
            problems.append(f"{table.name}: {error!r}")
            continue
        reports[table.name] = asdict(report)
        problems += [report.sentence] if report.refused else []
        if not dry_run:
            store.set(key, now_ms)
    if problems:
        raise AirflowFailException("\n".join(problems))
    if not reports:
        raise AirflowSkipException(
            "orphans were cleaned up less than a day ago, or the tables' streams say `orphans: off`"
        )
    return reports


def _tables(names: Collection[str], streams: Path) -> Iterator[tuple[MaintainedTable, Catalog]]:
    """The named tables, as the folder declares them now, or did when it was sound last.

    Raises AirflowFailException at the end if one of them may be declared by a file that this worker never read sound.
    """
    declared = all_streams(streams)
    specs = [stream.spec for stream in declared if stream.spec is not None and not stream.removed]
    tables = [table for table in maintained_tables(specs) if table.name in names]
    for table in tables:
        yield table, existing_catalog(table.catalog)
    missing = ", ".join(sorted(set(names) - {table.name for table in tables}))
    unread = [stream.problem for stream in declared if stream.spec is None and stream.problem]
    if missing and (unread or not declared):
        raise AirflowFailException(
            f"{missing}: not maintained, because this worker has never read its declaration while it was sound. Fix "
            f"the file: {'; '.join(unread) or f'{streams} has none'}"
        )
    if missing:
        log.info("%s: not maintained, because no file of %s declares it any more", missing, streams)
