"""Commits to several tables of a SQL catalog: one database transaction updates all pointers to metadata."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from sqlalchemy import Connection, bindparam, update

from frazil.table.atomic_commit import TableChange
from frazil.table.parallel import run_in_parallel

log = logging.getLogger(__name__)

# Built once: building five statements takes longer than executing them in PostgreSQL.
_MOVE_POINTER = (
    update(IcebergTables)
    .where(
        IcebergTables.catalog_name == bindparam("catalog"),
        IcebergTables.table_namespace == bindparam("namespace"),
        IcebergTables.table_name == bindparam("table"),
        IcebergTables.metadata_location == bindparam("before"),
    )
    .values(metadata_location=bindparam("after"), previous_metadata_location=bindparam("before"))
)


def commit_by_sql(catalog: SqlCatalog, changes: Sequence[TableChange]) -> list[CommitTableResponse]:
    """Write the new metadata files, then change all pointers in one transaction. Returns one response per table. Raises
    CommitFailedException if another commit has changed a pointer. On an error before COMMIT is sent, deletes the files;
    later, the outcome is unknown.
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
                _move_pointer(connection, catalog.name, change.table, made)
            sent = True
            connection.commit()
    except BaseException:
        if not sent:
            _delete_metadata_files(staged)
        raise
    return [CommitTableResponse(metadata=made.metadata, metadata_location=made.metadata_location) for made in staged]


def _move_pointer(connection: Connection, catalog: str, current: Table, made: StagedTable) -> None:
    """Update a table's metadata pointer. Raises CommitFailedException if another commit has changed it."""
    *namespace, name = current.name()
    moved = connection.execute(
        _MOVE_POINTER,
        {
            "catalog": catalog,
            "namespace": Catalog.namespace_to_string(tuple(namespace)),
            "table": name,
            "before": current.metadata_location,
            "after": made.metadata_location,
        },
    )
    if moved.rowcount != 1:
        raise CommitFailedException(f"table {'.'.join(current.name())} was changed by another commit")


def _delete_metadata_files(staged: Sequence[StagedTable]) -> None:
    for made in staged:
        try:
            made.io.delete(made.metadata_location)
        except FileNotFoundError:  # the file that could not be written
            continue
        except Exception as error:
            log.warning("cannot delete the metadata file %s of a failed commit: %r", made.metadata_location, error)
