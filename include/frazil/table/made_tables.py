"""Finds the tables that a route's template has created, by their properties; a matching name is not enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError
from pyiceberg.table import Table

from frazil.errors import AccessDenied
from frazil.spec.model import StreamSpec
from frazil.spec.route import value_property
from frazil.spec.sinks import Sinks
from frazil.table.catalogs import explain_table_error, list_table_names
from frazil.table.declared import DeclaredTable, declared_table
from frazil.table.parallel import run_in_parallel

OWN_FOLDERS = frozenset({"write.data.path", "write.metadata.path", "write.object-storage.path"})
"""Properties that other tables do not get: they name the main table's own folders."""


def declare_routed_table(spec: StreamSpec, identifier: str, value: str | None = None) -> DeclaredTable:
    """Return the declaration of a table of the route. `value` is the route value if the template creates the table."""
    declared = declared_table(spec)
    properties = {name: text for name, text in declared.properties.items() if name not in OWN_FOLDERS}
    if value is not None:
        properties[value_property(spec.name)] = value
    return dataclasses.replace(declared, identifier=identifier, location=None, properties=properties)


def list_matching_names(catalog: Catalog, sinks: Sinks) -> list[str]:
    """Return the sorted identifiers that match the route's template."""
    if sinks.template is None:
        return []
    return sorted(filter(sinks.matches_template, list_table_names(catalog, sinks.template.rpartition(".")[0])))


def load_route_tables(catalog: Catalog, sinks: Sinks, *, names: Iterable[str] | None = None) -> dict[str, Table]:
    """Load the existing tables (`names`, or all) that a route lists or its template created."""

    def load(identifier: str) -> Table | None:
        try:
            table = catalog.load_table(identifier)
        except NoSuchTableError:
            return None
        except ForbiddenError as error:
            raise AccessDenied(f"table {identifier}: {explain_table_error(error)}") from error
        return table if sinks.owns(identifier, table.properties) else None

    names = sorted({*sinks.named_tables, *list_matching_names(catalog, sinks)} if names is None else names)
    loaded = run_in_parallel(load, names) if names else []
    return {name: table for name, table in zip(names, loaded, strict=True) if table is not None}
