"""Sends HTTP requests with one timeout for the whole request, however slowly the server sends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

MAX_RESPONSE_BYTES = 64 * 2**20
_current_request = threading.local()
"""Its attribute `bound` is the `_TimeLimit` of the current request of this thread."""


def get(session: Session, url: str, *, timeout_s: float) -> requests.Response:
    """Return the complete response of a GET request. `timeout_s` includes the time to connect.

    `session` must be from `create_session`. Raises the errors of `requests`.
    """
    bound = _current_request.bound = _TimeLimit(timeout_s)
    watch = threading.Timer(timeout_s, bound.end)
    watch.daemon = True
    watch.start()
    try:
        # Pass the setting again, because $REQUESTS_CA_BUNDLE would override the session's.
        with session.get(url, timeout=timeout_s, verify=session.verify, stream=True) as response:
            content = bytearray()
            for piece in response.iter_content(2**16):
                bound.check()
                content += piece
                if len(content) > MAX_RESPONSE_BYTES:
                    raise requests.exceptions.ContentDecodingError(
                        f"the response has more than {MAX_RESPONSE_BYTES:,} bytes"
                    )
            response._content = bytes(content)  # where `requests` keeps what it has read
            return response
    finally:
        watch.cancel()


class Session(requests.Session):
    """A session that does not send its own headers, which may be credentials, to another host after a redirect."""

    own_headers: Mapping[str, str] = MappingProxyType({})

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        super().rebuild_auth(prepared_request, response)
        if self.should_strip_auth(str(response.request.url), str(prepared_request.url)):
            for name in self.own_headers:
                prepared_request.headers.pop(name, None)


def create_session() -> Session:
    session = Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter())
    return session


class _TimeLimit:
    """Limits the time of one request with its redirects: shuts down its sockets at the deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._over = False

    def register(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.append(sock)
            if self._over:
                _shut_down(sock)

    def end(self) -> None:
        with self._lock:
            self._over = True
            for sock in self._sockets:
                _shut_down(sock)

    def check(self) -> None:
        if time.monotonic() >= self._deadline:
            raise requests.exceptions.ReadTimeout(f"no complete response within {self._timeout_s:g} s")


def _shut_down(sock: socket.socket) -> None:
    """Shut down a socket. A thread that is reading from it then gets an error."""
    with suppress(OSError):
        # TLS's own shutdown must not run while another thread reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _RegisteringConnection:
    """Registers its socket with the request's time limit before it waits for a response."""

    sock: Any

    def getresponse(self) -> Any:
        _current_request.bound.register(self.sock)
        return super().getresponse()  # type: ignore[misc]


class _Connection(_RegisteringConnection, HTTPConnection):
    pass


class _SecureConnection(_RegisteringConnection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS = {"http": _Pool, "https": _SecurePool}


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager
