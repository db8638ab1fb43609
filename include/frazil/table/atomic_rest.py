"""Commits to several tables of a REST catalog with `POST /v1/{prefix}/transactions/commit`, as `commitTransaction` in
Iceberg's REST specification. PyIceberg does not support this request.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence

from pydantic import Field
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableRequest, TableIdentifier
from pyiceberg.typedef import IcebergBaseModel
from requests import HTTPError

from frazil.table.atomic_commit import TableChange


class _CommitTransactionRequest(IcebergBaseModel):
    table_changes: tuple[CommitTableRequest, ...] = Field(alias="table-changes")


def commit_by_rest(catalog: RestCatalog, changes: Sequence[TableChange]) -> None:
    """Commit the changes with one request, whose response has no metadata."""
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
        headers={"Idempotency-Key": str(_uuid7())},  # a gateway may repeat the request
    )
    try:
        response.raise_for_status()
    except HTTPError as error:
        unknown = dict.fromkeys((500, 502, 504), CommitStateUnknownException)
        _handle_non_200_response(error, {409: CommitFailedException, **unknown})


def _uuid7() -> uuid.UUID:
    """Return a UUID of version 7 (RFC 9562): the time in milliseconds, then random bits."""
    number = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    return uuid.UUID(int=number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62)
