"""Loads a table for maintenance, and checks that the table belongs to a stream."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.errors import SpecError
from frazil.maintenance.tables import MaintainedTable, TableKind


class NotMadeByRoute(SpecError):
    """The table's name matches the template of a route, but the route did not create the table."""


def load_maintained(catalog: Catalog, maintained: MaintainedTable) -> Table:
    """Load the table. Raises NoSuchTableError, NotMadeByRoute, and any error of the catalog."""
    table = catalog.load_table(maintained.identifier)
    if maintained.kind is not TableKind.ROUTED:
        return table
    if any(spec.sinks.owns(maintained.identifier, table.properties) for spec in maintained.streams):
        return table
    raise NotMadeByRoute(
        f"table {maintained.identifier} has a name like the tables of stream {maintained.streams[0].name!r}'s route, "
        "but the route did not create it, so maintenance skips it. Add it to route.tables if the stream should write "
        "to it"
    )
