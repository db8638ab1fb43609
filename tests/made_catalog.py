"""A REST catalog in this process. As a test requests, it shows another catalog's tables, refuses requests, or hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.table import Table


class Mood(StrEnum):
    WELL = "well"
    REFUSES = "refuses"
    HANGS = "hangs"


@dataclass
class MadeCatalog:
    """Serves each table's metadata as of the call of `show`."""

    url: str
    mood: Mood = Mood.WELL
    shown: dict[str, Path] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def show(self, identifier: str, table: Table) -> None:
        namespace, _, name = identifier.rpartition(".")
        path = f"/v1/namespaces/{namespace}/tables/{name}"
        self.shown[path] = Path(table.refresh().metadata_location.removeprefix("file://"))

    def answer(self, path: str) -> tuple[HTTPStatus, dict[str, Any]]:
        if self.mood is Mood.REFUSES:
            return HTTPStatus.FORBIDDEN, _error("the token has expired", "NotAuthorizedException", 403)
        if path == "/v1/config":
            return HTTPStatus.OK, {"defaults": {}, "overrides": {}}
        if (file := self.shown.get(path)) is not None:
            return HTTPStatus.OK, {
                "metadata-location": str(file),
                "metadata": json.loads(file.read_text()),
                "config": {},
            }
        return HTTPStatus.NOT_FOUND, _error("there is no such table", "NoSuchTableException", 404)


def _error(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


@contextmanager
def made_catalog() -> Iterator[MadeCatalog]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if catalog.mood is Mood.HANGS:
                catalog.over.wait()
                return
            status, document = catalog.answer(self.path.partition("?")[0])
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that the server calls

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    catalog = MadeCatalog(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield catalog
    finally:
        catalog.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
