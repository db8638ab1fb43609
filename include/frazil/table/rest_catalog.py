"""PyIceberg's client for REST catalogs, with timeouts and a check that responses are JSON. If a server is overloaded, a
read is retried after the server's `Retry-After`. Commits are retried by `frazil.commit.compare_and_swap`, which first
checks whether they succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from frazil.table.catalog_mistakes import NotIcebergResponse

TIMEOUT_S = (10.0, 60.0)
"""Timeout (s) for connecting, and for each pause within a response."""
OVERLOADED_STATUSES = (429, 503)
MAX_READ_RETRIES = 3
MAX_RETRY_AFTER_S = 10
"""Longest wait (s) between two attempts of a read."""
NESTED_PREFIXES = ("auth", "ssl")
"""Prefixes of properties that PyIceberg's client expects as nested mappings."""


class ResilientRestCatalog(RestCatalog):
    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **nest_properties(properties))

    def _config_headers(self, session: Session) -> None:
        # This is PyIceberg's first step with a new session, before it requests a token.
        super()._config_headers(session)
        _limit_requests(session)

    def _create_session(self) -> Session:
        session = super()._create_session()
        for adapter in session.adapters.values():  # including the signing adapter, which PyIceberg has just created
            adapter.max_retries = _retries()  # type: ignore[attr-defined]
        return session


def nest_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in properties.items():
        *path, last = key.split(".") if key.split(".")[0] in NESTED_PREFIXES else [key]
        nested = found
        for part in path:
            nested = nested.setdefault(part, {})
        nested[last] = value
    return found


def _limit_requests(session: Session) -> None:
    send = session.send

    def send_limited(request: PreparedRequest, **options: Any) -> Response:
        if options.get("timeout") is None:
            options["timeout"] = TIMEOUT_S
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


def _retries() -> Retry:
    return Retry(
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
