"""Commits to several tables of a SQL catalog: one database transaction updates all pointers to metadata."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, StagedTable

from frazil.table.atomic_commit import TableChange
from frazil.table.parallel import run_in_parallel
from frazil.table.sql_catalog import move_pointer

log = logging.getLogger(__name__)


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
                move_pointer(connection, catalog, change.table, made)
            sent = True
            connection.commit()
    except BaseException:
        if not sent:
            _delete_metadata_files(staged)
        raise
    return [CommitTableResponse(metadata=made.metadata, metadata_location=made.metadata_location) for made in staged]


def _delete_metadata_files(staged: Sequence[StagedTable]) -> None:
    for made in staged:
        try:
            made.io.delete(made.metadata_location)
        except FileNotFoundError:  # the file that could not be written
            continue
        except Exception as error:
            log.warning("cannot delete the metadata file %s of a failed commit: %r", made.metadata_location, error)
