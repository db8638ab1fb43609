"""A schema registry in this process, with Confluent's API, whose responses a test chooses."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = tuple[int, Any]
"""The status, and the document (for a redirect, the address)."""
NO_SCHEMA = (404, {"error_code": 40403, "message": "Schema not found"})


@dataclass
class MadeRegistry:
    """Responses by path; other paths return an unknown schema. The last response of a list repeats forever."""

    url: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    meeting: threading.Barrier | None = None
    """The barrier at which each request waits for others."""
    drip_s: float = 0.0
    """How long to wait before sending each byte."""
    stopped: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str) -> Answer:
        found = self.answers.get(path, [NO_SCHEMA])
        return found.pop(0) if len(found) > 1 else found[0]


@contextmanager
def made_registry(certificate: Path | None = None) -> Iterator[MadeRegistry]:
    """Serve a registry. With a PEM file that contains a certificate and its key, serve over TLS."""
    reported = MadeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet: the second one would wait for an acknowledgement

        def do_GET(self) -> None:
            reported.requested.append(self.path)
            reported.headers.append(dict(self.headers))
            if reported.meeting is not None:
                reported.meeting.wait(30)
            status, document = reported.answer(self.path)
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            if status == HTTPStatus.TEMPORARY_REDIRECT:
                self.send_header("Location", document)
            self.send_header("Content-Length", str(len(body)))
            if reported.drip_s:
                return self._drip(body)
            self.end_headers()
            self.wfile.write(body)
            return None

        def _drip(self, body: bytes) -> None:
            whole = b"".join(self._headers_buffer) + b"\r\n" + body
            self._headers_buffer.clear()
            with suppress(OSError):  # the client has gone
                for byte in whole:
                    self.connection.sendall(bytes([byte]))
                    if reported.stopped.wait(reported.drip_s):
                        break

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        http.socket = context.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    reported.url = f"http{'s' if certificate else ''}://127.0.0.1:{http.server_port}"
    try:
        yield reported
    finally:
        reported.stopped.set()
        http.shutdown()
        thread.join()
        http.server_close()
