"""Makes PyIceberg's SQL catalog cheap on SQLite: same tables, transactions and errors, but statements that are built
once, as in `PreparedSqlCatalog`, or plain text.

`SqlCatalog` builds and compiles each statement with SQLAlchemy again, which took 40 % of the CPU of tests that commit.
With `FRAZIL_TEST_CATALOG=sqlalchemy`, tests use PyIceberg's own statements.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import NoSuchNamespaceError
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from frazil.table.sql_catalog import PreparedSqlCatalog

CREATE_TABLES = [
    str(CreateTable(table).compile(dialect=sqlite.dialect())) for table in SqlCatalogBaseTable.metadata.sorted_tables
]
COUNT_TABLES = "SELECT count(*) FROM sqlite_master WHERE name IN ('iceberg_tables', 'iceberg_namespace_properties')"
FIND_NAMESPACE = (
    "SELECT 1 FROM iceberg_tables "
    "WHERE catalog_name = ? AND (table_namespace = ? OR table_namespace LIKE ? ESCAPE '!') "
    "UNION ALL SELECT 1 FROM iceberg_namespace_properties "
    "WHERE catalog_name = ? AND (namespace = ? OR namespace LIKE ? ESCAPE '!') LIMIT 1"
)


_init_catalog, _load_table = SqlCatalog._init_catalog, SqlCatalog.load_table
_commit_table, _namespace_exists = SqlCatalog.commit_table, SqlCatalog.namespace_exists
PYICEBERG = {
    "_init_catalog": _init_catalog,
    "load_table": _load_table,
    "commit_table": _commit_table,
    "namespace_exists": _namespace_exists,
}


def is_plain(catalog: SqlCatalog) -> bool:
    return catalog.engine.dialect.name == "sqlite" and getattr(catalog, "_schema_version", None) == "v1"


def init_catalog(catalog: SqlCatalog) -> None:
    """Create the catalog's tables in a new database."""
    if catalog.engine.dialect.name != "sqlite" or catalog.properties.keys() & {"schema_version", "init_catalog_tables"}:
        return _init_catalog(catalog)
    with catalog.engine.connect() as connection:
        if connection.exec_driver_sql(COUNT_TABLES).scalar():
            return _init_catalog(catalog)
        for statement in CREATE_TABLES:
            connection.exec_driver_sql(statement)
        connection.commit()
    catalog._schema_version = "v1"
    return None


def namespace_exists(catalog: SqlCatalog, identifier: Any) -> bool:
    if not is_plain(catalog):
        return _namespace_exists(catalog, identifier)
    namespace = Catalog.namespace_to_string(Catalog.identifier_to_tuple(identifier), NoSuchNamespaceError)
    below = namespace.replace("!", "!!").replace("_", "!_").replace("%", "!%") + ".%"
    found = (catalog.name, namespace, below) * 2
    with catalog.engine.connect() as connection:
        return connection.exec_driver_sql(FIND_NAMESPACE, found).first() is not None


PLAIN = {
    "_init_catalog": init_catalog,
    "load_table": PreparedSqlCatalog.load_table,
    "commit_table": PreparedSqlCatalog.commit_table,
    "namespace_exists": namespace_exists,
}


@contextmanager
def catalogs_with(methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace these methods of all SQL catalogs in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, method in methods.items():
            patch.setattr(SqlCatalog, name, method)
        yield


def chosen() -> Mapping[str, Callable[..., Any]]:
    return PYICEBERG if os.environ.get("FRAZIL_TEST_CATALOG") == "sqlalchemy" else PLAIN
