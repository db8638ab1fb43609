"""Finds tables that a stream once had and that its catalog no longer has.

Tables that were never made are not missing.
"""

from __future__ import annotations

from pyiceberg.table import Table

from frazil.commit.followers import Gone
from frazil.commit.former_table import lost_or_replaced
from frazil.commit.marker import read_marker
from frazil.commit.opened import read_stream
from frazil.errors import TableLost
from frazil.host.launchers import open_launcher
from frazil.spec.model import StreamSpec
from frazil.stream.dropped_tables import behind_default_table
from frazil.supervise.liveness import has_committed
from frazil.table.catalogs import catalog_errors, open_existing_catalog
from frazil.table.lost import dropped_table
from frazil.table.tables import load_stream_table


def missing_table(spec: StreamSpec, table: Table | None, *, committed: bool) -> str | None:
    """Return why the catalog does not have the stream's own table under its name; None if it has the table, or if the
    stream has not started yet.

    `table` is the table that has the name now; `committed` says whether a writer of this host has committed. Raises the
    errors of `lost_or_replaced`.
    """
    found = lost_or_replaced(spec, table)
    if found is None and table is None and committed:
        found = dropped_table(spec, open_existing_catalog(spec.table.catalog).name)
    return found and f"{TableLost.__name__}: {found}"


def missing_tables(spec: StreamSpec) -> dict[str, str]:
    """Return, for each missing table of the stream and its route, why it is missing and how to fix that.

    The result includes tables of the route that could not be made yet although rows wait for them. Raises the errors of
    catalog and storage.
    """
    table = load_stream_table(spec)
    if table is None:
        try:
            committed = has_committed(open_launcher(spec.name).observe())
        except (OSError, ValueError, TypeError, KeyError):  # the stream's state says so
            committed = False
        said = missing_table(spec, None, committed=committed)
        return {spec.table.identifier: said} if said else {}
    default_marker = read_marker(table.properties, spec.name)
    if default_marker is None or default_marker.routed is None:
        return {}
    with catalog_errors(table.catalog.name):
        behind, dropped = behind_default_table(spec, read_stream(spec).tables, default_marker, only_gone=True)
    found = {behind_one.target: str(behind_one) for behind_one in behind if behind_one.gone is Gone.MISSING}
    return found | {gone.target: str(gone) for gone in dropped}
