"""The tables of routes, as the catalog knows them: those that a route names, and those that its template has made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from frazil.maintenance.due import Action, due
from frazil.maintenance.health import TableHealth
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import MaintainedTable, TableKind, made_table, maintained_tables
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import catalog_errors
from frazil.table.made_tables import named_like


def tables_of_route(catalog: Catalog, spec: StreamSpec, specs: Sequence[StreamSpec]) -> list[MaintainedTable]:
    """The tables that are maintained for a stream's route, by name; of all the streams, no other maintains these.

    One that is only named as the template names tables is among them: `load_maintained` refuses it, by its properties,
    which are not read here. Raises what the catalog raises.
    """
    declared = [t for t in maintained_tables(specs) if t.kind is TableKind.ROUTED and t.streams[0].name == spec.name]
    return sorted([*declared, *made_tables(catalog, spec, specs)], key=lambda table: table.name)


def made_tables(catalog: Catalog, spec: StreamSpec, specs: Sequence[StreamSpec]) -> list[MaintainedTable]:
    """The tables that no declaration names, and the template of the stream's route may have made."""
    if spec.route is None:
        return []
    known = {table.identifier for table in maintained_tables(specs) if table.catalog == spec.table.catalog}
    with catalog_errors(catalog.name):
        return [made_table(spec, name, specs) for name in named_like(catalog, spec.route) if name not in known]


@dataclass(frozen=True, slots=True)
class Judged:
    """A table and what is due, from metadata."""

    table: MaintainedTable
    health: TableHealth
    reasons: dict[Action, str]
    """Why each action that is due is due."""

    @property
    def need(self) -> tuple[int, int]:
        """The more, the sooner its turn: what readers open too much of, and then what commits carry along."""
        return self.health.files_since_compaction, self.health.snapshots


def judged_of_route(
    catalog: Catalog, table: MaintainedTable, *, actions: Collection[str], now_ms: int
) -> Judged | None:
    """What is due; None if the table is not there (any more). Raises what `measure` raises."""
    health = measure(catalog, table, now_ms=now_ms)
    if health is None:
        return None
    answers = due(health, table.settings, full_check_at=table.full_check_at)
    return Judged(table, health, {action: a.reason for action, a in answers.items() if a.due and action in actions})
