"""Sends the metrics to an OpenTelemetry collector with OTLP over HTTP. Needs the extra `telemetry`. OpenTelemetry's own
variables configure it, such as `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_METRIC_EXPORT_INTERVAL`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from frazil import __version__
from frazil.telemetry.metrics import BUCKET_BOUNDS_S, METRICS, Labels, Metric, MetricType, MetricValues

END_TIMEOUT_S = 5.0


class OtlpExporter:
    """Exports the metric values until `close`. `instance` becomes `service.instance.id`."""

    def __init__(self, meters: MetricValues, *, instance: str) -> None:
        resource = Resource.create({"service.instance.id": instance, "service.version": __version__})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):  # none is declared
            resource = resource.merge(Resource({"service.name": "frazil"}))
        buckets = ExplicitBucketHistogramAggregation(BUCKET_BOUNDS_S)
        times = View(instrument_name="frazil.*", instrument_type=Histogram, aggregation=buckets)
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())]
        self._provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False, views=[times])
        meter = self._provider.get_meter("frazil", __version__)
        histograms = {
            m: meter.create_histogram(m.name, m.unit, m.description) for m in METRICS if m.type is MetricType.HISTOGRAM
        }
        for metric in METRICS:
            _register_callback(meter, meters, metric)

        def observe(metric: Metric, labels: Labels, seconds: float) -> None:
            histograms[metric].record(seconds, _attributes(metric, labels))

        meters.observers.append(observe)

    def close(self) -> None:
        """Send the last values. Gives up after END_TIMEOUT_S, because the collector may hang."""
        ending = threading.Thread(target=partial(self._provider.shutdown, END_TIMEOUT_S * 1000), daemon=True)
        ending.start()
        ending.join(END_TIMEOUT_S)


def _register_callback(meter: Meter, meters: MetricValues, metric: Metric) -> None:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, _attributes(metric, labels)) for labels, value in meters.series(metric).items()]

    callbacks: list[Callable[[CallbackOptions], Iterable[Observation]]] = [read]
    if metric.type is MetricType.COUNTER:
        meter.create_observable_counter(metric.name, callbacks, metric.unit, metric.description)
    elif metric.type is MetricType.GAUGE:
        meter.create_observable_gauge(metric.name, callbacks, metric.unit, metric.description)


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
