"""Maintains one table, or as many of a route's tables as one task can, with PyIceberg and without Spark."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from pyiceberg.catalog import Catalog

from frazil import clock
from frazil.airflow.declared_streams import all_streams, valid_specs
from frazil.airflow.untrusted_values import AssetStore, stored_mapping, stored_number
from frazil.maintenance.due import Action, DueCheck, find_due_actions, is_enabled
from frazil.maintenance.measure import DueTable, NotMadeByRoute, measure, measure_due_table, route_tables
from frazil.maintenance.orphan_cleanup import clean_orphans, load_all_folders
from frazil.maintenance.plans import MaintenancePlanner
from frazil.maintenance.tables import MaintainedTable, group_by_session, maintained_tables, routes_by_name
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.table.catalogs import open_existing_catalog
from frazil.table.parallel import find_failures, read_in_parallel

log = logging.getLogger(__name__)

MAX_TABLES_PER_RUN = 500
"""Maximum number of tables that one run rewrites or cleans: at five seconds per table, about 40 minutes."""
MEASURE_TIMEOUT = timedelta(minutes=20)
CLEANUP_INTERVAL_MS = 23 * 3_600_000
"""Minimum time between orphan clean-ups: less than a day, because a run may start earlier than yesterday's."""


@dataclass(frozen=True, slots=True)
class RouteTables:
    name: str
    spec: StreamSpec
    specs: Sequence[StreamSpec]

    @classmethod
    def find(cls, name: str, specs: Sequence[StreamSpec]) -> RouteTables | None:
        spec = routes_by_name(specs).get(name)
        return None if spec is None else cls(name, spec, specs)

    def due(self, actions: Collection[str]) -> list[str]:
        """Return the most urgent tables first, then unmeasured ones. Raises FrazilError if none could be measured."""
        if not {*Action} & {*actions}:
            return []
        catalog, now_ms = open_existing_catalog(self.spec.table.catalog), clock.now_ms()
        tables = {table.name: table for table in route_tables(catalog, self.spec, self.specs)}

        def check(name: str) -> DueTable | None:
            return measure_due_table(catalog, tables[name], actions=actions, now_ms=now_ms)

        answers = read_in_parallel(tables, check, timeout_s=MEASURE_TIMEOUT.total_seconds())
        unowned = [name for name, error in answers.items() if isinstance(error, NotMadeByRoute)]
        if unowned:
            listed = ", ".join(unowned[:MAX_TABLES_PER_RUN])
            log.info("not maintained, because %s did not create them: %s", self.name, listed)
        maintained = {name: answer for name, answer in answers.items() if name not in unowned}
        broken = find_failures(
            maintained, "cannot be measured", f"none of the {{}} tables of the {self.name} could be measured"
        )
        due = [table for table in answers.values() if isinstance(table, DueTable) and table.reasons]
        due.sort(key=lambda table: table.urgency, reverse=True)
        for table in due[:MAX_TABLES_PER_RUN]:
            log.info(
                "%s: %s", table.table.name, "; ".join(f"{action}: {text}" for action, text in table.reasons.items())
            )
        log.info("%s: of %s, %d need maintenance", self.name, format_count(len(tables), "table"), len(due))
        return [*(table.table.name for table in due), *broken][:MAX_TABLES_PER_RUN]

    def orphans_due(self, store: AssetStore) -> bool:
        return self.spec.maintenance.orphans.enabled and self._find_current_pass(store) is not None

    def _find_current_pass(self, store: AssetStore) -> tuple[int, str] | None:
        """Return the pass's start (ms) and its last cleaned table, at first empty; None if no pass is due."""
        stored, now_ms = stored_mapping(store, _orphans_key(self.name)), clock.now_ms()
        began_ms, last = stored.get("began-ms"), stored.get("after")
        if isinstance(began_ms, int) and 0 <= began_ms <= now_ms and (last or now_ms - began_ms < CLEANUP_INTERVAL_MS):
            return (began_ms, last) if isinstance(last, str) and last else None
        return now_ms, ""

    def clean(self, store: AssetStore, *, dry_run: bool) -> dict[str, Any]:
        """Clean the next tables, in a dry run the first ones. Raises AirflowFailException at the end for failures."""
        began_ms, last_table = (0, "") if dry_run else self._find_current_pass(store) or (0, None)
        if last_table is None or not self.spec.maintenance.orphans.enabled:
            raise AirflowSkipException("orphans were cleaned up less than a day ago, or the stream has `orphans: off`")
        catalog = open_existing_catalog(self.spec.table.catalog)
        remaining = [table for table in route_tables(catalog, self.spec, self.specs) if table.name > last_table]
        batch, problems, deleted = remaining[:MAX_TABLES_PER_RUN], list[str](), 0
        neighbours = load_all_folders(catalog) if batch else []
        for table in batch:
            try:
                if not catalog.table_exists(table.identifier):
                    continue
                report = clean_orphans(catalog, table, now_ms=clock.now_ms(), dry_run=dry_run, neighbours=neighbours)
            except NotMadeByRoute as other:
                log.info("%s", other)
                continue
            except Exception as error:  # whatever a catalog or storage raises: the others are still maintained
                log.exception("%s: cannot search for orphan files", table.name)
                problems.append(f"{table.name}: {error!r}")
                continue
            deleted += report.deleted
            problems += [report.sentence] if report.refused else []
        if not dry_run:
            next_after = batch[-1].name if len(remaining) > len(batch) else ""
            store.set(_orphans_key(self.name), {"began-ms": began_ms, "after": next_after})
        if problems:
            raise AirflowFailException("\n".join(problems))
        return {"tables": len(batch), "deleted": deleted, "tables-left": len(remaining) - len(batch)}


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
    """Delete orphan files of a table and its dead-letter table, or of a route. Return the reports or counts."""
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
    messages = []
    for table, catalog in _open_tables(names, streams):
        answers = due_actions(catalog, table, actions)
        if not answers:
            log.info("%s: nothing to measure: the table does not exist yet, or only orphans were requested", table.name)
        for action, answer in answers.items():
            log.info("%s", text := describe_due(table.name, action, answer))
            messages += [text] if answer.due else []
            if dry_run and is_enabled(table.settings, action):
                plan = MaintenancePlanner(catalog, table, clock.now_ms()).plan(action)
                log.info("%s: %s would be: %s", table.name, action, plan.sentence)
    return messages


def orphans_due(table: MaintainedTable, store: AssetStore) -> bool:
    if not table.settings.orphans.enabled:
        return False
    now_ms = clock.now_ms()
    return now_ms - (stored_number(store, _orphans_key(table.name), limit=now_ms) or 0) >= CLEANUP_INTERVAL_MS


def _orphans_key(name: str) -> str:
    return f"orphans:{name}"


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
            store.set(_orphans_key(table.name), now_ms)
    if problems:
        raise AirflowFailException("\n".join(problems))
    if not reports:
        raise AirflowSkipException("orphans were cleaned up less than a day ago, or the streams have `orphans: off`")
    return reports


def _open_tables(names: Collection[str], streams: Path) -> Iterator[tuple[MaintainedTable, Catalog]]:
    """Yield the tables. Raises AirflowFailException at the end for tables that only an invalid file may declare."""
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
