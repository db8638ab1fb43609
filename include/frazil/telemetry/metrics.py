"""Defines all metrics, and stores their values in one process. Prometheus names follow from the OpenTelemetry names by
OpenTelemetry's rules, so that frazil's endpoint and a collector export the same names.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

STREAM = ("stream", "table")
_UNITS = {"s": "seconds", "By": "bytes"}
BUCKET_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's definition. `by_partition` metrics are published only on request."""

    name: str
    """The OpenTelemetry name, such as `frazil.records`."""
    type: MetricType
    unit: str
    """The unit in UCUM, as OpenTelemetry requires: `s`, `By`, or the counted thing in braces."""
    description: str
    labels: tuple[str, ...] = STREAM
    by_partition: bool = False

    @property
    def prometheus(self) -> str:
        parts = [self.name.replace(".", "_")]
        if (unit := _UNITS.get(self.unit)) and not parts[0].endswith(unit):
            parts.append(unit)
        return "_".join([*parts, *(["total"] if self.type is MetricType.COUNTER else [])])


def _counter(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(f"frazil.{name}", MetricType.COUNTER, unit, description, (*STREAM, *labels))


def _gauge(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(f"frazil.{name}", MetricType.GAUGE, unit, description, (*STREAM, *labels))


def _histogram(name: str, description: str) -> Metric:
    return Metric(f"frazil.{name}", MetricType.HISTOGRAM, "s", description)


WRITER_RUNNING = _gauge("writer.running", "{writer}", "1 while this process writes the stream, else 0.")
WRITER_STARTED = _gauge("writer.started.timestamp", "s", "When the writer started, in seconds since 1970.")
BATCHES = _counter("batches", "{batch}", "Committed batches that had records.")
RECORDS = _counter("records", "{record}", "Committed records, without dead letters.")
DEAD_LETTERS = _counter("dead_letters", "{record}", "Records that became dead letters.")
FILES = _counter("files", "{file}", "Data files that batches staged, without files that a merge writes.")
BYTES_WRITTEN = _counter("written", "By", "Bytes of data files that batches staged, without files that a merge writes.")
CPU = _counter(
    "cpu", "s", "CPU of batches: tasks, and the writer's process and JVM, which streams of an application share."
)
STORAGE_WRITES = _counter("storage_writes", "{request}", "Requests to object storage that wrote or listed objects.")
STORAGE_READS = _counter("storage_reads", "{request}", "Other requests to object storage, except deletions.")
STAGE = _histogram("stage", "Time to stage a batch, from Kafka to Parquet.")
COMMIT = _histogram("commit", "Time to commit a batch, including its journal and merge.")
MERGE = _histogram("merge", "Time of merge tasks within the commit time; only for upsert streams.")
LAG = _gauge("lag.records", "{record}", "Records in Kafka that are not committed to the table.")
IN_TRANSACTIONS = _gauge(
    "transactions.offsets", "{offset}", "Offsets that wait for the end of a transaction, of Kafka or of the source."
)
FRESHNESS = _gauge(
    "freshness", "s", "Largest possible age of the oldest waiting record, also in open transactions; 0 without any."
)
BACKPRESSURE = _gauge(
    "backpressure", "s", "Time by which the last batch exceeded the commit interval; 0 without waiting records."
)
INTERVAL = _gauge("commit_interval", "s", "The current commit interval, as extended by `commit.throttle`.")
LAST_COMMIT = _gauge("last_commit.timestamp", "s", "When this process last committed, in seconds since 1970.")
WATERMARK = _gauge("watermark.timestamp", "s", "The stream's watermark, in seconds since 1970.")
EPOCHS = _counter("epochs", "{epoch}", "Take-overs by this process; more than one means restarts within it.")
STALLED = _gauge(
    "stalled",
    "{stall}",
    "1 while the stream is stalled, by `kind`: kafka, leader, offsets, watermark or transaction.",
    "kind",
)
OUTAGE = _gauge("outage", "{outage}", "1 while a catalog, storage or Kafka fails, or routed tables are behind.")
OUTAGES = _counter("outages", "{outage}", "Outages of the catalog, the storage, Kafka or routed tables.")
THROTTLED = _gauge("throttled", "{stream}", "1 while the table's metadata grows faster than maintenance shrinks it.")
EVOLUTIONS = _counter("evolutions", "{evolution}", "Schema changes of the table that records required.")
FUTURE = _counter("future_rows", "{row}", "Rows with event times too far in the future to advance the watermark.")
SKIPS = _counter("skips", "{skip}", "Skips of records that Kafka's retention had deleted.")
NOTICES = _gauge("notices", "{notice}", "Current notices of the writer, which `frazil status` shows.")
PARTITION_LAG = Metric(
    "frazil.partition.lag.records",
    MetricType.GAUGE,
    "{record}",
    "Records of a topic-partition that are not committed.",
    (*STREAM, "topic", "partition"),
    by_partition=True,
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
Labels = tuple[str, ...]
"""Label values in the order of `Metric.labels`."""


@dataclass(slots=True)
class HistogramValues:
    """One series of a histogram, in seconds. The last bucket has no upper bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_BOUNDS_S) + 1))
    total_s: float = 0.0


@dataclass(slots=True)
class MetricValues:
    """The metric values of this process. Thread-safe."""

    values: dict[Metric, dict[Labels, float]] = field(default_factory=lambda: {m: {} for m in METRICS})
    """Counters and gauges."""
    times: dict[Metric, dict[Labels, HistogramValues]] = field(default_factory=lambda: {m: {} for m in METRICS})
    observers: list[Callable[[Metric, Labels, float], None]] = field(default_factory=list)
    """Functions called with each observed time. They must return quickly and not raise."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, metric: Metric, labels: Labels, increment: float = 1) -> None:
        with self._lock:
            series = self.values[metric]
            series[labels] = series.get(labels, 0) + increment

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        with self._lock:
            self.values[metric][labels] = value

    def observe(self, metric: Metric, labels: Labels, seconds: float) -> None:
        with self._lock:
            times = self.times[metric].setdefault(labels, HistogramValues())
            times.counts[bisect_left(BUCKET_BOUNDS_S, seconds)] += 1
            times.total_s += seconds
        for observer in self.observers:
            observer(metric, labels, seconds)

    def forget(self, metric: Metric, labels: Labels) -> None:
        """Remove the series of a metric whose label values begin with `labels`."""
        with self._lock:
            for series in [series for series in self.values[metric] if series[: len(labels)] == labels]:
                del self.values[metric][series]

    def series(self, metric: Metric) -> dict[Labels, float]:
        with self._lock:
            return dict(self.values[metric])

    def histograms(self, metric: Metric) -> Iterator[tuple[Labels, HistogramValues]]:
        with self._lock:
            copies = [(labels, HistogramValues(list(t.counts), t.total_s)) for labels, t in self.times[metric].items()]
        yield from copies
