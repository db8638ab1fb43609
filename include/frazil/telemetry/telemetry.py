"""Publishes the metrics of the streams that one process writes. Errors are logged, and never end a writer."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from frazil import clock
from frazil.events import Sink
from frazil.spec.model import StreamSpec
from frazil.telemetry.metrics import Meters
from frazil.telemetry.prometheus import Endpoint
from frazil.telemetry.settings import LISTEN, Settings
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
