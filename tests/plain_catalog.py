"""Makes PyIceberg's SQL catalog cheap on SQLite: same tables, transactions and errors, but statements as plain text.

`SqlCatalog` builds and compiles each statement with SQLAlchemy again, which took 40 % of the CPU of tests that commit.
With `FRAZIL_TEST_CATALOG=sqlalchemy`, tests use PyIceberg's own statements.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

CREATE_TABLES = [
    str(CreateTable(table).compile(dialect=sqlite.dialect())) for table in SqlCatalogBaseTable.metadata.sorted_tables
]
COUNT_TABLES = "SELECT count(*) FROM sqlite_master WHERE name IN ('iceberg_tables', 'iceberg_namespace_properties')"
FIND_TABLE = (
    "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ? "
    "AND table_namespace = ? AND table_name = ? AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
)
MOVE_POINTER = (
    "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
    "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ? AND metadata_location = ?"
)
FIND_NAMESPACE = (
    "SELECT 1 FROM iceberg_tables "
    "WHERE catalog_name = ? AND (table_namespace = ? OR table_namespace LIKE ? ESCAPE '!') "
    "UNION ALL SELECT 1 FROM iceberg_namespace_properties "
    "WHERE catalog_name = ? AND (namespace = ? OR namespace LIKE ? ESCAPE '!') LIMIT 1"
)


class Row(NamedTuple):
    table_namespace: str
    table_name: str
    metadata_location: str


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


def load_table(catalog: SqlCatalog, identifier: Any) -> Table:
    if not is_plain(catalog):
        return _load_table(catalog, identifier)
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    name = Catalog.table_name_from(identifier)
    with catalog.engine.connect() as connection:
        row = connection.exec_driver_sql(FIND_TABLE, (catalog.name, namespace, name)).one_or_none()
    if row is None:
        raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
    return catalog._convert_orm_to_iceberg(Row(*row))  # type: ignore[arg-type]


def commit_table(catalog: SqlCatalog, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
    """Check the requirements, write the metadata file, and compare-and-swap the pointer in one transaction."""
    try:
        current = catalog.load_table(table.name()) if is_plain(catalog) else None
    except NoSuchTableError:
        current = None
    if current is None:
        return _commit_table(catalog, table, requirements, updates)
    staged = catalog._update_and_stage_table(current, table.name(), requirements, updates)
    if staged.metadata == current.metadata:
        return CommitTableResponse(metadata=current.metadata, metadata_location=current.metadata_location)
    catalog._write_metadata(staged.metadata, staged.io, staged.metadata_location)
    *namespace, name = table.name()
    of_table = (catalog.name, Catalog.namespace_to_string(tuple(namespace)), name)
    before, after = current.metadata_location, staged.metadata_location
    with catalog.engine.begin() as connection:
        if connection.exec_driver_sql(MOVE_POINTER, (after, before, *of_table, before)).rowcount < 1:
            raise CommitFailedException(f"Table has been updated by another process: {'.'.join(table.name())}")
    return CommitTableResponse(metadata=staged.metadata, metadata_location=after)


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
    "load_table": load_table,
    "commit_table": commit_table,
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
