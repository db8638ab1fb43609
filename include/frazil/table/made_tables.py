"""Finds the tables that a route's template has created: their properties prove it, their names only suggest it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError
from pyiceberg.table import Table

from frazil.errors import AccessDenied
from frazil.spec.model import StreamSpec
from frazil.spec.route import Route, may_have_made, value_property
from frazil.table.catalogs import names_in, words_of_table
from frazil.table.declared import DeclaredTable, declared_table
from frazil.table.parallel import in_parallel

OWN_FOLDERS = frozenset({"write.data.path", "write.metadata.path", "write.object-storage.path"})
"""Properties of the main table that no other table may share."""


def routed_table(spec: StreamSpec, identifier: str, value: str | None = None) -> DeclaredTable:
    """A table of a stream's route as it would be created; `value` is the template's value for it."""
    declared = declared_table(spec)
    properties = {name: text for name, text in declared.properties.items() if name not in OWN_FOLDERS}
    if value is not None:
        properties[value_property(spec.name)] = value
    return dataclasses.replace(declared, identifier=identifier, location=None, properties=properties)


def named_like(catalog: Catalog, route: Route) -> list[str]:
    """Sorted identifiers of tables that are named like the template's tables. Loads none of them."""
    if route.template is None:
        return []
    found = names_in(catalog, route.template.rpartition(".")[0])
    return sorted(identifier for identifier in found if may_have_made(route, identifier))


def tables_of(catalog: Catalog, route: Route, *, stream: str) -> dict[str, Table]:
    """The existing tables of a route by identifier: those that it names, and those that its template created.

    Raises AccessDenied with the table that the catalog forbids, and what else the catalog raises.
    """
    declared = set(route.tables.values())

    def load(identifier: str) -> Table | None:
        try:
            table = catalog.load_table(identifier)
        except NoSuchTableError:
            return None
        except ForbiddenError as error:
            raise AccessDenied(f"table {identifier}: {words_of_table(error)}") from error
        ours = identifier in declared or made_for(table.properties, identifier, route, stream=stream) is not None
        return table if ours else None

    names = sorted({*declared, *named_like(catalog, route)})
    loaded = in_parallel(load, names) if names else []
    return {name: table for name, table in zip(names, loaded, strict=True) if table is not None}


def made_for(properties: Mapping[str, str], identifier: str, route: Route, *, stream: str) -> str | None:
    """The value that the template created a table for; None if it did not create it."""
    value = properties.get(value_property(stream))
    return value if value is not None and route.template and route.made_table(value) == identifier else None
