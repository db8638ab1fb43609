"""Publishes the metrics of the streams that one process writes. Errors are logged, and never end a writer."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from frazil import clock, events
from frazil.events import BatchCommitted, Event, LagMeasured, Sink
from frazil.host.heartbeat import StallKind
from frazil.spec.model import StreamSpec
from frazil.telemetry import metrics as m
from frazil.telemetry.metrics import BUCKET_BOUNDS_S, METRICS, Labels, Metric, MetricType, MetricValues

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"


def format_exposition(meters: MetricValues) -> str:
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


def _format_labels(metric: Metric, values: Labels, **extra: str) -> str:
    pairs = [*zip(metric.labels, values, strict=False), *extra.items()]
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}"


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


WRITER_GAUGES = (m.LAG, m.FRESHNESS, m.BACKPRESSURE, m.STALLED, m.OUTAGE, m.THROTTLED, m.NOTICES, m.PARTITION_LAG)
"""Gauges whose series are removed when the writer ends."""


class StreamMetrics:
    """Event sink that updates a stream's metrics. `partitions` enables the metrics per topic-partition."""

    def __init__(  # noqa: PLR0913 - the facts about a stream before its first event
        self, meters: m.MetricValues, *, stream: str, table: str, interval_s: float, by_partition: bool, now_s: float
    ) -> None:
        self._meters, self._labels = meters, (stream, table)
        self._declared_s, self._partitions = interval_s, by_partition
        self._merge_s, self._in_outage, self._behind = 0.0, False, False
        meters.set(m.WRITER_RUNNING, self._labels, 1)
        meters.set(m.WRITER_STARTED, self._labels, now_s)
        meters.set(m.INTERVAL, self._labels, interval_s)
        for counter in (metric for metric in m.METRICS if metric.type is m.MetricType.COUNTER):
            meters.add(counter, self._labels, 0)  # a rate needs a zero before the first increment
        for kind in StallKind:
            meters.set(m.STALLED, (*self._labels, kind), 0)
        for gauge in (m.OUTAGE, m.THROTTLED, m.NOTICES):
            meters.set(gauge, self._labels, 0)

    def ended(self) -> None:
        """Remove the writer's gauges. Counters stay, because a later writer in this process may continue them."""
        self._meters.set(m.WRITER_RUNNING, self._labels, 0)
        for gauge in WRITER_GAUGES:
            self._meters.forget(gauge, self._labels)

    def take(self, event: Event) -> None:  # noqa: PLR0912 - a case for each kind of event
        add, set_, labels = self._meters.add, self._meters.set, self._labels
        match event.payload:
            case events.PhaseBegan() if self._in_outage:
                self._in_outage = False
                set_(m.OUTAGE, labels, self._behind)
            case events.OutageReported() if not self._in_outage:
                self._in_outage = True
                set_(m.OUTAGE, labels, 1)
                add(m.OUTAGES, labels)
            case events.TablesBehind(names=names) if self._behind is not bool(names):
                self._behind = bool(names)
                set_(m.OUTAGE, labels, self._in_outage or self._behind)
                add(m.OUTAGES, labels, int(self._behind))
            case events.EpochBegan(marker=marker):
                add(m.EPOCHS, labels)
                self._merge_s = 0.0  # a merge of the last epoch may have had no result
                self._set_watermark(marker.watermark_us)
            case events.ChangesMerged(merge_s=merge_s):
                self._merge_s += merge_s
            case BatchCommitted() as batch:
                self._add_batch(event.at_ms, batch)
            case LagMeasured() as measured:
                set_(m.LAG, labels, measured.lag)
                set_(m.IN_TRANSACTIONS, labels, measured.in_transactions)
                set_(m.FRESHNESS, labels, measured.freshness_ms / 1000)
                set_(m.BACKPRESSURE, labels, measured.backpressure_ms / 1000)
                if self._partitions:
                    self._meters.forget(m.PARTITION_LAG, labels)  # including partitions that have caught up
                    for (topic, partition), records in measured.unread.items():
                        set_(m.PARTITION_LAG, (*labels, topic, str(partition)), records)
            case events.ThrottleEvaluated(reason=reason, stretch=stretch):
                set_(m.THROTTLED, labels, reason is not None)
                set_(m.INTERVAL, labels, self._declared_s * stretch)
            case events.StallBegan(stall=stall):
                set_(m.STALLED, (*labels, stall.kind), 1)
            case events.StallEnded(kind=kind):
                set_(m.STALLED, (*labels, kind), 0)
            case events.TableEvolved():
                add(m.EVOLUTIONS, labels)
            case events.FutureEventTimes(rows=rows):
                add(m.FUTURE, labels, rows)
            case events.RecordsSkipped():
                add(m.SKIPS, labels)
            case events.NoticeIssued(replaces=""):
                add(m.NOTICES, labels)
            case events.NoticeIssued(sentence=""):
                add(m.NOTICES, labels, -1)

    def _add_batch(self, at_ms: int, batch: BatchCommitted) -> None:
        add, labels = self._meters.add, self._labels
        self._meters.set(m.LAST_COMMIT, labels, at_ms / 1000)
        self._set_watermark(batch.marker.watermark_us)
        add(m.CPU, labels, batch.cost.cpu_ms / 1000)
        add(m.STORAGE_WRITES, labels, batch.cost.writes)
        add(m.STORAGE_READS, labels, batch.cost.reads)
        if not (batch.records or batch.rejected or batch.changes):  # an empty commit
            return
        add(m.BATCHES, labels)
        add(m.RECORDS, labels, batch.records)
        add(m.DEAD_LETTERS, labels, batch.rejected)
        add(m.FILES, labels, batch.files)
        add(m.BYTES_WRITTEN, labels, batch.bytes)
        if batch.stage_s:  # it is 0 if an earlier epoch staged the batch
            self._meters.observe(m.STAGE, labels, batch.stage_s)
            self._meters.observe(m.COMMIT, labels, batch.commit_s)
        if self._merge_s:
            self._meters.observe(m.MERGE, labels, self._merge_s)
            self._merge_s = 0.0

    def _set_watermark(self, watermark_us: int | None) -> None:
        if watermark_us is not None:
            self._meters.set(m.WATERMARK, self._labels, watermark_us / 1_000_000)


