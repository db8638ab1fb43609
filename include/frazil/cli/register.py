"""`frazil register`: restores a table whose files exist to a catalog that lost it."""

from __future__ import annotations

import click
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError

from frazil.cli.options import json_option
from frazil.cli.output import Teller
from frazil.errors import SpecError
from frazil.spec.units import counted
from frazil.table.catalogs import catalog_errors, load_catalog
from frazil.table.registering import check_newest, check_not_another, metadata_at


@click.command()
@click.argument("table")
@click.argument("metadata")
@click.option("--catalog", "name", help="The catalog. Default: the default catalog.")
@click.option("--older", is_flag=True, help="Register METADATA although the table has a newer file.")
@json_option
def register(table: str, metadata: str, *, name: str | None, older: bool, as_json: bool) -> None:
    """Restore TABLE to its catalog, as its metadata file METADATA describes it.

    Use this for a table that was dropped or lost, and whose files still exist. Error messages about such a table
    contain the whole command, with the table's newest metadata file. Changes no file. Refuses a table name that exists,
    a table that the catalog has under another name, and, without --older, a file that is not the table's newest.

    \b
    Example:
      frazil register city.rides file:///lake/city/rides/metadata/00412-….metadata.json
    """
    teller, catalog = Teller(as_json), load_catalog(name)
    namespace = Catalog.namespace_from(table)
    if not namespace:
        raise SpecError(f"{table!r} is not a table identifier; write namespace.table")
    with catalog_errors(catalog.name):
        described = metadata_at(catalog, metadata)
        if described is not None:
            check_not_another(catalog, table, described)
            if not older:
                check_newest(catalog, table, metadata, described)
        catalog.create_namespace_if_not_exists(namespace)
        try:
            found = catalog.register_table(table, metadata)
        except TableAlreadyExistsError:
            raise SpecError(f"the catalog {catalog.name!r} has a table {table}: nothing was registered") from None
    snapshots = counted(len(found.metadata.snapshots), "snapshot")
    teller.say(f"{table} is in the catalog {catalog.name!r} again, with {snapshots}, in {found.location()}.")
    teller.end(catalog=catalog.name, table=table, metadata=metadata, location=found.location())
