"""What writers publish: names by the conventions, bounded labels, and values that follow the events."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import SettleResult
from frazil.events import (
    BatchCommitted,
    ChangesMerged,
    EpochBegan,
    Event,
    FutureEventTimes,
    LagMeasured,
    NoticeIssued,
    OutageReported,
    PhaseBegan,
    RecordsSkipped,
    StallBegan,
    StallEnded,
    StreamEvent,
    TableEvolved,
    TablesBehind,
    ThrottleEvaluated,
)
from frazil.host.heartbeat import Phase, Stall, StallKind
from frazil.offsets.spans import SourceIdentity
from frazil.telemetry import metrics as m
from frazil.telemetry.telemetry import StreamMetrics, format_exposition
from tests import metrics_page

OF = ("ticks", "demo.ticks")
KEY = BatchKey(4, 1)
MARKER = Marker("ticks", KEY, None, {("t", 0): 10}, SourceIdentity("c", {"t": "id"}), watermark_us=5_500_000)
BATCH = BatchCommitted(KEY, MARKER, 100, 3, 2, stage_s=2.0, commit_s=0.5, bytes=4_096)
STALL = Stall(StallKind.OFFSETS, 0, "t-0", "nothing moves")


class Bench:
    def __init__(self, *, partitions: bool = False) -> None:
        self.meters = m.MetricValues()
        self.sink = StreamMetrics(
            self.meters, stream=OF[0], table=OF[1], interval_s=20, by_partition=partitions, now_s=1_000
        )

    def record(self, *what: StreamEvent) -> None:
        for happening in what:
            self.sink.take(Event(OF[0], 7_000, happening))

    def value(self, metric: m.Metric, *more: str) -> float | None:
        return self.meters.series(metric).get((*OF, *more))


def test_names_follow_the_conventions_of_prometheus_and_are_unique() -> None:
    for metric in m.METRICS:
        assert re.fullmatch(r"frazil(\.[a-z_]+)+", metric.name)
        assert re.fullmatch(r"frazil_[a-z_]+", metric.prometheus)
        assert metric.prometheus.endswith("_total") is (metric.type is m.MetricType.COUNTER)
        assert metric.unit in {"s", "By"} or re.fullmatch(r"\{[a-z]+\}", metric.unit)
        if metric.unit in {"s", "By"}:
            assert {"s": "_seconds", "By": "_bytes"}[metric.unit] in metric.prometheus
    assert len({metric.prometheus for metric in m.METRICS}) == len(m.METRICS)


def test_the_metrics_page_is_generated_from_the_metrics_table() -> None:
    file = Path("docs/reference/metrics.md")
    assert file.read_text() == metrics_page.render(), f"run: python -m tests.metrics_page > {file}"


def test_a_batch_updates_its_counters_and_time_metrics() -> None:
    bench = Bench()
    bench.record(ChangesMerged(0.1), ChangesMerged(0.2), BATCH, BATCH)
    counted = {
        metric.name: bench.value(metric) for metric in (m.BATCHES, m.RECORDS, m.DEAD_LETTERS, m.FILES, m.BYTES_WRITTEN)
    }
    assert counted == {
        "frazil.batches": 2,
        "frazil.records": 200,
        "frazil.dead_letters": 6,
        "frazil.files": 4,
        "frazil.written": 8_192,
    }
    assert (bench.value(m.LAST_COMMIT), bench.value(m.WATERMARK)) == (7.0, 5.5)
    times = {
        metric.name: [(sum(t.counts), t.total_s) for _, t in bench.meters.histograms(metric)]
        for metric in (m.STAGE, m.MERGE)
    }
    assert times == {"frazil.stage": [(2, 4.0)], "frazil.merge": [(1, pytest.approx(0.3))]}


def test_an_empty_commit_moves_the_watermark_metric_but_is_not_counted_as_a_batch() -> None:
    bench = Bench()
    bench.record(BatchCommitted(KEY, MARKER, 0, 0, 0, stage_s=1, commit_s=1))
    assert (bench.value(m.BATCHES), bench.value(m.WATERMARK)) == (0, 5.5)
    assert [*bench.meters.histograms(m.STAGE)] == []


@pytest.mark.parametrize(
    ("metric", "more", "begins", "ends"),
    [
        (m.OUTAGE, (), OutageReported("away"), PhaseBegan(Phase.WAITING)),
        (m.OUTAGE, (), TablesBehind(frozenset({"a.b"}), "is missing 1 row"), TablesBehind(frozenset(), "all have all")),
        (m.STALLED, ("offsets",), StallBegan(STALL), StallEnded(StallKind.OFFSETS, 1)),
        (
            m.THROTTLED,
            (),
            ThrottleEvaluated("grows", 2.0, was_under_pressure=False),
            ThrottleEvaluated(None, 1.0, was_under_pressure=True),
        ),
    ],
)
def test_a_state_metric_is_one_while_the_state_lasts(
    metric: m.Metric, more: tuple[str], begins: StreamEvent, ends: StreamEvent
) -> None:
    bench = Bench()
    seen = [bench.value(metric, *more)]
    for what in (begins, ends):
        bench.record(what)
        seen.append(bench.value(metric, *more))
    assert seen == [0, 1, 0]


def test_an_outage_with_many_retries_is_counted_once() -> None:
    bench = Bench()
    bench.record(*[OutageReported(f"try {n}") for n in range(9)], PhaseBegan(Phase.STAGING), OutageReported("again"))
    assert bench.value(m.OUTAGES) == 2


def test_routed_tables_with_missing_rows_are_one_outage_across_all_phases() -> None:
    bench = Bench()
    for n in range(3):
        bench.record(TablesBehind(frozenset({"a.b"}), f"{n} rows"), OutageReported("away"), PhaseBegan(Phase.STAGING))
    assert (bench.value(m.OUTAGE), bench.value(m.OUTAGES)) == (1, 4)


def test_other_events_are_counted_as_metrics() -> None:
    bench = Bench()
    bench.record(
        EpochBegan(4, MARKER, SettleResult()),
        TableEvolved(KEY, ("added column gate string",)),
        FutureEventTimes(KEY, {("t", 0): 7}, "10m"),
        RecordsSkipped("t-0: 1..9", MARKER),
        NoticeIssued("compiled"),
        NoticeIssued("slow"),
        NoticeIssued("", replaces="compiled"),
        ThrottleEvaluated("grows", 3.0, was_under_pressure=False),
        LagMeasured(50, {("t", 0): 50}, 9_000, 400),
    )
    seen = [bench.value(x) for x in (m.EPOCHS, m.EVOLUTIONS, m.FUTURE, m.SKIPS, m.NOTICES, m.INTERVAL)]
    assert seen == [1, 1, 7, 1, 1, 60]
    assert [bench.value(x) for x in (m.LAG, m.FRESHNESS, m.BACKPRESSURE)] == [50, 9, 0.4]
    assert bench.value(m.PARTITION_LAG, "t", "0") is None


def test_partition_metrics_exist_only_if_enabled_and_disappear_for_partitions_that_caught_up() -> None:
    measured = [LagMeasured(1_000, {("t", n): 1 for n in range(1_000)}, 0, 0), LagMeasured(1, {("t", 3): 1}, 0, 0)]
    closed, opened = Bench(), Bench(partitions=True)
    for bench, series in ((closed, [0, 0]), (opened, [1_000, 1])):
        found = []
        for what in measured:
            bench.record(what)
            found.append(len(bench.meters.series(m.PARTITION_LAG)))
        assert found == series


def test_a_stream_has_as_many_metric_series_as_documented_whatever_happens() -> None:
    bench = Bench()
    for n in range(500):
        bench.record(ChangesMerged(0.1), BATCH, StallBegan(STALL), NoticeIssued(str(n)), OutageReported(str(n)))
        bench.record(LagMeasured(n, {("t", n): n}, n, n), PhaseBegan(Phase.WAITING))
        bench.record(StallEnded(StallKind.OFFSETS, 1), EpochBegan(n, MARKER, SettleResult()))
    lines = [line for line in format_exposition(bench.meters).splitlines() if not line.startswith("#")]
    said = re.search(r"at most (\d+) series", metrics_page.render())
    assert said is not None
    assert len(lines) == int(said[1])


def test_gauges_of_an_ended_writer_are_removed_and_counters_stay() -> None:
    bench, other = Bench(), Bench()
    other.meters = bench.meters
    bench.record(BATCH, LagMeasured(50, {("t", 0): 50}, 9_000, 400), StallBegan(STALL))
    bench.sink.ended()
    assert (bench.value(m.WRITER_RUNNING), bench.value(m.RECORDS)) == (0, 100)
    for gauge in (m.LAG, m.FRESHNESS, m.STALLED, m.OUTAGE):
        assert bench.meters.series(gauge) == {}
    again = StreamMetrics(bench.meters, stream=OF[0], table=OF[1], interval_s=20, by_partition=False, now_s=2_000)
    again.take(Event(OF[0], 1, BATCH))
    assert (bench.value(m.WRITER_RUNNING), bench.value(m.RECORDS)) == (1, 200)