log = logging.getLogger(__name__)


class Telemetry:
    """Context manager that publishes the metrics of one process. Without settings, it does nothing."""

    def __init__(self, settings: MetricsSettings | None = None, *, application: str = "") -> None:
        """`application` is part of the process's name in an OpenTelemetry collector, with host and pid."""
        self.settings = settings or MetricsSettings()
        self.meters = MetricValues()
        self.endpoint: MetricsEndpoint | None = None
        self._application = application
        self._closing = ExitStack()

    @classmethod
    def from_environment(cls, application: str, environment: Mapping[str, str] = os.environ) -> Telemetry:
        return cls(MetricsSettings.load(environment), application=application)

    def __enter__(self) -> Telemetry:
        for problem in self.settings.problems:
            log.warning("cannot publish some metrics: %s", problem)
        if self.settings.prometheus:
            self._start("for Prometheus", self._serve)
        if self.settings.otlp:
            self._start("with OTLP", self._export)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @contextmanager
    def sinks(self, spec: StreamSpec) -> Iterator[tuple[Sink, ...]]:
        if not (self.settings.prometheus or self.settings.otlp):
            yield ()
            return
        metrics = StreamMetrics(
            self.meters,
            stream=spec.name,
            table=spec.table.identifier,
            interval_s=spec.commit.interval / timedelta(seconds=1),
            by_partition=self.settings.partitions,
            now_s=clock.now_ms() / 1000,
        )
        try:
            yield (metrics.take,)
        finally:
            metrics.ended()

    def _start(self, target: str, begin: Callable[[], None]) -> None:
        try:
            begin()
        except Exception as error:  # a port that is taken, a missing extra, an exporter's own configuration
            log.warning("cannot publish metrics %s: %s", target, error)

    def _serve(self) -> None:
        s = self.settings
        try:
            self.endpoint = MetricsEndpoint(self.meters, host=s.host, ports=s.ports)
        except OSError as error:
            ports = f"{s.host}:{s.ports[0]}-{s.ports[-1]}"
            problem = f"no port in {ports} is available ({error}); set {LISTEN_VARIABLE} to other ports"
            raise OSError(problem) from error
        self._closing.callback(self.endpoint.close)
        log.info("serving metrics for Prometheus at %s", self.endpoint.address)

    def _export(self) -> None:
        try:
            from frazil.telemetry.otlp import OtlpExporter  # needs the extra, and imports for half a second
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}. Install frazil[telemetry]") from error
        instance = "/".join(filter(None, (self._application, socket.gethostname(), str(os.getpid()))))
        self._closing.callback(OtlpExporter(self.meters, instance=instance).close)
        log.info("sending metrics with OTLP, as configured by OpenTelemetry's own variables")


EXPORTERS_VARIABLE = "FRAZIL_METRICS"
LISTEN_VARIABLE = "FRAZIL_METRICS_LISTEN"

DEFAULT_LISTEN = "127.0.0.1:9464-9563"
"""OpenTelemetry's port for Prometheus, and the next 99: each writer on a host uses the first free port."""
_LISTEN = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:]+):(?P<first>\d{1,5})(-(?P<last>\d{1,5}))?")
_EXPORTERS = ("prometheus", "otlp")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Settings from environment variables. `problems` do not stop the writer."""

    prometheus: bool = False
    otlp: bool = False
    host: str = "127.0.0.1"
    ports: range = range(0)
    partitions: bool = False
    problems: tuple[str, ...] = ()

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> MetricsSettings:
        names = [name.strip().lower() for name in environment.get(EXPORTERS_VARIABLE, "").split(",") if name.strip()]
        problems = [
            f"{EXPORTERS_VARIABLE} contains {name!r}; allowed, separated by commas: {', '.join(_EXPORTERS)}"
            for name in names
            if name not in _EXPORTERS
        ]
        host, ports = _parse_address(environment.get(LISTEN_VARIABLE) or DEFAULT_LISTEN)
        if "prometheus" in names and not ports:
            problems.append(
                f"{LISTEN_VARIABLE} is {environment[LISTEN_VARIABLE]!r}, which is not an address with ports such as "
                f"{DEFAULT_LISTEN}"
            )
        return cls(
            prometheus="prometheus" in names and bool(ports),
            otlp="otlp" in names,
            host=host,
            ports=ports,
            partitions=environment.get("FRAZIL_METRICS_PARTITIONS", "").lower() in {"1", "true", "yes", "on"},
            problems=tuple(problems),
        )


def _parse_address(text: str) -> tuple[str, range]:
    """Parse `host:port` or `host:first-last`. Return an empty host and no ports if the text is not valid."""
    match = _LISTEN.fullmatch(text.strip())
    if match is None:
        return "", range(0)
    first = int(match["first"])
    last = int(match["last"] or first)
    return match["host"].strip("[]"), range(first, last + 1) if last <= 65_535 else range(0)
