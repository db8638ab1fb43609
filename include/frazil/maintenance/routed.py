"""Finds the tables of routes in the catalog: tables that a route lists, or that its template created."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from frazil.maintenance.due import Action, find_due_actions
from frazil.maintenance.health import TableHealth
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import MaintainedTable, TableKind, maintained_tables, template_table
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.made_tables import list_matching_names


def route_tables(catalog: Catalog, spec: StreamSpec, specs: Sequence[StreamSpec]) -> list[MaintainedTable]:
    """Return the maintained tables of the stream's route, sorted by name, including all that match its template."""
    declared = [t for t in maintained_tables(specs) if t.kind is TableKind.ROUTED and t.streams[0].name == spec.name]
    return sorted([*declared, *find_template_tables(catalog, spec, specs)], key=lambda table: table.name)


def find_template_tables(catalog: Catalog, spec: StreamSpec, specs: Sequence[StreamSpec]) -> list[MaintainedTable]:
    """Return the undeclared tables that the template of the stream's route may have created."""
    known = {table.identifier for table in maintained_tables(specs) if table.catalog == spec.table.catalog}
    with translate_catalog_errors(catalog.name):
        return [
            template_table(spec, name, specs) for name in list_matching_names(catalog, spec.sinks) if name not in known
        ]


@dataclass(frozen=True, slots=True)
class DueTable:
    """A table with its due actions, and the measurement that shows them."""

    table: MaintainedTable
    health: TableHealth
    reasons: dict[Action, str]

    @property
    def urgency(self) -> tuple[int, int]:
        """Sort key: new files, which slow down readers, then snapshots, which slow down commits."""
        return self.health.files_since_compaction, self.health.snapshots


def measure_due_table(
    catalog: Catalog, table: MaintainedTable, *, actions: Collection[str], now_ms: int
) -> DueTable | None:
    """Measure a route's table, and return it with its due actions, if it exists. Raises the errors of `measure`."""
    health = measure(catalog, table, now_ms=now_ms)
    if health is None:
        return None
    answers = find_due_actions(health, table.settings, full_check_at=table.full_check_at)
    return DueTable(table, health, {action: a.reason for action, a in answers.items() if a.due and action in actions})
