"""When commit intervals are extended: while unmaintained metadata is large and grows, in bounds, without flapping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.commit.history import ancestors
from frazil.commit.journal import Journal
from frazil.events import EventDispatcher
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.ingest.contract import StageResult
from frazil.spec.model import StreamSpec
from frazil.stream.batch import BatchRunner
from frazil.stream.engine import TaskAnswer
from frazil.stream.plan import read_rates
from frazil.stream.recording import log_event
from frazil.stream.reporter import Reporter
from frazil.stream.stall import StallLimits
from frazil.stream.throttle import BEGIN_PRESSURE, END_PRESSURE, MetadataBounds, MetadataMeasurement, Throttle, throttle
from frazil.supervise.decision import SupervisionPolicy
from tests.made_batches import MadeStream

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
BOUNDS = MetadataBounds("demo.t", snapshots=500, manifests=100, every=HOUR, interval=MINUTE, longest=10 * MINUTE)
WARNS = MetadataBounds("demo.t", snapshots=500, manifests=100, every=HOUR, interval=MINUTE, longest=MINUTE)
COUNTS = st.lists(st.integers(0, 20_000), min_size=1, max_size=60)


def evaluated(seen: list[tuple[timedelta, int, int]], bounds: MetadataBounds = BOUNDS) -> list[Throttle]:
    """Return the decision after each of these commits, given its time, and the snapshots and manifests it leaves."""
    found: list[Throttle] = []
    for at, snapshots, manifests in seen:
        measure = MetadataMeasurement(snapshots, manifests, 0.5, at // timedelta(milliseconds=1))
        found.append(throttle(found[-1] if found else None, measure, bounds))
    return found


def after(counts: list[int], bounds: MetadataBounds = BOUNDS) -> list[Throttle]:
    """The throttle after the fewest snapshots of each half hour."""
    return evaluated([(n * HOUR / 2, count, 10) for n, count in enumerate(counts)], bounds)


# A table between two runs of its maintenance


def sawtooth(
    hours: float, *, every_s: float, streams: int, runs: list[float], leaves: Callable[[int], int]
) -> list[tuple[timedelta, int, int]]:
    """A table that several streams commit to, cut down at `runs`, in hours, to what the run of that number leaves."""
    seen, count, done = [], 50, 0
    for n in range(int(hours * 3600 / every_s)):
        at = n * every_s / 3600
        count += streams
        if done < len(runs) and at >= runs[done]:
            count, done = min(count, leaves(done)), done + 1
        seen.append((at * HOUR, 400 + count, count))
    return seen


@given(
    st.sampled_from([5, 10, 20, 60]),
    st.integers(1, 4),
    st.lists(st.floats(-0.2, 0.2), min_size=8, max_size=8),
    st.integers(2, 110),
)
@settings(max_examples=25, deadline=None)
def test_maintenance_that_runs_in_time_causes_no_throttling_whatever_comes_between_its_runs(
    every_s: int, streams: int, late_h: list[float], left: int
):
    runs = [n + 0.5 + late for n, late in enumerate(late_h)]
    seen = sawtooth(8, every_s=every_s, streams=streams, runs=runs, leaves=lambda _: left)
    assert not any(t.reason for t in evaluated(seen))


@pytest.mark.parametrize(("every_s", "streams"), [(5, 1), (5, 4), (10, 2), (20, 4)])
def test_maintenance_that_stops_is_pressure_after_about_two_of_its_periods(every_s: int, streams: int):
    seen = sawtooth(8, every_s=every_s, streams=streams, runs=[1, 2, 3], leaves=lambda _: 5)
    first = next(at for (at, *_), t in zip(seen, evaluated(seen), strict=True) if t.reason)
    assert 1.5 * HOUR <= first - 3 * HOUR <= 2.5 * HOUR


def test_maintenance_that_leaves_more_files_each_time_causes_throttling_until_it_catches_up():
    seen = sawtooth(12, every_s=10, streams=1, runs=[*range(1, 12)], leaves=lambda run: 80 * run if run < 8 else 5)
    pressed = [at / HOUR for (at, *_), t in zip(seen, evaluated(seen), strict=True) if t.reason]
    assert (4 < pressed[0] < 7, round(pressed[-1])) == (True, 9)


def test_after_a_pause_a_writer_does_not_take_the_peak_size_for_the_size_after_maintenance():
    begins = [(n * HOUR / 2, 500, 10) for n in range(6)]
    rested = [(10 * HOUR + n * HOUR / 2, 500, 700) for n in range(8)]
    assert not any(t.reason for t in evaluated([*begins, *rested]))


def test_a_stream_with_rare_commits_is_never_throttled():
    assert not any(t.reason for t in evaluated([(n * HOUR, 500, 10 + 200 * n) for n in range(12)]))


def test_a_clock_set_back_restarts_the_history_of_the_throttle():
    worst = evaluated([(100 * HOUR + n * HOUR / 2, 500, 10 + 200 * n) for n in range(8)])
    assert worst[-1].reason
    assert throttle(worst[-1], MetadataMeasurement(500, 5_000, 0.5, 0), BOUNDS).reason is None


# What it comes to


def test_the_commit_interval_of_a_table_that_outgrows_maintenance_is_stretched_with_a_reason():
    grown = after([900, 1_000, 1_100, 1_500, 3_000, 3_000, 3_000, 3_000])
    assert [round(t.stretch, 2) for t in grown] == [1, 1, 1, 1, 1, 1.47, 2.0, 4.0]
    assert grown[-1].reason == (
        "the metadata of table demo.t grows faster than maintenance shrinks it: for 1h30m it never had fewer than 3000 "
        "snapshots (maintenance should leave 500), 10 manifests (maintenance should leave 100), and a commit takes "
        "0.5 s; the commit interval is stretched from 1m to 4m. Check that the table's maintenance runs, "
        "and often enough (maintenance.every)"
    )


def test_many_manifests_are_pressure_as_well():
    seen = [(n * HOUR / 2, 10, manifests) for n, manifests in enumerate([150, *[300] * 4])]
    assert evaluated(seen)[-1].stretch == pytest.approx(2.0)


def test_a_table_that_was_large_at_the_start_is_not_throttled_until_it_grows():
    assert [t.reason for t in after([5_000] * 20)] == [None] * 20
    assert after([5_000, *[5_300] * 4])[-1].reason


def test_unbounded_metadata_causes_no_throttling():
    nobody = MetadataBounds("demo.t", None, None, HOUR, MINUTE, 10 * MINUTE)
    assert [t.reason for t in after([10, *[10_000] * 4, *[20_000] * 4], nobody)] == [None] * 9


@given(COUNTS)
def test_the_interval_stays_in_its_bounds_and_is_longer_only_with_a_reason(counts: list[int]):
    for bounds in (BOUNDS, WARNS):
        for found in after(counts, bounds):
            assert 1.0 <= found.stretch <= bounds.longest / bounds.interval
            assert found.reason or found.stretch == 1.0


@given(COUNTS)
def test_a_throttle_warning_appears_where_a_stretch_would_apply(counts: list[int]):
    assert [bool(t.reason) for t in after(counts, WARNS)] == [bool(t.reason) for t in after(counts)]
    assert all(t.stretch == 1.0 for t in after(counts, WARNS))


@given(COUNTS)
def test_throttling_begins_far_above_the_snapshot_limit_and_ends_near_it(counts: list[int]):
    for count, (before, now) in zip(counts[1:], pairwise(after(counts)), strict=True):
        assert count > 500 * (END_PRESSURE if before.reason else BEGIN_PRESSURE) or not now.reason


@given(COUNTS)
def test_a_table_that_only_shrinks_is_never_throttled(counts: list[int]):
    assert not any(t.reason for t in after(sorted(counts, reverse=True)))


@given(st.integers(500, 20_000), st.lists(st.floats(0.98, 1.02), min_size=2, max_size=60), st.booleans())
def test_small_fluctuations_toggle_throttling_at_most_once(level: int, wobbles: list[float], grown: bool):
    found = after([*([100] if grown else []), *(round(level * w) for w in wobbles)])[grown:]
    assert sum(bool(a.reason) != bool(b.reason) for a, b in pairwise(found)) <= 1


@given(st.integers(1, 1_000), st.integers(1, 200))
def test_throttling_ends_once_the_tables_metadata_is_small_again(snapshots: int, manifests: int):
    worst = after([100, *[10_000] * 4])[-1]
    assert worst.reason
    done = throttle(worst, MetadataMeasurement(min(snapshots, 750), min(manifests, 150), 0.5, 2 * 3_600_000), BOUNDS)
    assert (done.stretch, done.reason) == (1.0, None)


# The writer's side


def test_a_writer_that_waits_for_its_stretched_interval_is_not_hung():
    limits = {
        mode: SupervisionPolicy.for_stream(declared(mode)).advance_limits_ms[Phase.WAITING]
        for mode in ("warn", "stretch")
    }
    assert limits["stretch"] - limits["warn"] == 2 * 60_000


def declared(mode: str, align: str = "none") -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "name": "made",
            "source": {"topics": ["made"], "bootstrap-servers": "127.0.0.1:1"},
            "table": "demo.made",
            "schema": {"at": "timestamptz"},
            "event-time": "at",
            "partition-by": ["hour(at)"],
            "commit": {"throttle": mode, "interval": "1m", "max-interval": "3m", "align": align},
            "maintenance": {"expiry": {"at-most": 1, "at-least": 1}},
        }
    )


def at_noon(rows: int) -> dict[str, pa.Array]:
    return {"at": pa.array([datetime(2033, 5, 18, 12, tzinfo=UTC)] * rows, pa.timestamp("us", "UTC"))}


@dataclass
class Writer:
    """Reports after a landed batch like a writer, without Kafka and Spark."""

    spec: StreamSpec
    folder: Path

    def __post_init__(self) -> None:
        self.made = MadeStream(self.spec, 2_000_000_000_000, partitions=1, columns=at_noon)
        events = EventDispatcher("made", log_event, clock_ms=lambda: self.made.now_ms)
        limits = StallLimits.for_stream(self.spec)
        self.reporter = Reporter(events, fingerprint="f", folder=self.folder, limits=limits)
        rest: Any = None
        parts = (self.made.tables, self.made.begin(), rest, events.emit, self.folder, rest)
        self.runner = BatchRunner(self.spec, rest, {}, *parts, route=rest, notices=rest)

    def land(self, commits: int) -> None:
        for n in range(commits):
            self.made.now_ms += 30 * 60_000
            landed = Journal(
                "made", self.made.land({0: (n, n + 1)}).key, "", 0, self.made.source, (), (), {}, frozenset(), {}
            )
            self.runner._record_rates(landed, [TaskAnswer(StageResult((), ()), 0.0)], batch_s=0.1, commit_s=0.1)


@pytest.mark.parametrize(("mode", "stretch"), [("stretch", 3.0), ("warn", 1.0), ("off", None)])
def test_a_commit_updates_the_planner_and_the_heartbeat(
    mode: str,
    stretch: float | None,
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
):
    writer = Writer(declared(mode), tmp_path)
    writer.land(8)
    writer.reporter.send_heartbeat()
    heartbeat = Heartbeat.read(tmp_path)
    assert heartbeat is not None
    assert read_rates(tmp_path).stretch == (stretch or 1.0)
    assert ("grows faster" in (heartbeat.throttle or "")) == (stretch is not None)
    assert ("stretched from 1m to 3m" in (heartbeat.throttle or "")) == (mode == "stretch")


def test_throttling_of_an_aligned_stream_compares_the_snapshots_of_main(
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
):
    writer = Writer(declared("warn", align="watermark"), tmp_path)
    writer.land(2)
    metadata = writer.made.tables.main.current().metadata
    assert writer.runner.throttle is not None
    assert writer.runner.throttle.lows[-1].snapshots == len(list(ancestors(metadata)))
    assert len(metadata.snapshots) >= len(list(ancestors(metadata))) + 2


def test_a_full_disk_does_not_fail_a_batch_that_landed(
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    writer = Writer(declared("stretch"), tmp_path / "gone")
    writer.land(1)
    assert "cannot be recorded for the planner" in caplog.text
