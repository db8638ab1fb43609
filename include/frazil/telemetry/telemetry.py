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
from frazil.telemetry.metrics import Meters
from frazil.telemetry.prometheus import Endpoint
from frazil.telemetry.sink import StreamMetrics

log = logging.getLogger(__name__)


class Telemetry:
    """The metrics of one process. As a context manager, it publishes them; without settings it does nothing."""

    def __init__(self, settings: Settings | None = None, *, application: str = "") -> None:
        """Prepare publishing.

        `application` is part of the process's name in an OpenTelemetry collector, with host and pid.
        """
        self.settings = settings or Settings()
        self.meters = Meters()
        self.endpoint: Endpoint | None = None
        self._application = application
        self._closing = ExitStack()

    @classmethod
    def declared(cls, application: str, environment: Mapping[str, str] = os.environ) -> Telemetry:
        """Return the telemetry that the environment declares."""
        return cls(Settings.of(environment), application=application)

    def __enter__(self) -> Telemetry:
        for problem in self.settings.problems:
            log.warning("some metrics are not published: %s", problem)
        if self.settings.prometheus:
            self._try("for Prometheus", self._serve)
        if self.settings.otlp:
            self._try("by OTLP", self._export)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @contextmanager
    def of(self, spec: StreamSpec) -> Iterator[tuple[Sink, ...]]:
        """Yield a sink for one stream's events, and end its metrics afterwards; no sink if nothing is published."""
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

    def _try(self, how: str, begin: Callable[[], None]) -> None:
        try:
            begin()
        except Exception as error:  # a port that is taken, a missing extra, an exporter's own configuration
            log.warning("metrics are not published %s: %s", how, error)

    def _serve(self) -> None:
        s = self.settings
        try:
            self.endpoint = Endpoint(self.meters, host=s.host, ports=s.ports)
        except OSError as error:
            raise OSError(
                f"no port of {s.host}:{s.ports[0]}-{s.ports[-1]} can be had ({error}); set {LISTEN} to others"
            ) from error
        self._closing.callback(self.endpoint.close)
        log.info("metrics for Prometheus are at %s", self.endpoint.address)

    def _export(self) -> None:
        try:
            from frazil.telemetry.otlp import Otlp  # noqa: PLC0415 - needs the extra, and imports for half a second
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}. Install frazil[telemetry]") from error
        instance = "/".join(filter(None, (self._application, socket.gethostname(), str(os.getpid()))))
        self._closing.callback(Otlp(self.meters, instance=instance).close)
        log.info("metrics are sent by OTLP, as OpenTelemetry's own variables say")


EXPORTS = "FRAZIL_METRICS"
LISTEN = "FRAZIL_METRICS_LISTEN"
PARTITIONS = "FRAZIL_METRICS_PARTITIONS"

LISTEN_DEFAULT = "127.0.0.1:9464-9563"
"""OpenTelemetry's port for Prometheus, and the next 99 ports. Each writer application on a host takes the next free
port.
"""
_LISTEN = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:]+):(?P<first>\d{1,5})(-(?P<last>\d{1,5}))?")
_KNOWN = ("prometheus", "otlp")


@dataclass(frozen=True, slots=True)
class Settings:
    prometheus: bool = False
    otlp: bool = False
    host: str = "127.0.0.1"
    ports: range = range(0)
    partitions: bool = False
    problems: tuple[str, ...] = ()
    """Errors in the settings. They never end a writer."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from an environment; by default nothing is published."""
        names = [name.strip().lower() for name in environment.get(EXPORTS, "").split(",") if name.strip()]
        problems = [
            f"{EXPORTS} names {name!r}: it is a list of {' and '.join(_KNOWN)}, with commas"
            for name in names
            if name not in _KNOWN
        ]
        host, ports = _where(environment.get(LISTEN) or LISTEN_DEFAULT)
        if "prometheus" in names and not ports:
            problems.append(f"{LISTEN} is {environment[LISTEN]!r}: it is an address such as {LISTEN_DEFAULT}")
        return cls(
            prometheus="prometheus" in names and bool(ports),
            otlp="otlp" in names,
            host=host,
            ports=ports,
            partitions=environment.get(PARTITIONS, "").lower() in {"1", "true", "yes", "on"},
            problems=tuple(problems),
        )


def _where(text: str) -> tuple[str, range]:
    """Return the host and the ports; an empty host and no ports if the text is not an address."""
    found = _LISTEN.fullmatch(text.strip())
    if found is None:
        return "", range(0)
    first = int(found["first"])
    last = int(found["last"] or first)
    ports = range(first, last + 1) if last <= 65_535 else range(0)
    return found["host"].strip("[]"), ports
