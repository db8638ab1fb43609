"""The tables that the audit compares with Kafka's records: the default table and the routed tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table import Table

from frazil.audit.findings import Finding, FindingKind
from frazil.commit.followers import Followers, missing_journals
from frazil.commit.marker import Marker, read_marker
from frazil.commit.marker_change import is_ahead
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import Destinations, StageContext, Target
from frazil.spec.model import StreamSpec
from frazil.spec.route import Route
from frazil.stream.stage_context import staged_target
from frazil.table.made_tables import load_route_tables, route_value


@dataclass(frozen=True, slots=True)
class Sinks:
    """The default table and the routed tables, as the audit loaded them."""

    tables: Mapping[Target, Table]
    by_value: Mapping[str, Target]
    """Maps each route value to its table, including tables that are not compared."""
    findings: Sequence[Finding] = ()
    """Findings that say why some tables are not compared."""

    @classmethod
    def of(cls, spec: StreamSpec, tables: StreamTables, main: Table, marker: Marker) -> Sinks:
        """Load the routed tables. `main` is the default table, which was loaded first, with its marker.

        A routed table is not compared if it is missing rows up to that marker, or has later rows.
        """
        if spec.route is None:
            return cls({"main": main}, {})
        found = load_route_tables(main.catalog, spec.route, stream=spec.name)
        made = {route_value(t.properties, name, spec.route, stream=spec.name): name for name, t in found.items()}
        by_value = {**{value: name for value, name in made.items() if value is not None}, **spec.route.tables}
        notes = dict(_not_compared(spec.route, tables, found, marker))
        compared = {name: table for name, table in found.items() if name not in notes}
        findings = [Finding(FindingKind.NOT_COMPARED, 1, why, name) for name, why in sorted(notes.items())]
        return cls({"main": main, **compared}, by_value, findings)

    def placed(self, spec: StreamSpec, context: StageContext) -> StageContext:
        """Return the context for staging records again, with the route's current declaration."""
        if (route := spec.route) is None:
            return context
        destinations = Destinations(
            by=route.by,
            name=route.name or "",
            targets=dict(self.by_value),
            to_main=route.otherwise == "table",
            makes=route.template is not None,
            allow=route.allow,
        )
        routed = {
            target: staged_target(spec, self.tables[target], "") if target in self.tables else context.main
            for target in self.by_value.values()
        }
        return dataclasses.replace(context, targets={**context.targets, **routed}, destinations=destinations)


def _not_compared(
    route: Route, tables: StreamTables, found: Mapping[Target, Table], marker: Marker
) -> Iterator[tuple[Target, str]]:
    """Yield each table that cannot be compared with the default table's marker, with the reason."""
    waiting = Followers.load(tables, marker).waiting
    for target in sorted({*route.tables.values()} - found.keys()):
        yield target, f"the table is not in the catalog; `frazil route {tables.stream}` shows the remedy"
    for target, table in found.items():
        own = read_marker(table.properties, tables.stream)
        if own is None:
            yield target, f"it has no marker of stream {tables.stream!r}: no row of the stream is in it"
        elif missing_journals(tables, table, waiting.get(target, ())):
            yield target, "rows wait to be committed to it. The command `frazil route` says why, if that lasts"
        elif is_ahead(own, marker):
            yield target, "the writer committed to it meanwhile: audit again"
