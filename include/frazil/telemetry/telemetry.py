"""Publishes the metrics of the streams that one process writes. Errors are logged, and never end a writer."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

from frazil import clock
from frazil.events import Sink
from frazil.spec.model import StreamSpec
from frazil.telemetry.metrics import MetricValues
from frazil.telemetry.prometheus import MetricsEndpoint
from frazil.telemetry.sink import StreamMetrics

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
        """Yield the sink for a stream's events, if anything is published. Remove the stream's gauges afterwards."""
        if not (self.settings.prometheus or self.settings.otlp):
            yield ()
            return
        metrics = StreamMetrics(
            self.meters,
            stream=spec.name,
            table=spec.table.identifier,
            interval_s=spec.commit.interval / timedelta(seconds=1),
            partitions=self.settings.partitions,
            now_s=clock.now_ms() / 1000,
        )
        try:
            yield (metrics.take,)
        finally:
            metrics.ended()

    def _start(self, how: str, begin: Callable[[], None]) -> None:
        try:
            begin()
        except Exception as error:  # a port that is taken, a missing extra, an exporter's own configuration
            log.warning("cannot publish metrics %s: %s", how, error)

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
    found = _LISTEN.fullmatch(text.strip())
    if found is None:
        return "", range(0)
    first = int(found["first"])
    last = int(found["last"] or first)
    return found["host"].strip("[]"), range(first, last + 1) if last <= 65_535 else range(0)
