"""Checks all tables in one task, without a JVM, and returns the tables that need a maintenance task of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from frazil.airflow.declared_streams import valid_specs
from frazil.airflow.maintenance.tasks import RouteTables, describe_due, due_actions, orphans_due
from frazil.airflow.untrusted_values import AssetStore, stored_mapping
from frazil.maintenance.tables import MaintainedTable, group_by_session, routes_by_name
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import open_existing_catalog
from frazil.table.parallel import find_failures, read_in_parallel

ENDED_STATES = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

TaskStates = Mapping[str, Mapping[str, Any]]
"""Task states by run id and task id (`<task>_<map index>` if mapped); None for a task that is not scheduled yet."""


@dataclass(frozen=True, slots=True)
class CheckState:
    at_ms: int
    run_id: str | None = None
    """The run that has a task for the table; None once that task has ended."""
    index: int = 0

    def to_json(self) -> list[Any]:
        return [self.at_ms] if self.run_id is None else [self.at_ms, self.run_id, self.index]

    @staticmethod
    def from_json(value: Any) -> CheckState | None:
        """Parse a stored value; None if it is invalid, because other users can write the store."""
        match value:
            case [int(at_ms)] if at_ms >= 0:
                return CheckState(at_ms)
            case [int(at_ms), str(run_id), int(index)] if at_ms >= 0 and index >= 0:
                return CheckState(at_ms, run_id, index)
        return None


def tables_to_check(
    intervals: Mapping[str, timedelta], tables: Mapping[str, CheckState], *, moment_ms: int
) -> list[str]:
    """Return the tables to check, the longest waiting first. A retry of the run checks the same tables."""

    def is_due(name: str) -> bool:
        if name not in tables:
            return True
        waited_ms = moment_ms - tables[name].at_ms
        # A time in the future is an error of a clock or a user.
        return waited_ms <= 0 or timedelta(milliseconds=waited_ms) >= intervals[name]

    return sorted(filter(is_due, intervals), key=lambda name: (tables[name].at_ms if name in tables else -1, name))


def tables_in_progress(
    tables: Mapping[str, CheckState], states: TaskStates, *, tasks: Collection[str]
) -> dict[str, str]:
    def is_active(run: Mapping[str, Any], index: int) -> bool:
        # Before Airflow has created a mapped task's instances, one without an index stands for all.
        return any(run[key] not in ENDED_STATES for task in tasks for key in (task, f"{task}_{index}") if key in run)

    return {
        name: table.run_id
        for name, table in tables.items()
        if table.run_id is not None and is_active(states.get(table.run_id, {}), table.index)
    }


log = logging.getLogger(__name__)

MEASURE_TIMEOUT = timedelta(minutes=20)
"""Time limit of a table's measurement; a slower table gets a separate task."""
MAX_TABLES_PER_RUN = 250
"""Maximum number of tables with tasks in a run, below Airflow's limit of 1,024. The next run begins with the others."""
CHECKS_KEY = "maintenance turns"
"""The store's key for the checks of all tables; no table has this name."""
ALWAYS = timedelta(0)

TASKS = ("table.rewrite", "table.orphans")

StatesOf = Callable[[list[str]], TaskStates]


@dataclass(frozen=True, slots=True)
class MaintenanceRun:
    run_id: str
    moment_ms: int
    chosen: Collection[str]
    actions: Collection[str]
    dry_run: bool
    is_manual: bool
    """Whether a user started the run. If so, it checks all tables, even if no check is due."""


def due_tables(
    names: Sequence[str], streams: Path, run: MaintenanceRun, store: AssetStore, states_of: StatesOf
) -> list[str]:
    """Return the tables that need a task: an action is due, or the table could not be measured.

    Each name stands for a table and its dead-letter tables, or for a route. Stores the names that this run checks, and
    those that get a task. A dry run stores nothing, and returns all chosen names. Raises FrazilError if there are
    several tables and none could be measured.
    """
    declared = valid_specs(streams)
    by_session, routed = group_by_session(declared), routes_by_name(declared)
    chosen_names = [name for name in names if not run.chosen or name in run.chosen]
    stored = stored_mapping(store, CHECKS_KEY).items()
    tables = {name: table for name, value in stored if name in names and (table := CheckState.from_json(value))}
    busy = _find_busy(tables, run, states_of)
    free = [name for name in chosen_names if name not in busy]
    intervals = {name: ALWAYS if run.is_manual else _interval(name, by_session, routed) for name in free}
    chosen = tables_to_check(intervals, tables, moment_ms=run.moment_ms)
    if run.dry_run:
        return chosen[:MAX_TABLES_PER_RUN]
    routes_due = [RouteTables(name, spec, declared) for name, spec in routed.items()]
    due = _find_due_tables(chosen, by_session, routes_due, run, store)
    due, postponed = due[:MAX_TABLES_PER_RUN], due[MAX_TABLES_PER_RUN:]
    tables = {name: table if name in busy else CheckState(table.at_ms) for name, table in tables.items()}
    tables |= {name: CheckState(run.moment_ms) for name in chosen if name not in postponed}
    tables |= {name: CheckState(run.moment_ms, run.run_id, index) for index, name in enumerate(due)}
    store.set(CHECKS_KEY, {name: table.to_json() for name, table in tables.items()})
    return due


def _find_busy(tables: Mapping[str, CheckState], run: MaintenanceRun, states_of: StatesOf) -> Mapping[str, str]:
    # This run's own tasks have not started yet.
    earlier = {name: table for name, table in tables.items() if table.run_id not in {None, run.run_id}}
    if not earlier:
        return {}
    run_ids = sorted({str(table.run_id) for table in earlier.values()})
    busy = tables_in_progress(earlier, states_of(run_ids), tasks=TASKS)
    for name, run_id in busy.items():
        log.info("%s: the run %s still works on it", name, run_id)
    return busy


def _interval(
    name: str, by_session: Mapping[str, Sequence[MaintainedTable]], routed: Mapping[str, StreamSpec]
) -> timedelta:
    if name in routed:
        return routed[name].maintenance.every
    # An unknown table fails in its own task, which reports the reason.
    return by_session[name][0].settings.every if name in by_session else ALWAYS


def _find_due_tables(
    chosen: Sequence[str],
    by_session: Mapping[str, Sequence[MaintainedTable]],
    routed: Sequence[RouteTables],
    run: MaintenanceRun,
    store: AssetStore,
) -> list[str]:
    # A task may call Airflow from one thread only.
    orphaned = {
        table.name
        for name in chosen
        for table in by_session.get(name, ())
        if "orphans" in run.actions and orphans_due(table, store)
    }
    by_name = {route.name: route for route in routed}
    orphaned |= {route.name for route in routed if "orphans" in run.actions and route.orphans_due(store)}

    def check(name: str) -> bool:
        if name in by_name:
            return bool(by_name[name].due(run.actions)) or name in orphaned
        needs = False
        for table in by_session[name]:
            catalog = open_existing_catalog(table.catalog)
            answers = due_actions(catalog, table, run.actions)
            texts = [describe_due(table.name, *answer) for answer in answers.items()]
            log.info("%s", "; ".join(texts) or f"{name}: no table yet")
            needs = needs or any(answer.due for answer in answers.values())
            needs = needs or (table.name in orphaned and catalog.table_exists(table.identifier))
        return needs

    results = read_in_parallel(chosen, check, timeout_s=MEASURE_TIMEOUT.total_seconds())
    find_failures(results, "cannot be measured", "none of {} tables could be measured")
    return [name for name in chosen if results[name]]
