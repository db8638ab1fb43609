"""An HTTP proxy in this process, in front of one server, that causes the faults of servers and networks.

A trouble is a function of a call and of `forward`, which sends the call to the server. So it decides what the server
does, and independently what the client receives. Bytes pass unchanged, with the client's own Host header, because the
client has signed them.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TABLE_COMMIT = re.compile(r"/namespaces/[^/]+/tables/[^/]+$")
_OF_CONNECTIONS = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    """The path with the query."""
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_commit(self) -> bool:
        return self.method == "POST" and TABLE_COMMIT.search(urlsplit(self.path).path) is not None

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), "")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Dropped(Exception):
    """The connection breaks before a response."""


Forward = Callable[[Call], Answer]
Trouble = Callable[[Call, Forward], Answer]


def none(call: Call, forward: Forward) -> Answer:
    return forward(call)


class TroubledProxy:
    """Clients connect to `uri`. `calls` counts their requests by HTTP method, and commits as `TABLE COMMIT`."""

    def __init__(self, target: str, trouble: Trouble = none) -> None:
        parts = urlsplit(target)
        self._target = (str(parts.hostname), int(parts.port or 80))
        self.trouble = trouble
        self.calls: Counter[str] = Counter()
        self._connections = threading.local()
        self._server = _server(self)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, call: Call) -> Answer:
        self.calls[call.method] += 1
        self.calls["TABLE COMMIT"] += call.is_commit
        return self.trouble(call, self.forward)

    def forward(self, call: Call) -> Answer:
        connection = http.client.HTTPConnection(*self._target, timeout=60)
        try:
            connection.putrequest(call.method, call.path, skip_host=True, skip_accept_encoding=True)
            for name, value in call.headers.items():
                if name.lower() not in _OF_CONNECTIONS:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(call.body)))
            connection.endheaders(call.body)
            got = connection.getresponse()
            kept = {name: value for name, value in got.getheaders() if name.lower() not in _OF_CONNECTIONS}
            if call.method == "HEAD" and (length := got.getheader("Content-Length")):
                kept["Content-Length"] = length
            return Answer(got.status, got.read(), kept)
        finally:
            connection.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def proxy(target: str, trouble: Trouble = none) -> Iterator[TroubledProxy]:
    made = TroubledProxy(target, trouble)
    try:
        yield made
    finally:
        made.close()


def _server(owner: TroubledProxy) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def handle_any(self) -> None:
            call = Call(self.command, self.path, dict(self.headers.items()), self._body())
            try:
                answer = owner.answer(call)
            except (Dropped, OSError):
                self.close_connection = True
                # A reset, as from a host that died.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            with suppress(OSError):  # a client that did not wait
                self._send(answer)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - as http.server calls them

        def handle_expect_100(self) -> bool:
            self.send_response_only(100)
            self.end_headers()
            self.wfile.flush()
            return True

        def _body(self) -> bytes:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                chunks = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _send(self, answer: Answer) -> None:
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in answer.headers and answer.status not in (204, 304):
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


# Answers


def refusal(status: int, message: str = "trouble", **headers: str) -> Answer:
    """Return an error in the format of the REST specification."""
    body = {"error": {"message": message, "type": "TroubleException", "code": status}}
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/json", **_dashed(headers)})


def page(status: int = 200, text: str = "<html><body>Welcome!</body></html>", **headers: str) -> Answer:
    """Return an HTML page, as from a gateway."""
    return Answer(status, text.encode(), {"Content-Type": "text/html", **_dashed(headers)})


def s3_error(status: int, code: str, message: str = "trouble") -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, body.encode(), {"Content-Type": "application/xml"})


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


# Troubles


def first(count: int, trouble: Trouble, *, of: Callable[[Call], bool] = lambda _: True) -> Trouble:
    """Apply the trouble to the first calls of a kind only."""
    met = itertools.count()

    def troubled(call: Call, forward: Forward) -> Answer:
        return trouble(call, forward) if of(call) and next(met) < count else forward(call)

    return troubled


def every(nth: int, trouble: Trouble, *, of: Callable[[Call], bool] = lambda _: True) -> Trouble:
    """Apply the trouble to every nth call of a kind."""
    met = itertools.count(1)

    def troubled(call: Call, forward: Forward) -> Answer:
        return trouble(call, forward) if of(call) and next(met) % nth == 0 else forward(call)

    return troubled


def drop_answer(call: Call, forward: Forward) -> Answer:
    """Let the server handle the call, then drop the response."""
    forward(call)
    raise Dropped


def drop(call: Call, forward: Forward) -> Answer:  # noqa: ARG001 - a trouble
    raise Dropped


def applied_then(answer: Answer) -> Trouble:
    """Let the server handle the call, then return another response to the client."""

    def troubled(call: Call, forward: Forward) -> Answer:
        forward(call)
        return answer

    return troubled


def instead(answer: Answer) -> Trouble:
    return lambda call, forward: answer  # noqa: ARG005 - a trouble


def slow(seconds: float, then: Trouble = none) -> Trouble:
    def troubled(call: Call, forward: Forward) -> Answer:
        time.sleep(seconds)
        return then(call, forward)

    return troubled


def signed_again(call: Call, *, service: str, key: str, secret: str, region: str) -> Call:
    """Return the call signed with other credentials, for a server that does not know the client's."""
    from botocore.auth import S3SigV4Auth, SigV4Auth  # type: ignore[import-untyped]  # an extra
    from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # an extra
    from botocore.credentials import Credentials  # type: ignore[import-untyped]  # an extra

    body = call.body
    if call.header("x-amz-content-sha256").startswith("STREAMING"):
        body = _unchunked(body)
    unsigned = {
        "authorization", "x-amz-security-token", "x-amz-date", "connection", "user-agent", "content-length",
        "x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer", "content-encoding",
    }  # fmt: skip
    kept = {name: value for name, value in call.headers.items() if name.lower() not in unsigned}
    request = AWSRequest(method=call.method, url=f"http://{call.header('Host')}{call.path}", data=body, headers=kept)
    signer = S3SigV4Auth if service == "s3" else SigV4Auth
    signer(Credentials(key, secret), service, region).add_auth(request)
    return replace(call, headers=dict(request.headers.items()), body=body)


def _unchunked(body: bytes) -> bytes:
    """Return the content of an `aws-chunked` body, without the chunks' signatures and checksums."""
    found, rest = b"", body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if not length:
            break
        found, rest = found + rest[:length], rest[length + 2 :]
    return found
