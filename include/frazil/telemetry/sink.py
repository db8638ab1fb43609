"""Turns the events of one stream into its metrics."""

from __future__ import annotations

from frazil import events
from frazil.events import BatchCommitted, Event, LagMeasured
from frazil.host.heartbeat import StallKind
from frazil.telemetry import metrics as m

WRITER_GAUGES = (m.LAG, m.FRESHNESS, m.BACKPRESSURE, m.STALLED, m.OUTAGE, m.THROTTLED, m.NOTICES, m.PARTITION_LAG)
"""Gauges whose series are removed when the writer ends."""


class StreamMetrics:
    """Event sink that updates a stream's metrics. `partitions` enables the metrics per topic-partition."""

    def __init__(  # noqa: PLR0913 - the facts about a stream before its first event
        self, meters: m.MetricValues, *, stream: str, table: str, interval_s: float, partitions: bool, now_s: float
    ) -> None:
        self._meters, self._labels = meters, (stream, table)
        self._declared_s, self._partitions = interval_s, partitions
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
        match event.what:
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
        add(m.WRITTEN, labels, batch.bytes)
        if batch.stage_s:  # it is 0 if an earlier epoch staged the batch
            self._meters.observe(m.STAGE, labels, batch.stage_s)
            self._meters.observe(m.COMMIT, labels, batch.commit_s)
        if self._merge_s:
            self._meters.observe(m.MERGE, labels, self._merge_s)
            self._merge_s = 0.0

    def _set_watermark(self, watermark_us: int | None) -> None:
        if watermark_us is not None:
            self._meters.set(m.WATERMARK, self._labels, watermark_us / 1_000_000)
