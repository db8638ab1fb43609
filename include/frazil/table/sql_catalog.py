"""PyIceberg's SQL catalog with statements that are built once. PyIceberg builds them again for each load and commit,
and SQLAlchemy then takes ten times as long as the database.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import ICEBERG_TABLE_TYPE, IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy import Executable, Update, bindparam, select, update

_commit_table = SqlCatalog.commit_table


class PreparedSqlCatalog(SqlCatalog):
    """Loads tables and moves their pointers as PyIceberg's catalog does: same rows, transactions and errors."""

    def load_table(self, identifier: str | Identifier) -> Table:
        place = _place(self, identifier)
        with self.engine.connect() as connection:
            row: Any = connection.execute(_find(self._schema_version), place).one_or_none()
        if row is None:
            raise NoSuchTableError(f"Table does not exist: {place['namespace']}.{place['name']}")
        return self._convert_orm_to_iceberg(row)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Check the requirements, write the metadata file, and compare-and-swap the pointer in one transaction."""
        try:
            current = self.load_table(table.name()) if self.engine.dialect.supports_sane_rowcount else None
        except NoSuchTableError:
            current = None
        if current is None:  # a new table, or a database that does not count changed rows
            return _commit_table(self, table, requirements, updates)
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        if staged.metadata != current.metadata:
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            pointers = {"before": current.metadata_location, "after": staged.metadata_location}
            with self.engine.begin() as connection:
                moved = connection.execute(_move(), {**_place(self, table.name()), **pointers}).rowcount
            if moved < 1:
                raise CommitFailedException(f"Table has been updated by another process: {'.'.join(table.name())}")
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)


def _place(catalog: SqlCatalog, identifier: str | Identifier) -> dict[str, str]:
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    return {"catalog": catalog.name, "namespace": namespace, "name": Catalog.table_name_from(identifier)}


_PLACE = (
    IcebergTables.catalog_name == bindparam("catalog"),
    IcebergTables.table_namespace == bindparam("namespace"),
    IcebergTables.table_name == bindparam("name"),
)


@cache
def _find(schema_version: str) -> Executable:
    """Return the statement that finds a table. Catalogs of schema version 0 have no types, and no views."""
    columns = (IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
    found = select(*columns).where(*_PLACE)
    is_table = (IcebergTables.iceberg_type == ICEBERG_TABLE_TYPE) | IcebergTables.iceberg_type.is_(None)
    return found.where(is_table) if schema_version == "v1" else found


@cache
def _move() -> Update:
    """Return the statement that moves a table's pointer, unless another commit has moved it."""
    moved = update(IcebergTables.__table__).where(*_PLACE, IcebergTables.metadata_location == bindparam("before"))  # type: ignore[arg-type]
    return moved.values(metadata_location=bindparam("after"), previous_metadata_location=bindparam("before"))
