"""PyIceberg's SQL catalog, with statements that are built once.

PyIceberg builds the statements again for each load and commit. SQLAlchemy then takes ten times as long as the database.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import ICEBERG_TABLE_TYPE, IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy import Connection, Executable, bindparam, select, update

from frazil.table.parallel import run_in_parallel

if TYPE_CHECKING:
    from frazil.table.atomic_catalogs import TableChange

_commit_table = SqlCatalog.commit_table
log = logging.getLogger(__name__)


class PreparedSqlCatalog(SqlCatalog):
    """Loads tables and moves their pointers as PyIceberg's catalog does: same rows, transactions and errors."""

    def _init_catalog(self) -> None:
        if self.engine.dialect.name == "sqlite":  # PyIceberg would try to create tables in a locked file
            with self.engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1")
        super()._init_catalog()

    def load_table(self, identifier: str | Identifier) -> Table:
        if (row := _find_row(self, identifier)) is None:
            key = _row_key(self, identifier)
            raise NoSuchTableError(f"Table does not exist: {key['namespace']}.{key['name']}")
        return self._convert_orm_to_iceberg(row)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Check the requirements, write the metadata file, and compare-and-swap the pointer in one transaction."""
        row = _find_row(self, table.name()) if self.engine.dialect.supports_sane_rowcount else None
        if row is None:  # a new table, or a database that does not count changed rows
            return _commit_table(self, table, requirements, updates)
        is_same = row.metadata_location == table.metadata_location
        current = table if is_same else self._convert_orm_to_iceberg(row)
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        if staged.metadata != current.metadata:
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            with self.engine.begin() as connection:
                move_pointer(connection, self, current, staged)
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)


def _find_row(catalog: SqlCatalog, identifier: str | Identifier) -> Any:
    with catalog.engine.connect() as connection:
        return connection.execute(_find(catalog._schema_version), _row_key(catalog, identifier)).one_or_none()


def _row_key(catalog: SqlCatalog, identifier: str | Identifier) -> dict[str, str]:
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    return {"catalog": catalog.name, "namespace": namespace, "name": Catalog.table_name_from(identifier)}


_IS_ROW = (
    IcebergTables.catalog_name == bindparam("catalog"),
    IcebergTables.table_namespace == bindparam("namespace"),
    IcebergTables.table_name == bindparam("name"),
)


@cache
def _find(schema_version: str) -> Executable:
    """Return the statement that finds a table. Catalogs of schema version 0 have no types, and no views."""
    columns = (IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
    query = select(*columns).where(*_IS_ROW)
    is_table = (IcebergTables.iceberg_type == ICEBERG_TABLE_TYPE) | IcebergTables.iceberg_type.is_(None)
    return query.where(is_table) if schema_version == "v1" else query


_MOVE_POINTER = (
    update(IcebergTables.__table__)  # type: ignore[arg-type]
    .where(*_IS_ROW, IcebergTables.metadata_location == bindparam("before"))
    .values(metadata_location=bindparam("after"), previous_metadata_location=bindparam("before"))
)


def move_pointer(connection: Connection, catalog: SqlCatalog, current: Table, staged: StagedTable) -> None:
    """Update a table's metadata pointer. Raises CommitFailedException if another commit has changed it."""
    pointers = {"before": current.metadata_location, "after": staged.metadata_location}
    if connection.execute(_MOVE_POINTER, {**_row_key(catalog, current.name()), **pointers}).rowcount != 1:
        raise CommitFailedException(f"Table has been updated by another process: {'.'.join(current.name())}")


def commit_by_sql(catalog: SqlCatalog, changes: Sequence[TableChange]) -> list[CommitTableResponse]:
    """Write the new metadata files, then change all pointers in one transaction. Returns one response per table.

    Raises CommitFailedException if another commit has changed a pointer. On an error before COMMIT is sent, deletes the
    new files. After COMMIT is sent, an error leaves the outcome unknown.
    """
    staged: list[StagedTable] = []
    sent = False
    try:
        for change in changes:
            name = change.table.name()
            staged.append(catalog._update_and_stage_table(change.table, name, change.requirements, change.updates))
        run_in_parallel(lambda made: catalog._write_metadata(made.metadata, made.io, made.metadata_location), staged)
        with catalog.engine.connect() as connection:
            # All writers lock the rows in the same order, so two writers cannot deadlock.
            for change, made in sorted(zip(changes, staged, strict=True), key=lambda pair: pair[1].name()):
                move_pointer(connection, catalog, change.table, made)
            sent = True
            connection.commit()
    except BaseException:
        if not sent:
            _delete_metadata_files(staged)
        raise
    return [CommitTableResponse(metadata=made.metadata, metadata_location=made.metadata_location) for made in staged]


def _delete_metadata_files(staged: Sequence[StagedTable]) -> None:
    for table in staged:
        try:
            table.io.delete(table.metadata_location)
        except FileNotFoundError:  # the file that could not be written
            continue
        except Exception as error:
            log.warning("cannot delete the metadata file %s of a failed commit: %r", table.metadata_location, error)
