"""Sends the metrics to an OpenTelemetry collector by OTLP over HTTP. Needs the extra `telemetry`.

OpenTelemetry's own variables declare the address, the interval, headers, certificates and resource attributes
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_RESOURCE_ATTRIBUTES`, ...).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from frazil import __version__
from frazil.telemetry.metrics import BOUNDS_S, METRICS, Labels, Meters, Metric, Sort

END_S = 5.0
"""Maximum of seconds that the end of a process waits until the last values are sent."""


class Otlp:
    """Exports the values until it is closed."""

    def __init__(self, meters: Meters, *, instance: str, reader: MetricReader | None = None) -> None:
        """Start the export. `instance` becomes `service.instance.id`, which distinguishes processes."""
        resource = Resource.create({"service.instance.id": instance, "service.version": __version__})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):  # none is declared
            resource = resource.merge(Resource({"service.name": "frazil"}))
        buckets = ExplicitBucketHistogramAggregation(BOUNDS_S)
        times = View(instrument_name="frazil.*", instrument_type=Histogram, aggregation=buckets)
        self._provider = MeterProvider(
            [reader or PeriodicExportingMetricReader(OTLPMetricExporter())],
            resource=resource,
            shutdown_on_exit=False,
            views=[times],
        )
        meter = self._provider.get_meter("frazil", __version__)
        histograms = {m: meter.create_histogram(m.name, m.unit, m.means) for m in METRICS if m.sort is Sort.HISTOGRAM}
        for metric in METRICS:
            _observed(meter, meters, metric)

        def observe(metric: Metric, labels: Labels, seconds: float) -> None:
            histograms[metric].record(seconds, _attributes(metric, labels))

        meters.observers.append(observe)

    def close(self) -> None:
        """Send the last values, but wait at most END_S seconds, because the collector may hang."""
        ending = threading.Thread(target=partial(self._provider.shutdown, END_S * 1000), daemon=True)
        ending.start()
        ending.join(END_S)


def _observed(meter: Meter, meters: Meters, metric: Metric) -> None:
    """Let OpenTelemetry read the values of a counter or a gauge when it exports."""

    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, _attributes(metric, labels)) for labels, value in meters.of(metric).items()]

    callbacks: list[Callable[[CallbackOptions], Iterable[Observation]]] = [read]
    if metric.sort is Sort.COUNTER:
        meter.create_observable_counter(metric.name, callbacks, metric.unit, metric.means)
    elif metric.sort is Sort.GAUGE:
        meter.create_observable_gauge(metric.name, callbacks, metric.unit, metric.means)


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
