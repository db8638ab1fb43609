"""Tells tables that a stream had and its catalog lacks from those that are yet to be made."""

from __future__ import annotations

from frazil.commit.followers import Gone
from frazil.commit.marker import read_marker
from frazil.commit.opened import read_stream
from frazil.host.launchers import open_launcher
from frazil.spec.model import StreamSpec
from frazil.stream.dropped_tables import not_with_home
from frazil.supervise.liveness import has_committed
from frazil.table.catalogs import catalog_errors
from frazil.table.lost import missing_table
from frazil.table.tables import load_stream_table


def missing_tables(spec: StreamSpec) -> dict[str, str]:
    """Of the stream's own table and of those of its route: what happened to each, and what to do now.

    Also a table of the route that could not be made yet, while rows wait for it. Raises what catalog and storage raise.
    """
    table = load_stream_table(spec)
    if table is None:
        try:
            committed = has_committed(open_launcher(spec.name).observe())
        except (OSError, ValueError, TypeError, KeyError):  # the stream's state says so
            committed = False
        said = missing_table(spec, committed=committed)
        return {spec.table.identifier: said} if said else {}
    home = read_marker(table.properties, spec.name)
    if home is None or home.routed is None:
        return {}
    with catalog_errors(table.catalog.name):
        behind, dropped = not_with_home(spec, read_stream(spec).tables, home, only_gone=True)
    found = {lacks.target: str(lacks) for lacks in behind if lacks.gone is Gone.MISSING}
    return found | {gone.target: str(gone) for gone in dropped}
