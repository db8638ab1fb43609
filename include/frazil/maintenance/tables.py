"""Lists the maintained tables: tables that streams declare, their dead-letter tables, and signals tables.
`frazil.maintenance.measure` finds a template's tables. Does not import PyIceberg, because Airflow's DAG processor calls
it repeatedly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from zlib import crc32

from frazil.errors import SpecError
from frazil.spec.maintenance import Maintenance
from frazil.spec.model import StreamSpec

SIGNALS = "frazil.signals"
"""The signals table's name, as in `frazil.signals.signal_table`, which would import PyIceberg."""


class TableKind(StrEnum):
    MAIN = "main"
    ROUTED = "routed"
    DEAD_LETTERS = "dead letters"
    SIGNALS = "signals"


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    name: str
    """The identifier. If several catalogs have it, the catalog's name comes first."""
    identifier: str
    catalog: str | None
    kind: TableKind
    settings: Maintenance
    streams: tuple[StreamSpec, ...]

    @property
    def full_check_at(self) -> timedelta:
        """Time of day (UTC) of the full check. A route's tables have different times."""
        return timedelta(seconds=crc32(self.name.encode()) % 86_400 if self.kind is TableKind.ROUTED else 0)


def maintained_tables(specs: Iterable[StreamSpec]) -> tuple[MaintainedTable, ...]:
    """Return every table that these streams declare, and one signals table per catalog, sorted by name."""
    writers: dict[tuple[str | None, str, TableKind], list[StreamSpec]] = {}
    for spec in sorted(specs, key=lambda s: s.name):
        catalog = spec.table.catalog
        writers.setdefault((catalog, spec.table.identifier, TableKind.MAIN), []).append(spec)
        writers.setdefault((catalog, spec.dead_letter_table, TableKind.DEAD_LETTERS), []).append(spec)
        for identifier in spec.sinks.named_tables:
            writers.setdefault((catalog, identifier, TableKind.ROUTED), []).append(spec)
        if spec.window is not None:
            writers.setdefault((catalog, SIGNALS, TableKind.SIGNALS), []).append(spec)
    times = Counter(identifier for _, identifier, _ in writers)
    tables = []
    for (catalog, identifier, kind), streams in writers.items():
        name = identifier if times[identifier] == 1 else f"{catalog or 'default'}.{identifier}"
        settings = Maintenance() if kind is TableKind.SIGNALS else streams[0].maintenance
        tables.append(MaintainedTable(name, identifier, catalog, kind, settings, tuple(streams)))
    return tuple(sorted(tables, key=lambda t: t.name))


def group_by_session(specs: Iterable[StreamSpec]) -> dict[str, tuple[MaintainedTable, ...]]:
    """Return the tables that each Spark session maintains, by its first table's name. Omits routed tables."""
    tables = maintained_tables(specs)
    sessions = {table.name: [table] for table in tables if table.kind in {TableKind.MAIN, TableKind.SIGNALS}}
    fed = {spec.name: table.name for table in tables if table.kind is TableKind.MAIN for spec in table.streams}
    for table in tables:
        if table.kind is TableKind.DEAD_LETTERS:
            sessions[fed[table.streams[0].name]].append(table)
    return {name: tuple(members) for name, members in sessions.items()}


def routes_by_name(specs: Iterable[StreamSpec]) -> dict[str, StreamSpec]:
    return {f"route of {spec.name}": spec for spec in specs if spec.sinks.has_routed_tables}


def template_table(spec: StreamSpec, identifier: str, specs: Iterable[StreamSpec]) -> MaintainedTable:
    """Describe a table that a route's template may have created, by a name that is unique across catalogs."""
    catalog = spec.table.catalog
    elsewhere = any(each.table.catalog != catalog and each.sinks.may_include(identifier) for each in specs)
    name = f"{catalog or 'default'}.{identifier}" if elsewhere else identifier
    return MaintainedTable(name, identifier, catalog, TableKind.ROUTED, spec.maintenance, (spec,))


def find_maintained(specs: Iterable[StreamSpec], name: str, *, problems: Sequence[str] = ()) -> MaintainedTable:
    """Find a maintained table by name. Raises SpecError with the known tables, and `problems` of declarations."""
    specs = tuple(specs)
    tables = maintained_tables(specs)
    for table in tables:
        if table.name == name:
            return table
    for spec in routes_by_name(specs).values():
        for identifier in (name, name.removeprefix(f"{spec.table.catalog or 'default'}.")):
            made = template_table(spec, identifier, specs)
            if made.name == name and spec.sinks.matches_template(identifier):
                return made
    templates = {spec.sinks.template for spec in specs if spec.sinks.template}
    names = ", ".join([*(table.name for table in tables), *sorted(templates)]) or "none"
    message = f"no declared stream uses the table {name!r}. Maintained tables: {names}"
    if table_name := next((spec.table.identifier for spec in specs if spec.name == name), None):
        message = f"{name} is a stream; its table is {table_name}"
    raise SpecError("\n".join([message, *problems]))
