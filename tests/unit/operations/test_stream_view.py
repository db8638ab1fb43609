"""One stream as the page shows it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot, Summary

from frazil.commit.marker import BatchKey, Marker
from frazil.errors import Failure, KafkaUnavailable, explain
from frazil.history.points import MINUTE_MS, TEN_MINUTES_MS, Point, span_start
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import ExitRecord, Launch, LaunchKind
from frazil.offsets.spans import SourceIdentity
from frazil.operations.stream_view import (
    HOURS,
    MAX_PARTITIONS,
    Partition,
    Period,
    Topic,
    build_table_history,
    describe_stream,
    downsample,
    limit_partitions,
    list_partitions,
    list_runs,
    list_topics,
    total_lag,
    unreported_problems,
)
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.spec.route import Route
from frazil.status.stream import LAG_UNKNOWN
from tests.made_batches import MadeStream

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def spec() -> StreamSpec:
    declared: dict[str, Any] = {
        "name": "ticks",
        "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.ticks",
        "schema": {"ts": "timestamptz not null"},
        "event-time": "ts",
    }
    return validate_stream(declared, Path("ticks.yaml"))


def marker(**changes: Any) -> Marker:
    values: dict[str, Any] = {
        "stream": "ticks",
        "key": BatchKey(1, 2),
        "settled": None,
        "offsets": {("ticks", 0): 10, ("ticks", 1): 20, ("gone", 0): 5},
        "source": SourceIdentity("c", {"ticks": "t"}),
        "max_event_times_us": {("ticks", 0): 5_000_000, ("ticks", 1): 9_000_000},
    }
    return Marker(**{**values, **changes})


def test_each_partition_has_its_lag_and_the_watermark_waits_for_the_one_furthest_behind(spec: StreamSpec):
    found = list_partitions(marker(), {("ticks", 0): 12, ("ticks", 1): 20, ("ticks", 2): 3}, spec)
    assert [(p.partition, p.offset, p.lag, p.newest_ms, p.holds) for p in found] == [
        (0, 10, 2, 5000, True),
        (1, 20, 0, 9000, False),
        (2, None, None, None, False),  # Kafka has it, and nothing of it was read yet
    ]


def test_the_total_lag_is_the_sum_over_partitions_and_unknown_if_one_is_unknown(spec: StreamSpec):
    ends = {("ticks", 0): 12, ("ticks", 1): 25}
    assert total_lag(list_partitions(marker(), ends, spec)) == 7
    assert total_lag(list_partitions(marker(), {**ends, ("ticks", 2): 3}, spec)) is None
    assert total_lag(list_partitions(marker(), None, spec)) is None
    assert total_lag(()) is None


def test_while_kafka_is_silent_the_offsets_are_known_and_the_lag_is_not(spec: StreamSpec):
    found = list_partitions(marker(idle=frozenset({("ticks", 0)})), None, spec)
    assert [(p.lag, p.idle, p.holds) for p in found] == [(None, True, False), (None, False, True)]


def test_a_stream_without_commits_shows_the_partitions_of_kafka(spec: StreamSpec):
    assert list_partitions(None, None, spec) == ()
    assert [p.partition for p in list_partitions(None, {("ticks", 0): 7}, spec)] == [0]


def test_the_most_important_partitions_are_shown_in_order():
    many = [Partition("t", n, 0, n, None, idle=False, holds=n == 0) for n in range(MAX_PARTITIONS + 50)]
    shown = limit_partitions(many)
    assert len(shown) == MAX_PARTITIONS
    assert shown[0].holds
    assert [p.partition for p in shown[1:]] == list(range(51, MAX_PARTITIONS + 50))


def test_the_view_does_not_repeat_problems_of_kafka_from_the_status():
    unread = {"Kafka": "Kafka cannot be read: no answer", "The table": "The table cannot be read: gone"}
    silent: Any = SimpleNamespace(problems=(Failure("slow"), explain(KafkaUnavailable("no answer"), LAG_UNKNOWN)))
    assert unreported_problems(unread, silent) == (unread["The table"],)
    for status in (None, SimpleNamespace(problems=(Failure("slow"),))):
        reported: Any = status
        assert unreported_problems(unread, reported) == tuple(unread.values())


def ended(code: int | None, stopped_for: str | None = None, error: str | None = None) -> ExitRecord:
    return ExitRecord("i", code, 1000, 2000, "f", 1, committed=True, error=error, stopped_for=stopped_for)


@pytest.mark.parametrize(
    ("end", "how", "well"),
    [
        (ended(0), "ended normally", True),
        (ended(0, "paused"), "stopped: paused", True),
        (ended(137), "was ended by signal 9", False),
        (ended(None), "was killed, or its host went down", False),
        (ended(1, error="boom"), "failed with exit code 1", False),
    ],
)
def test_the_outcome_of_a_writer_is_one_sentence(end: ExitRecord, how: str, well: bool):
    (run,) = list_runs(Observation(ProcessState.ENDED, None, None, (end,)))
    assert (run.outcome, run.is_ok, run.error) == (how, well, None if well else end.error)


@pytest.mark.parametrize("kind", LaunchKind)
def test_the_writer_that_runs_comes_first(kind: LaunchKind):
    seen = Observation(ProcessState.RUNNING, Launch("n", kind, 3000, application="all"), None, (ended(0), ended(1)))
    running, *before = list_runs(seen)
    assert (running.started_at_ms, running.ended_at_ms, running.is_ok) == (3000, None, True)
    assert [run.is_ok for run in before] == [False, True]


def test_a_missing_run_folder_has_no_writers():
    assert list_runs(None) == ()


def test_the_declaration_is_reported_in_words(spec: StreamSpec):
    assert describe_stream(spec, {})["Commits"] == "every 1m, or 128MiB"


def test_the_history_is_the_newest_commits_and_the_rejected_records_of_a_day(spec: StreamSpec, frazil_home: Path):  # noqa: ARG001
    moments = pa.timestamp("us", tz="UTC")
    made = MadeStream(
        spec,
        NOW_MS - 2 * 86_400_000,
        partitions=1,
        columns=lambda rows: {"ts": pa.array([NOW_MS * 1000] * rows, pa.int64()).cast(moments)},
    )
    made.land({0: (0, 5)}, rejected={0: [1]})
    made.now_ms = NOW_MS - 1000
    made.land({0: (5, 15)}, rejected={0: [6, 7]})
    metadata = made.tables.main.current().metadata
    found = build_table_history(metadata, spec, None, now_ms=NOW_MS)
    assert found.has_commits
    assert found.marker is None


def test_change_counts_are_summed_over_a_day_including_those_of_a_replay(spec: StreamSpec):
    def commit(n: int, at_ms: int, **reported: str) -> Snapshot:
        summary = {
            "frazil.stream": "ticks",
            "frazil.commit-record": "r",
            **{f"frazil.{k}": v for k, v in reported.items()},
        }
        return Snapshot(
            **{"snapshot-id": n, "parent-snapshot-id": n - 1 or None, "sequence-number": n, "timestamp-ms": at_ms},
            manifest_list="m",
            summary=Summary("overwrite", **summary),
        )

    snapshots = [
        commit(1, NOW_MS - 2 * 86_400_000, inserted="100"),
        commit(2, NOW_MS - 5000, inserted="3", stale="2", unchanged="x"),
        commit(3, NOW_MS - 1000, inserted="4", repeated="0"),
        commit(4, NOW_MS - 500, **{"stream": "", "backfill": "l", "backfill-stream": "ticks", "inserted": "9"}),
    ]
    metadata: Any = SimpleNamespace(
        snapshots=snapshots,
        properties={},
        snapshot_by_id=lambda n: snapshots[n - 1],
        refs={"main": SimpleNamespace(snapshot_id=4)},
        schema=Schema,
    )
    found = build_table_history(metadata, spec, None, now_ms=NOW_MS)
    assert found.changes == {"inserted": 16, "stale": 2, "repeated": 0}


def last(hours: int) -> Period:
    return Period.of(hours, None, None, now_ms=NOW_MS)


@pytest.mark.parametrize("hours", HOURS)
def test_charts_of_any_period_have_few_points_and_lose_no_record(hours: int):
    span_ms = MINUTE_MS if hours == 6 else TEN_MINUTES_MS
    first = span_start(NOW_MS, last(hours).span_ms)
    shown = Period(first, first + hours * 60 * MINUTE_MS, hours)
    points = [Point(at, span_ms, batches=1, records=5, lag=at - first) for at in range(first, shown.end_ms, span_ms)]
    found = downsample(points, shown)
    assert len(found) <= 360
    assert sum(point.records for point in found) == 5 * len(points)
    assert all(point.span_ms == shown.span_ms and point.at_ms % shown.span_ms == 0 for point in found)
    assert found[-1].lag == points[-1].at_ms - first


def test_ten_minute_and_one_minute_points_of_one_time_are_merged_to_one_point_each():
    day = Period(NOW_MS - 23 * 60 * MINUTE_MS, NOW_MS + 60 * MINUTE_MS)
    tens = [Point(NOW_MS - NOW_MS % TEN_MINUTES_MS, TEN_MINUTES_MS, records=10)]
    minutes = [Point(tens[0].at_ms + TEN_MINUTES_MS + n * MINUTE_MS, records=1) for n in range(10)]
    assert [point.records for point in downsample([*tens, *minutes], day)] == [10, 10]
    assert [
        point.span_ms for point in downsample([*tens, *minutes], Period(tens[0].at_ms, NOW_MS + 60 * MINUTE_MS))
    ] == [TEN_MINUTES_MS] + [MINUTE_MS] * 10


def test_unsupported_hours_mean_six_hours_and_a_period_ends_now_at_the_latest():
    assert [last(hours).hours for hours in (0, 24, 25, 168, 10**9)] == [6, 24, 6, 168, 6]
    begin_ms = NOW_MS - 60 * MINUTE_MS
    assert Period.of(6, begin_ms, NOW_MS + 1, now_ms=NOW_MS) == Period(begin_ms, NOW_MS)
    assert Period.of(24, begin_ms, begin_ms, now_ms=NOW_MS) == last(24)


def test_a_topic_links_to_the_configured_address_of_the_team(spec: StreamSpec):
    assert list_topics(spec, (), "") == (Topic("ticks"),)
    assert list_topics(spec, (), "javascript:{topic}") == (Topic("ticks"),)
    other = Partition("a/b", 0, 1, 0, None, idle=False, holds=False)
    found = list_topics(spec, [other], "https://kafka.example/topics/{topic}?x")
    assert [one.address for one in found] == [
        "https://kafka.example/topics/a%2Fb?x",
        "https://kafka.example/topics/ticks?x",
    ]


def test_the_page_shows_the_routing_rule_and_the_default_table(spec: StreamSpec):
    route = Route.model_validate({"by": "field", "name": "kind", "template": "demo.of_{value}"})
    found = describe_stream(spec.model_copy(update={"route": route}), {})
    assert (found["Route"], found["Default table"]) == ("by field kind", "demo.ticks")
    assert "Table" not in found
