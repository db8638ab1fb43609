"""Detects that a stream's table was dropped or renamed, even if another table now has its name. The dead-letter table's
marker names the stream's own table. `frazil forget` removes this marker last.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.commit.adoption import FORGOTTEN_PREFIX
from frazil.commit.marker import Marker, property_name, read_marker
from frazil.errors import FrazilError, MarkerUnreadable, TableLost
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import open_existing_catalog, translate_catalog_errors
from frazil.table.lost import find_lost_table, find_other_name, registration_command
from frazil.table.remains import find_newest_metadata
from frazil.table.storage import open_store


def check_own_table(spec: StreamSpec, table: Table | None) -> None:
    """Raise TableLost if the catalog no longer has the stream's own table under its name."""
    if lost := explain_lost_table(spec, table):
        raise TableLost(f"stream {spec.name!r}: {lost}")


def explain_lost_table(spec: StreamSpec, table: Table | None) -> str | None:
    """Return why the name no longer leads to the stream's own table; None if it does."""
    if table is not None and not {property_name(spec.name), FORGOTTEN_PREFIX + spec.name}.isdisjoint(table.properties):
        return None
    if table is None and (lost := find_lost_table(spec)):
        return lost
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        try:
            properties = catalog.load_table(spec.dead_letter_table).properties
            marker = read_marker(properties, spec.name)
        except (NoSuchTableError, MarkerUnreadable):
            return None
        if marker is None or not _wrote_to_declared_table(spec, marker):
            return None
        return _explain(catalog, spec, marker, table)


def _wrote_to_declared_table(spec: StreamSpec, marker: Marker) -> bool:
    if marker.own_table is None:  # of an earlier version
        return spec.dead_letters.table is None
    return marker.own_table.name == spec.table.identifier


def _explain(catalog: Catalog, spec: StreamSpec, marker: Marker, table: Table | None) -> str:
    name, epoch = spec.table.identifier, f"epoch {marker.at.epoch}"
    if table is None:
        what = (
            f"the table {name} is not in the catalog {catalog.name!r}, but {spec.dead_letter_table} still has the "
            f"stream's {epoch}: the catalog was lost or replaced, or the table was dropped or renamed"
        )
        first, begin = "", "to begin again in a new table"
    else:
        what = (
            f"table {name} is not the table that the stream wrote to: that table was dropped or renamed, and another "
            f"table has its name (the stream's marker in {spec.dead_letter_table} has {epoch})"
        )
        first = f"drop the new table without purging it (in Spark `DROP TABLE {name}`, without PURGE), then "
        begin = "to begin again in the new table"
    back = _recovery_step(catalog, spec, marker)
    return f"{what}. To keep the stream's table, {first}{back}. Or run `frazil forget {spec.name}` {begin}"


def _recovery_step(catalog: Catalog, spec: StreamSpec, marker: Marker) -> str:
    own, name = marker.own_table, spec.table.identifier
    if own is None:
        return "register its newest metadata file, or rename it back"
    if now := find_other_name(catalog, name, location=own.location, uuid=own.uuid):
        return f"rename {now} back to {name}"
    try:
        newest = find_newest_metadata(open_store(own.location, catalog.properties), own.location, own.uuid)
    except (FrazilError, OSError):
        newest = None
    if newest is None:
        return f"register its newest metadata file, which is not in {own.location}"
    return f"register it again: `{registration_command(catalog.name, name, newest.path)}`"
