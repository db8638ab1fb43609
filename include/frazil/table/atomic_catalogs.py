"""Decides which catalogs can commit to several tables in one step.

A SQL catalog can, because the pointers to its tables' metadata are rows of one database. Among REST catalogs, only the
servers listed here are known to do so. Other servers may offer the endpoint and still change one table after the other.
A server that does change all tables at once may keep no snapshot history.

Commits to several tables of a REST catalog with `POST /v1/{prefix}/transactions/commit`.

PyIceberg has no method for this request. Request and responses follow `commitTransaction` in Iceberg's REST
specification.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import Field
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableRequest, CommitTableResponse, StagedTable, Table, TableIdentifier
from pyiceberg.typedef import IcebergBaseModel
from requests import HTTPError
from sqlalchemy import Connection, bindparam, make_url, update

from frazil.errors import SpecError
from frazil.table.atomic_commit import CommitTables, TableChange
from frazil.table.parallel import in_parallel
from frazil.table.spark_catalog import ATOMIC, inferred_type

SERVERS = ("lakekeeper", "polaris")
DATABASES = ("postgresql", "sqlite")
ADVERTISED = "POST /v1/{prefix}/transactions/commit"


def commit_tables_of(catalog: Catalog) -> CommitTables:
    """Return the function with which this catalog commits to several tables at once. Raises SpecError if it cannot."""
    if reason := why_not_atomic(catalog.name, catalog.properties):
        raise SpecError(reason)
    if inferred_type(catalog.properties) == "sql":
        return partial(commit_by_sql, catalog)  # type: ignore[arg-type]

    if ADVERTISED not in {str(endpoint) for endpoint in catalog._supported_endpoints}:  # type: ignore[attr-defined]
        raise SpecError(
            f"the catalog {catalog.name!r} is declared ({ATOMIC}) to be {catalog.properties[ATOMIC]}, but its "
            f"server does not offer `{ADVERTISED}`. Correct the property or update the server, or remove "
            "`commit.atomic`"
        )
    return partial(commit_by_rest, catalog)  # type: ignore[arg-type]


def why_not_atomic(name: str, properties: Mapping[str, str]) -> str | None:
    """Return why a catalog with these properties cannot commit to several tables at once; None if it can. Sends no
    request.
    """
    kind, instead = inferred_type(properties), "Use a catalog that can, or remove `commit.atomic`"
    if kind == "sql":
        database = make_url(properties["uri"]).get_backend_name()
        if database in DATABASES:
            return None
        return (
            f"the catalog {name!r} is in {database}, where commits to several tables at once are untested; tested "
            f"are {' and '.join(DATABASES)}. {instead}"
        )
    if kind == "rest":
        if properties.get(ATOMIC, "").lower() in SERVERS:
            return None
        return (
            f"the catalog {name!r} is a REST catalog, and most change several tables one after the other. If its "
            f"server is {' or '.join(SERVERS)}, which change them at once, set the catalog's property {ATOMIC} to "
            f"that name. {instead}"
        )
    return f"the catalog {name!r} is of type {kind!r}, which changes one table at a time. {instead}"


IDEMPOTENCY_KEY = "Idempotency-Key"
_UNKNOWN = dict.fromkeys((500, 502, 504), CommitStateUnknownException)


class _CommitTransactionRequest(IcebergBaseModel):
    table_changes: tuple[CommitTableRequest, ...] = Field(alias="table-changes")


def commit_by_rest(catalog: RestCatalog, changes: Sequence[TableChange]) -> None:
    """Commit the changes with one request. Returns None, because the response has no metadata.

    Each call has its own idempotency key, so that a request that a gateway repeats is executed once. Raises
    CommitFailedException if a requirement does not hold; other failures raise the errors that PyIceberg raises for the
    commit of a single table.
    """
    request = _CommitTransactionRequest(
        table_changes=tuple(
            CommitTableRequest(
                identifier=TableIdentifier(namespace=change.table.name()[:-1], name=change.table.name()[-1]),
                requirements=change.requirements,
                updates=change.updates,
            )
            for change in changes
        )
    )
    response = catalog._session.post(
        catalog.url("transactions/commit", prefixed=True),
        data=request.model_dump_json().encode(),
        headers={IDEMPOTENCY_KEY: str(_uuid7())},
    )
    try:
        response.raise_for_status()
    except HTTPError as error:
        _handle_non_200_response(error, {409: CommitFailedException, **_UNKNOWN})


def _uuid7() -> uuid.UUID:
    """Return a UUID of version 7 (RFC 9562): 48 bits for the time in milliseconds, then random bits."""
    number = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    return uuid.UUID(int=number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62)


log = logging.getLogger(__name__)

# Built once: building five statements takes longer than executing them in PostgreSQL.
_MOVED = (
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
    """Write the new metadata files, then move all pointers in one transaction, each only if its table is unchanged.

    Raises CommitFailedException if another commit has moved a pointer. After an error, the new files are deleted,
    unless COMMIT was already sent: the outcome is then unknown.
    """
    staged: list[StagedTable] = []
    sent = False
    try:
        for change in changes:
            name = change.table.name()
            staged.append(catalog._update_and_stage_table(change.table, name, change.requirements, change.updates))
        in_parallel(lambda made: catalog._write_metadata(made.metadata, made.io, made.metadata_location), staged)
        with catalog.engine.connect() as connection:
            # The same order everywhere: two writers that lock the same rows never wait for each other.
            for change, made in sorted(zip(changes, staged, strict=True), key=lambda pair: pair[1].name()):
                _move(connection, catalog.name, change.table, made)
            sent = True
            connection.commit()
    except BaseException:
        if not sent:
            _delete(staged)
        raise
    return [CommitTableResponse(metadata=made.metadata, metadata_location=made.metadata_location) for made in staged]


def _move(connection: Connection, catalog: str, found: Table, made: StagedTable) -> None:
    *namespace, name = found.name()
    moved = connection.execute(
        _MOVED,
        {
            "catalog": catalog,
            "namespace": Catalog.namespace_to_string(tuple(namespace)),
            "table": name,
            "before": found.metadata_location,
            "after": made.metadata_location,
        },
    )
    if moved.rowcount != 1:
        raise CommitFailedException(f"table {'.'.join(found.name())} was changed meanwhile")


def _delete(staged: Sequence[StagedTable]) -> None:
    """Delete the metadata files; files that cannot be deleted are left for orphan removal."""
    for made in staged:
        try:
            made.io.delete(made.metadata_location)
        except FileNotFoundError:  # the file that could not be written
            continue
        except Exception as error:
            log.warning("the metadata file %s of a failed commit was left behind: %r", made.metadata_location, error)
