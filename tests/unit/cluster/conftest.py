"""An HTTP server on loopback that responds like a cluster's API."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    """A string is sent as it is; other values are sent as JSON."""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass
class Api:
    """`answers` has responses by method and path, without the query. All other requests get 404, as JSON."""

    address: str
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    requested: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    """Method, path with query, headers, body."""


class _Handler(BaseHTTPRequestHandler):
    api: Api

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.api.requested.append((self.command, self.path, dict(self.headers), body))
        found = self.api.answers.get((self.command, self.path.partition("?")[0]), Answer(404, {"message": "not found"}))
        kind = "text/html" if isinstance(found.body, str) else "application/json"
        time.sleep(found.delay_s)
        text = (found.body if isinstance(found.body, str) else json.dumps(found.body)).encode()
        self.send_response(found.status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(text)), **found.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that disconnect because they do not trust the server."""


@pytest.fixture
def apis() -> Iterator[Any]:
    """`apis()` starts another server; with a TLS context, it serves over TLS."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(secure: ssl.SSLContext | None = None) -> Api:
        server = _Server(("127.0.0.1", 0), _Handler)
        if secure:
            server.socket = secure.wrap_socket(server.socket, server_side=True)
        api = Api(f"http{'s' if secure else ''}://127.0.0.1:{server.server_address[1]}")
        server.RequestHandlerClass = type("Handler", (_Handler,), {"api": api})
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        servers.append((server, thread))
        return api

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def api(apis: Any) -> Api:
    found: Api = apis()
    return found
