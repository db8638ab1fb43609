"""A REST catalog in front of another catalog. It can refuse commits, or report an error after a commit succeeded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableRequest


class RestAnswers:
    """`commits` has the next commits' status codes. A negative one is returned after the commit was done."""

    def __init__(self, inner: SqlCatalog) -> None:
        self.inner = inner
        self.commits: list[int] = []
        self.tried = 0

    def load(self, identifier: str) -> tuple[int, dict[str, Any]]:
        try:
            table = self.inner.load_table(identifier)
        except NoSuchTableError as error:
            return refusal(404, f"NoSuchTableException: {error}")
        return 200, _answer(table.metadata, table.metadata_location)

    def commit(self, identifier: str, body: bytes) -> tuple[int, dict[str, Any]]:
        self.tried += 1
        answer = self.commits.pop(0) if self.commits else 200
        if answer not in {200} and answer > 0:
            return refusal(answer, "the warehouse is read-only until Monday")
        request = CommitTableRequest.model_validate_json(body)
        try:
            table = self.inner.load_table(identifier)
            done = self.inner.commit_table(table, request.requirements, request.updates)
        except CommitFailedException as error:
            return refusal(409, str(error))
        return refusal(-answer, "lost") if answer < 0 else (200, _answer(done.metadata, done.metadata_location))


def refusal(status: int, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message, "type": "SomeException", "code": status}}


def _answer(metadata: Any, location: str) -> dict[str, Any]:
    return {"metadata-location": location, "metadata": json.loads(metadata.model_dump_json()), "config": {}}


@contextmanager
def rest_catalog(answers: RestAnswers) -> Iterator[RestCatalog]:
    """Serve the catalog. Yields PyIceberg's REST client for it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            config = {"defaults": {}, "overrides": {}}
            self._send(*((200, config) if "/config" in self.path else answers.load(self._identifier)))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(*answers.commit(self._identifier, body))

        @property
        def _identifier(self) -> str:
            _, namespace, _, table = self.path.split("?")[0].rsplit("/", 3)
            return f"{namespace}.{table}"

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    catalog = RestCatalog("rest", uri=f"http://127.0.0.1:{server.server_port}")
    try:
        yield catalog
    finally:
        catalog._session.close()
        server.shutdown()
        thread.join()
        server.server_close()
