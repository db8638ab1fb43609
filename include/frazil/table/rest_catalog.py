"""PyIceberg's client for REST catalogs, with timeouts and a check that responses are JSON. If a server is overloaded, a
read is retried after the server's `Retry-After`. Commits are retried by `frazil.commit.compare_and_swap`, which first
checks whether they succeeded.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableRequest, TableIdentifier
from pyiceberg.typedef import IcebergBaseModel
from requests import HTTPError, PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from urllib3.exceptions import MaxRetryError, NewConnectionError
from urllib3.exceptions import TimeoutError as HttpTimeout
from urllib3.util import Retry

from frazil.table.catalog_errors import NotIcebergResponse

if TYPE_CHECKING:
    from frazil.table.atomic_catalogs import TableChange

TIMEOUT_S = (10.0, 60.0)
"""Timeout (s) for connecting, and for each pause within a response."""
OPEN_TIMEOUT_S = (10.0, 10.0)
"""The same for opening a catalog, whose requests every server answers at once."""
OVERLOADED_STATUSES = (429, 503)
MAX_READ_RETRIES = 3
MAX_RETRY_AFTER_S = 10
"""Longest wait (s) between two attempts of a read."""
NESTED_PREFIXES = ("auth", "ssl")
"""Prefixes of properties that PyIceberg's client expects as nested mappings."""


class ResilientRestCatalog(RestCatalog):
    _is_open = False

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **nest_properties(properties))

    def _fetch_config(self) -> None:
        super()._fetch_config()
        self._is_open = True

    def _config_headers(self, session: Session) -> None:
        # This is PyIceberg's first step with a new session, before it requests a token.
        super()._config_headers(session)
        _limit_requests(session, lambda: TIMEOUT_S if self._is_open else OPEN_TIMEOUT_S)

    def _create_session(self) -> Session:
        session = super()._create_session()
        for adapter in session.adapters.values():  # including the signing adapter, which PyIceberg has just created
            adapter.max_retries = _retries()  # type: ignore[attr-defined]
        return session


def nest_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in properties.items():
        *path, last = key.split(".") if key.split(".")[0] in NESTED_PREFIXES else [key]
        nested = tree
        for part in path:
            nested = nested.setdefault(part, {})
        nested[last] = value
    return tree


def _limit_requests(session: Session, timeout_s: Callable[[], tuple[float, float]]) -> None:
    send = session.send

    def send_limited(request: PreparedRequest, **options: Any) -> Response:
        if options.get("timeout") is None:
            options["timeout"] = timeout_s()
        response = send(request, **options)
        is_meaningful = response.ok or response.status_code in (404, 409)
        if is_meaningful and response.content and not response.content.lstrip().startswith((b"{", b"[")):
            kind = response.headers.get("Content-Type", "no type")
            begin = " ".join(response.text[:200].split())[:60]
            raise NotIcebergResponse(f"status {response.status_code} with {kind} instead of JSON: {begin!r}")
        return response

    session.send = send_limited  # type: ignore[method-assign]
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=_retries()))


class _Retry(Retry):
    def increment(self, *args: Any, **options: Any) -> Self:
        """Do not retry after a timeout: the server does not answer, and the caller has waited long enough."""
        error = options.get("error")
        if isinstance(error, HttpTimeout) and not isinstance(error, NewConnectionError):
            raise MaxRetryError(options["_pool"], args[1], error)
        return super().increment(*args, **options)


def _retries() -> Retry:
    return _Retry(
        total=MAX_READ_RETRIES,
        connect=1,
        read=1,
        status_forcelist=OVERLOADED_STATUSES,
        allowed_methods=("GET", "HEAD"),
        backoff_factor=0.1,
        backoff_jitter=0.1,
        raise_on_status=False,
        retry_after_max=MAX_RETRY_AFTER_S,
    )


class _CommitTransactionRequest(IcebergBaseModel):
    table_changes: tuple[CommitTableRequest, ...] = Field(alias="table-changes")


def commit_by_rest(catalog: RestCatalog, changes: Sequence[TableChange]) -> None:
    """Commit all changes in one request. The response to the request contains no metadata."""
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
