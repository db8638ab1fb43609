"""Distinguishes tables that their catalog has lost from tables that were never created."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.errors import SpecError, TableLost
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import catalog_config, list_table_names, open_existing_catalog, translate_catalog_errors
from frazil.table.declared import DeclaredTable, declared_dead_letters, declared_table
from frazil.table.parallel import run_in_parallel
from frazil.table.remains import Remains, find_new_folder, find_other_table, read_remains
from frazil.table.storage import open_store


def find_remains(catalog: Catalog, declared: DeclaredTable) -> Remains | None:
    location, properties = declared.location, declared.properties
    folder = find_new_folder(catalog, declared.identifier, declared.schema, location=location, properties=properties)
    return read_remains(folder) if folder else None


def explain_lost_table(catalog: Catalog, identifier: str, found: Remains) -> str:
    uuid = found.newest.uuid if found.newest else None
    if name := find_other_name(catalog, identifier, location=found.location, uuid=uuid):
        return (
            f"the table {identifier} is not in the catalog {catalog.name!r}, and its location {found.location} holds "
            f"the table {name}. If {identifier} was renamed, rename {name} back to {identifier} or declare "
            f"`table: {name}`; otherwise declare another `table.location`"
        )
    ways = ["Check that FRAZIL_HOME or .pyiceberg.yaml names the right catalog"]
    if found.newest is not None:
        ways.append(f"register the table again: `{registration_command(catalog.name, identifier, found.newest.path)}`")
    return (
        f"the table {identifier} is not in the catalog {catalog.name!r}, but its location {found.location} has files "
        f"of a table: {found}. The catalog may have been lost or replaced. {', or '.join(ways)}. If the table was "
        "dropped on purpose, move the folder away, or declare another `table.location`"
    )


def find_other_name(catalog: Catalog, identifier: str, *, location: str, uuid: str | None) -> str | None:
    """Return another name of the table with this folder or UUID. Searches the namespaces of `identifier` and folder."""
    folder = _strip_file_scheme(location)
    above = folder.split("/")[-2:-1]
    namespaces = {identifier.rpartition(".")[0], *(name.removesuffix(".db") for name in above if name)}
    names = sorted({name for namespace in namespaces for name in list_table_names(catalog, namespace)} - {identifier})

    def is_same(name: str) -> bool:
        try:
            metadata = catalog.load_table(name).metadata
        except Exception:  # a table that cannot be loaded does not count
            return False
        return str(metadata.table_uuid) == uuid or _strip_file_scheme(metadata.location) == folder

    matches = run_in_parallel(is_same, names) if names else []
    return next((name for name, matched in zip(names, matches, strict=True) if matched), None)


def _strip_file_scheme(location: str) -> str:
    return location.removeprefix("file://").rstrip("/")


def missing_table_error(spec: StreamSpec) -> TableLost | None:
    """Return the error for the stream's missing table; None if it exists."""
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        if catalog.table_exists(spec.table.identifier):
            return None
    return TableLost(find_lost_table(spec) or explain_dropped_table(spec, catalog.name))


def check_own_folder(catalog: Catalog, table: Table) -> None:
    """Raise TableLost if another table of the catalog has files in this table's folder."""
    identifier = ".".join(table.name())
    other = find_other_table(open_store(table.location(), table.io.properties), table)
    name = other and find_other_name(catalog, identifier, location=table.location(), uuid=other.uuid)
    if name:
        raise TableLost(
            f"the folder {table.location()} of table {identifier} also holds the table {name}, which was "
            f"renamed before {identifier} was created again: each table would delete the other's files. Drop "
            f"{identifier} without purging it and rename {name} back, or declare another `table.location`"
        )


def registration_command(catalog: str, identifier: str, metadata: str) -> str:
    of = "" if catalog == catalog_config(None).name else f" --catalog {shlex.quote(catalog)}"
    return f"frazil register {identifier} {shlex.quote(metadata)}{of}"


def find_lost_table(spec: StreamSpec) -> str | None:
    """Return the error text if the catalog has lost the stream's table, which must not be created again."""
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        if catalog.table_exists(spec.table.identifier):
            return None
        found = find_remains(catalog, declared_table(spec))
    return explain_lost_table(catalog, spec.table.identifier, found) if found else None


def lost_dead_letters_error(spec: StreamSpec) -> TableLost:
    """Return the error for an existing stream whose dead-letter table is missing."""
    catalog, identifier = open_existing_catalog(spec.table.catalog), spec.dead_letter_table
    with translate_catalog_errors(catalog.name):
        found = find_remains(catalog, declared_dead_letters(spec))
    reason = (
        explain_lost_table(catalog, identifier, found)
        if found
        else f"its dead-letter table {identifier} is not in the catalog {catalog.name!r}: it was dropped or renamed. "
        f"To create an empty dead-letter table, restart the writer: `frazil restart {spec.name}`"
    )
    return TableLost(f"stream {spec.name!r}: {reason}")


def open_stream_catalog(spec: StreamSpec) -> Catalog:
    """Open the catalog of a stream's table for reading. Raises TableLost, and the errors of `find_lost_table`."""
    if lost := find_lost_table(spec):
        raise TableLost(f"stream {spec.name!r}: {lost}")
    return open_existing_catalog(spec.table.catalog)


def absent_table_error(identifier: str, specs: Iterable[StreamSpec]) -> TableLost | SpecError:
    """Return the error for a missing table: TableLost if these streams' catalog has lost it, else SpecError."""
    for spec in specs:
        if lost := find_lost_table(spec):
            return TableLost(lost)
    return SpecError(f"the table {identifier} does not exist yet: the first start of its writer creates it")


def explain_dropped_table(spec: StreamSpec, catalog: str) -> str:
    """Return the error text for a missing table to which this host's writer has committed."""
    return (
        f"a writer of this host committed to the table {spec.table.identifier}, but the catalog {catalog!r} does not "
        "have the table: the catalog was lost or replaced, or the table was dropped or renamed. Configure the right "
        "catalog, or register the table's newest metadata file. If the table was dropped on purpose, run "
        f"`frazil forget {spec.name}`"
    )
