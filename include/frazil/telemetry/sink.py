"""Turns the events of one stream into its metrics."""

from __future__ import annotations

from frazil.events import (
    BatchCommitted,
    ChangesMerged,
    EpochBegan,
    Event,
    FutureEventTimes,
    LagMeasured,
    NoticeGiven,
    OutageMet,
    PhaseBegan,
    RecordsSkipped,
    StallBegan,
    StallEnded,
    TableEvolved,
    TablesBehind,
    ThrottleEvaluated,
)
from frazil.host.heartbeat import StallKind
from frazil.telemetry import metrics as m

GAUGES = (m.LAG, m.FRESHNESS, m.BACKPRESSURE, m.STALLED, m.OUTAGE, m.THROTTLED, m.NOTICES, m.PARTITION_LAG)
"""Metrics whose series are removed when the writer ends."""


class StreamMetrics:
    """Event sink that updates a stream's metrics. `partitions` enables the metrics per topic partition."""

    def __init__(  # noqa: PLR0913 - the facts about a stream before its first event
        self, meters: m.MetricValues, *, stream: str, table: str, interval_s: float, partitions: bool, now_s: float
    ) -> None:
        self._meters, self._labels = meters, (stream, table)
        self._declared_s, self._partitions = interval_s, partitions
        self._merge_s, self._out, self._behind = 0.0, False, False
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
        for gauge in GAUGES:
            self._meters.forget(gauge, self._labels)

    def take(self, event: Event) -> None:  # noqa: PLR0912 - a case for each kind of event
        """Receive one event."""
        add, set_, of = self._meters.add, self._meters.set, self._labels
        match event.what:
            case PhaseBegan() if self._out:
                self._out = False
                set_(m.OUTAGE, of, self._behind)
            case OutageMet() if not self._out:
                self._out = True
                set_(m.OUTAGE, of, 1)
                add(m.OUTAGES, of)
            case TablesBehind(names=names) if self._behind is not bool(names):
                self._behind = bool(names)
                set_(m.OUTAGE, of, self._out or self._behind)
                add(m.OUTAGES, of, int(self._behind))
            case EpochBegan(marker=marker):
                add(m.EPOCHS, of)
                self._merge_s = 0.0  # a merge of the last epoch may have had no result
                self._watermark(marker.watermark_us)
            case ChangesMerged(merge_s=merge_s):
                self._merge_s += merge_s
            case BatchCommitted() as batch:
                self._batch(event.at_ms, batch)
            case LagMeasured() as measured:
                self._lag(measured)
            case ThrottleEvaluated(reason=reason, stretch=stretch):
                set_(m.THROTTLED, of, reason is not None)
                set_(m.INTERVAL, of, self._declared_s * stretch)
            case StallBegan(stall=stall):
                set_(m.STALLED, (*of, stall.kind), 1)
            case StallEnded(kind=kind):
                set_(m.STALLED, (*of, kind), 0)
            case TableEvolved():
                add(m.EVOLUTIONS, of)
            case FutureEventTimes(rows=rows):
                add(m.FUTURE, of, rows)
            case RecordsSkipped():
                add(m.SKIPS, of)
            case NoticeGiven(replaces=""):
                add(m.NOTICES, of)

    def _batch(self, at_ms: int, batch: BatchCommitted) -> None:
        add, of = self._meters.add, self._labels
        self._meters.set(m.LAST_COMMIT, of, at_ms / 1000)
        self._watermark(batch.marker.watermark_us)
        if not (batch.records or batch.rejected or batch.changes):  # an empty commit
            return
        add(m.BATCHES, of)
        add(m.RECORDS, of, batch.records)
        add(m.DEAD_LETTERS, of, batch.rejected)
        add(m.FILES, of, batch.files)
        add(m.WRITTEN, of, batch.bytes)
        if batch.stage_s:  # else an earlier epoch staged it
            self._meters.observe(m.STAGE, of, batch.stage_s)
            self._meters.observe(m.COMMIT, of, batch.commit_s)
        if self._merge_s:
            self._meters.observe(m.MERGE, of, self._merge_s)
            self._merge_s = 0.0

    def _lag(self, measured: LagMeasured) -> None:
        set_, of = self._meters.set, self._labels
        set_(m.LAG, of, measured.lag)
        set_(m.IN_TRANSACTIONS, of, measured.in_transactions)
        set_(m.FRESHNESS, of, measured.freshness_ms / 1000)
        set_(m.BACKPRESSURE, of, measured.backpressure_ms / 1000)
        if self._partitions:
            self._meters.forget(m.PARTITION_LAG, of)  # including partitions that have caught up
            for (topic, partition), records in measured.unread.items():
                set_(m.PARTITION_LAG, (*of, topic, str(partition)), records)

    def _watermark(self, watermark_us: int | None) -> None:
        if watermark_us is not None:
            self._meters.set(m.WATERMARK, self._labels, watermark_us / 1_000_000)
