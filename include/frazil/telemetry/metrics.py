"""Every metric of frazil, and the values of one process. docs/reference/metrics.md is generated from this table.

Prometheus names are derived from OpenTelemetry names by OpenTelemetry's specification, so that a collector exports the
same names as our own endpoint.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

STREAM = ("stream", "table")
PARTITION = (*STREAM, "topic", "partition")
_UNITS = {"s": "seconds", "By": "bytes"}
BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histograms' buckets, in seconds."""


class Sort(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """The OpenTelemetry name, such as `frazil.records`."""
    sort: Sort
    unit: str
    """Unit in UCUM, as OpenTelemetry requires: `s`, `By`, or the counted thing in braces."""
    means: str
    """The meaning of the metric, as a sentence."""
    labels: tuple[str, ...] = STREAM
    by_partition: bool = False
    """Whether the metric has one series per topic-partition; it is published only on request."""

    @property
    def prometheus(self) -> str:
        """The Prometheus name, with the unit, and with `_total` for a counter."""
        parts = [self.name.replace(".", "_")]
        if (unit := _UNITS.get(self.unit)) and not parts[0].endswith(unit):
            parts.append(unit)
        return "_".join([*parts, *(["total"] if self.sort is Sort.COUNTER else [])])


def _counter(name: str, unit: str, means: str, *more: str) -> Metric:
    return Metric(f"frazil.{name}", Sort.COUNTER, unit, means, (*STREAM, *more))


def _gauge(name: str, unit: str, means: str, *more: str) -> Metric:
    return Metric(f"frazil.{name}", Sort.GAUGE, unit, means, (*STREAM, *more))


def _times(name: str, means: str) -> Metric:
    return Metric(f"frazil.{name}", Sort.HISTOGRAM, "s", means)


WRITER_RUNNING = _gauge(
    "writer.running", "{writer}", "1 while this process writes the stream, 0 after its writer ended."
)
WRITER_STARTED = _gauge("writer.started.timestamp", "s", "When that writer started, in seconds since 1970.")
BATCHES = _counter("batches", "{batch}", "Batches with records that landed.")
RECORDS = _counter("records", "{record}", "Records that landed, without dead letters.")
DEAD_LETTERS = _counter("dead_letters", "{record}", "Records that became dead letters.")
FILES = _counter("files", "{file}", "Data files that batches wrote, before a merge.")
WRITTEN = _counter("written", "By", "Bytes of those files.")
STAGE = _times("stage", "Time that staging a batch took: Kafka to Parquet.")
COMMIT = _times("commit", "Time that the commit of a batch took, with its journal and its merge.")
MERGE = _times("merge", "Time within a commit that the tasks of its merge took; only for upsert streams.")
LAG = _gauge("lag.records", "{record}", "Records in Kafka that are not committed to the table.")
IN_TRANSACTIONS = _gauge(
    "transactions.offsets",
    "{offset}",
    "Offsets in Kafka that wait for a transaction of Kafka's or the source's to end.",
)
FRESHNESS = _gauge("freshness", "s", "Time since the last commit while records wait, in transactions too; else 0.")
BACKPRESSURE = _gauge(
    "backpressure", "s", "By how much the last batch took longer than the commit interval; 0 once nothing waits."
)
INTERVAL = _gauge("commit_interval", "s", "The commit interval, as stretched by `commit.throttle`.")
LAST_COMMIT = _gauge("last_commit.timestamp", "s", "When this process last committed, in seconds since 1970.")
WATERMARK = _gauge("watermark.timestamp", "s", "The stream's watermark, in seconds since 1970.")
EPOCHS = _counter("epochs", "{epoch}", "Take-overs by this process; more than one means a restart in place.")
STALLED = _gauge(
    "stalled", "{stall}", "1 while the stream is stalled, by `kind`: offsets, watermark or transaction.", "kind"
)
OUTAGE = _gauge("outage", "{outage}", "1 while a catalog, a storage or Kafka fails, or tables of the route miss rows.")
OUTAGES = _counter("outages", "{outage}", "Outages that the writer met.")
THROTTLED = _gauge("throttled", "{stream}", "1 while the table's metadata grows faster than maintenance shrinks it.")
EVOLUTIONS = _counter("evolutions", "{evolution}", "Changes of the table's schema that records asked for.")
FUTURE = _counter("future_rows", "{row}", "Rows with event times too far in the future to move the watermark.")
SKIPS = _counter("skips", "{skip}", "How often records were skipped that Kafka's retention had deleted.")
NOTICES = _gauge("notices", "{notice}", "Sentences that the writer wants people to see; `frazil status` shows them.")
PARTITION_LAG = Metric(
    "frazil.partition.lag.records",
    Sort.GAUGE,
    "{record}",
    "Records of a topic-partition that are not committed.",
    PARTITION,
    by_partition=True,
)

METRICS: tuple[Metric, ...] = (
    WRITER_RUNNING,
    WRITER_STARTED,
    BATCHES,
    RECORDS,
    DEAD_LETTERS,
    FILES,
    WRITTEN,
    STAGE,
    COMMIT,
    MERGE,
    LAG,
    IN_TRANSACTIONS,
    FRESHNESS,
    BACKPRESSURE,
    INTERVAL,
    LAST_COMMIT,
    WATERMARK,
    EPOCHS,
    STALLED,
    OUTAGE,
    OUTAGES,
    THROTTLED,
    EVOLUTIONS,
    FUTURE,
    SKIPS,
    NOTICES,
    PARTITION_LAG,
)

Labels = tuple[str, ...]
"""Label values in the order of `Metric.labels`."""


@dataclass(slots=True)
class Times:
    """A histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    """Counts by bucket; the last bucket has no upper bound."""
    total_s: float = 0.0


@dataclass(slots=True)
class Meters:
    """The values of one process. Any thread may call its methods."""

    values: dict[Metric, dict[Labels, float]] = field(default_factory=lambda: {m: {} for m in METRICS})
    times: dict[Metric, dict[Labels, Times]] = field(default_factory=lambda: {m: {} for m in METRICS})
    observers: list[Callable[[Metric, Labels, float], None]] = field(default_factory=list)
    """Functions that are called with each observed time. They must return quickly and not raise."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, metric: Metric, labels: Labels, more: float = 1) -> None:
        with self._lock:
            known = self.values[metric]
            known[labels] = known.get(labels, 0) + more

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        with self._lock:
            self.values[metric][labels] = value

    def observe(self, metric: Metric, labels: Labels, seconds: float) -> None:
        with self._lock:
            times = self.times[metric].setdefault(labels, Times())
            times.counts[bisect_left(BOUNDS_S, seconds)] += 1
            times.total_s += seconds
        for observer in self.observers:
            observer(metric, labels, seconds)

    def forget(self, metric: Metric, labels: Labels) -> None:
        """Remove all series whose label values begin with these."""
        with self._lock:
            for known in [known for known in self.values[metric] if known[: len(labels)] == labels]:
                del self.values[metric][known]

    def of(self, metric: Metric) -> dict[Labels, float]:
        with self._lock:
            return dict(self.values[metric])

    def times_of(self, metric: Metric) -> Iterator[tuple[Labels, Times]]:
        with self._lock:
            found = [(labels, Times(list(t.counts), t.total_s)) for labels, t in self.times[metric].items()]
        yield from found
