"""Catalogs and storages of each kind, on real servers. Their HTTP requests may be counted by a proxy."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from frazil.dev.object_store import WAREHOUSE, EmbeddedObjectStore
from frazil.dev.postgres import EmbeddedPostgres

NAMES = ("sqlite+local", "postgres+local", "postgres+s3", "rest+s3")
_REQUEST = re.compile(rb"(GET|PUT|POST|HEAD|DELETE) \S+ HTTP/1\.1\r\n")


class CountingProxy:
    """Forwards connections to one server, and counts requests. Bytes stay unchanged, because requests are signed."""

    def __init__(self, label: str, target: str, calls: Counter[str], *, delay_s: float = 0.0) -> None:
        parts = urlsplit(target)
        self._target, self._label, self._calls = (parts.hostname, parts.port), label, calls
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._target)  # type: ignore[arg-type]
            for a, b, counted in ((client, server, True), (server, client, False)):
                a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(a, b, counted), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                for verb in _REQUEST.findall(data) if counted else ():
                    self._calls[f"{self._label} {verb.decode()}"] += 1
                    time.sleep(self._delay_s)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def substrate(
    name: str, folder: Path, *, catalog: str = "default", counted: bool = True, delay_s: float = 0.0
) -> Iterator[Counter[str]]:
    """Start a substrate's servers and configure it as a catalog. Yield the requests by server and verb, if `counted`.

    `delay_s` delays each request, as if the server were far away. Counting costs this process CPU for each byte.
    """
    kind, storage = name.split("+")
    calls: Counter[str] = Counter()
    with ExitStack() as servers:
        properties: dict[str, str] = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db?timeout=30"}
        if kind == "postgres":
            # Root starts PostgreSQL as another user, who must reach its data.
            folder.chmod(0o755)
            properties["uri"] = servers.enter_context(EmbeddedPostgres(folder / "postgres")).uri
        if storage == "s3":
            store = servers.enter_context(EmbeddedObjectStore(folder / "object-store"))
            more = store.rest_catalog() if kind == "rest" else store.s3_properties()
            properties = {**properties, "warehouse": f"s3://{WAREHOUSE}/", **more}
            if counted:
                properties["s3.endpoint"] = CountingProxy("S3", store.endpoint, calls, delay_s=delay_s).uri
            if counted and kind == "rest":
                properties["uri"] = CountingProxy("REST", store.catalog_uri, calls, delay_s=delay_s).uri
        else:
            properties["warehouse"] = (folder / "warehouse").as_uri()
        for key, value in properties.items():
            os.environ[f"PYICEBERG_CATALOG__{catalog.upper()}__{key.upper().replace('.', '__').replace('-', '_')}"] = (
                value
            )
        yield calls
