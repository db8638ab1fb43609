"""Which tables of a catalog the template of a route has made: their properties say so, and their names only hint."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError

from frazil.spec.route import Route, may_have_made, value_property


def named_like(catalog: Catalog, route: Route) -> list[str]:
    """The identifiers of tables that are named as the template names tables, in order. Loads none of them."""
    if route.template is None:
        return []
    namespace = route.template.rpartition(".")[0]
    try:
        found = [f"{namespace}.{identifier[-1]}" for identifier in catalog.list_tables(namespace)]
    except NoSuchNamespaceError:
        return []
    return sorted(identifier for identifier in found if may_have_made(route, identifier))


def made_for(properties: Mapping[str, str], identifier: str, route: Route, *, stream: str) -> str | None:
    """The value that the template made a table for; None if it did not make it."""
    value = properties.get(value_property(stream))
    return value if value is not None and route.template and route.made_table(value) == identifier else None
