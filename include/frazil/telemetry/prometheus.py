"""Serves the metrics in Prometheus' text format."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from frazil.telemetry.metrics import BUCKET_BOUNDS_S, METRICS, Labels, Metric, MetricType, MetricValues

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"


def format_exposition(meters: MetricValues) -> str:
    """Return the metrics that have series, in Prometheus' text format."""
    lines: list[str] = []
    for metric in METRICS:
        if samples := [*_format_samples(meters, metric)]:
            name = metric.prometheus
            lines += [f"# HELP {name} {metric.description}", f"# TYPE {name} {metric.type}", *samples]
    return "\n".join([*lines, ""])


def _format_samples(meters: MetricValues, metric: Metric) -> Iterator[str]:
    name = metric.prometheus
    if metric.type is not MetricType.HISTOGRAM:
        for labels, value in sorted(meters.series(metric).items()):
            yield f"{name}{_format_labels(metric, labels)} {_format_number(value)}"
        return
    for labels, times in meters.histograms(metric):
        below = 0
        for bound, count in zip((*map(_format_number, BUCKET_BOUNDS_S), "+Inf"), times.counts, strict=True):
            below += count
            yield f"{name}_bucket{_format_labels(metric, labels, le=bound)} {below}"
        yield f"{name}_sum{_format_labels(metric, labels)} {_format_number(times.total_s)}"
        yield f"{name}_count{_format_labels(metric, labels)} {below}"


def _format_labels(metric: Metric, values: Labels, **more: str) -> str:
    named = [*zip(metric.labels, values, strict=False), *more.items()]
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in named) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


class MetricsEndpoint:
    """Serves the metrics on the first free port of a range, until `close`. Raises OSError if none is free."""

    def __init__(self, meters: MetricValues, *, host: str, ports: range) -> None:
        self._server = _bind_server(meters, host, ports)
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{PATH}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    """A writer that just ended may have used the port."""
    block_on_close = False
    meters: MetricValues

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a scrape failed", exc_info=True)  # the client went away


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = format_exposition(self.server.meters).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Discard the access log, which would have a line per scrape."""


def _bind_server(meters: MetricValues, host: str, ports: range) -> _Server:
    last_error = OSError("no port is configured")
    for port in ports:
        try:
            server = _Server((host, port))
        except OSError as error:
            last_error = error
            continue
        server.meters = meters
        return server
    raise last_error
