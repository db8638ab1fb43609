"""Loads a table for maintenance, and makes sure that it is a stream's."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.errors import SpecError
from frazil.maintenance.tables import MaintainedTable, TableKind
from frazil.table.made_tables import made_for


class MadeElsewhere(SpecError):
    """A table is named as a route's template names tables, and the route has not made it."""


def load_maintained(catalog: Catalog, maintained: MaintainedTable) -> Table:
    """Raises NoSuchTableError, MadeElsewhere, and what the catalog raises."""
    table = catalog.load_table(maintained.identifier)
    if maintained.kind is not TableKind.ROUTED:
        return table
    for spec in maintained.streams:
        route = spec.route
        if route is None or maintained.identifier in route.tables.values():
            return table
        if made_for(table.properties, maintained.identifier, route, stream=spec.name) is not None:
            return table
    raise MadeElsewhere(
        f"table {maintained.identifier} is named as the route of stream {maintained.streams[0].name!r} names tables, "
        "and was not made by it: it is left alone. Name it in route.tables if the stream shall write to it"
    )
