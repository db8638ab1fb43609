"""Decides which catalogs can commit to several tables in one step: SQL catalogs, and the REST servers listed here.
Other catalogs may change tables one by one, or lose the snapshot history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from sqlalchemy import make_url

from frazil.errors import SpecError
from frazil.table.spark_catalog import ATOMIC_PROPERTY, catalog_type


@dataclass(frozen=True, slots=True)
class TableChange:
    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


CommitTables = Callable[[Sequence[TableChange]], Sequence[CommitTableResponse] | None]
"""Commits all changes, or none. After any error other than CommitFailedException, the outcome is unknown."""


ATOMIC_SERVERS = ("lakekeeper", "polaris")
"""Names of REST catalog servers that commit atomically: the valid values of `frazil.atomic`."""
TESTED_DATABASES = ("postgresql", "sqlite")
"""Databases of SQL catalogs with tested atomic commits, by SQLAlchemy's names."""
COMMIT_ENDPOINT = "POST /v1/{prefix}/transactions/commit"
"""Endpoint for atomic commits that a REST catalog's server must list."""


def find_commit_tables(catalog: Catalog) -> CommitTables:
    """Return the function that commits to several tables in one step. Raises SpecError if this is impossible."""
    if reason := atomic_commit_problem(catalog.name, catalog.properties):
        raise SpecError(reason)
    if catalog_type(catalog.properties) == "sql":
        from frazil.table.sql_catalog import commit_by_sql  # loads a client that other catalogs do not need

        return partial(commit_by_sql, catalog)  # type: ignore[arg-type]
    from frazil.table.rest_catalog import commit_by_rest

    if COMMIT_ENDPOINT not in {str(endpoint) for endpoint in catalog._supported_endpoints}:  # type: ignore[attr-defined]
        raise SpecError(
            f"the catalog {catalog.name!r} is declared ({ATOMIC_PROPERTY}) to be {catalog.properties[ATOMIC_PROPERTY]},"
            f" but its server does not offer `{COMMIT_ENDPOINT}`. Correct the property or update the server, or remove "
            "`commit.atomic`"
        )
    return partial(commit_by_rest, catalog)  # type: ignore[arg-type]


def atomic_commit_problem(name: str, properties: Mapping[str, str]) -> str | None:
    """Return why a catalog with these properties cannot commit atomically; None if it can. Sends no request."""
    kind = catalog_type(properties)
    instead = "Use a catalog with atomic commits to several tables, or remove `commit.atomic`"
    if kind == "sql":
        database = make_url(properties["uri"]).get_backend_name()
        if database in TESTED_DATABASES:
            return None
        return (
            f"the catalog {name!r} is in {database}, where atomic commits to several tables are not tested; they are "
            f"tested with {' and '.join(TESTED_DATABASES)}. {instead}"
        )
    if kind == "rest":
        if properties.get(ATOMIC_PROPERTY, "").lower() in ATOMIC_SERVERS:
            return None
        return (
            f"the catalog {name!r} is a REST catalog, and most REST catalogs change several tables one after the "
            f"other, not atomically. If its server is {' or '.join(ATOMIC_SERVERS)}, whose commits are atomic, set "
            f"the property {ATOMIC_PROPERTY} of the catalog to the server's name. {instead}"
        )
    return f"the catalog {name!r} is of type {kind!r}, which changes one table at a time. {instead}"
