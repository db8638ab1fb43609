"""`frazil register`: puts a table into its catalog again whose files are there, and which the catalog lost."""

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
@click.option("--catalog", "name", help="The catalog; the default one if left out.")
@click.option("--older", is_flag=True, help="Register METADATA although the table has a newer one.")
@json_option
def register(table: str, metadata: str, *, name: str | None, older: bool, as_json: bool) -> None:
    """Put TABLE into its catalog again, as its file METADATA describes it.

    For a table that was dropped or lost, and whose files are left. Sentences about such a table have the whole command,
    with its newest metadata file. No file is changed. Refused are a table of this name that is there, a table that the
    catalog has under another name beside it, and a file that is not the table's newest, unless --older is given.

    \b
    Example:
      frazil register city.rides file:///lake/city/rides/metadata/00412-….metadata.json
    """
    teller, catalog = Teller(as_json), load_catalog(name)
    namespace = Catalog.namespace_from(table)
    if not namespace:
        raise SpecError(f"{table!r} is no identifier; write namespace.table")
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
