"""When commits are stretched: while the metadata is large and grows, in bounds, and without flapping."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.dev.made_batches import MadeStream
from frazil.spec.model import StreamSpec
from frazil.stream.batch import BatchRunner
from frazil.stream.planner import read_rates, write_rates
from frazil.stream.reporter import Reporter
from frazil.stream.throttle import BEGIN, END, Bounds, Measure, Throttle, throttle
from frazil.supervise.heartbeat import Heartbeat, Phase
from frazil.supervise.policy import Policy
from frazil.supervise.stall_history import Limits

MINUTE = timedelta(minutes=1)
BOUNDS = Bounds("demo.t", snapshots=500, manifests=100, interval=MINUTE, longest=10 * MINUTE)
WARNS = Bounds("demo.t", snapshots=500, manifests=100, interval=MINUTE, longest=MINUTE)
COUNTS = st.lists(st.integers(0, 20_000), min_size=1, max_size=60)


def after(counts: list[int], bounds: Bounds = BOUNDS) -> list[Throttle]:
    """What is thought after each of some commits, by the snapshots that they find."""
    seen: list[Throttle] = []
    for count in counts:
        seen.append(throttle(seen[-1] if seen else None, Measure(count, 10, 0.5), bounds))
    return seen


def test_a_table_that_outgrows_its_maintenance_is_stretched_and_says_why():
    grown = after([900, 1_000, 1_100, 1_500, 3_000])
    assert [round(t.stretch, 2) for t in grown] == [1, 1, 1.47, 2.0, 4.0]
    assert grown[-1].reason == (
        "the metadata of table demo.t grows faster than maintenance shrinks it: 3000 snapshots where maintenance "
        "leaves 500, 10 manifests where maintenance leaves 100, and a commit takes 0.5 s; the commit interval is "
        "stretched from 1m to 4m. Look whether the table's maintenance runs, "
        "and often enough (maintenance.every)"
    )


def test_many_manifests_are_pressure_as_well():
    first = throttle(None, Measure(10, 150, 0.5), BOUNDS)
    assert throttle(first, Measure(10, 300, 0.5), BOUNDS).stretch == pytest.approx(2.0)


def test_a_table_that_was_large_at_the_start_is_left_alone_until_it_grows():
    assert [t.reason for t in after([5_000] * 20)] == [None] * 20
    assert after([5_000, 5_300])[-1].reason


def test_what_nobody_keeps_small_is_no_pressure():
    nobody = Bounds("demo.t", None, None, MINUTE, 10 * MINUTE)
    assert [t.reason for t in after([10, 10_000, 20_000], nobody)] == [None] * 3


@given(COUNTS)
def test_the_interval_stays_in_its_bounds_and_is_longer_only_with_a_reason(counts: list[int]):
    for bounds in (BOUNDS, WARNS):
        for found in after(counts, bounds):
            assert 1.0 <= found.stretch <= bounds.longest / bounds.interval
            assert found.reason or found.stretch == 1.0


@given(COUNTS)
def test_a_warning_is_said_where_a_stretch_would_be(counts: list[int]):
    assert [bool(t.reason) for t in after(counts, WARNS)] == [bool(t.reason) for t in after(counts)]
    assert all(t.stretch == 1.0 for t in after(counts, WARNS))


@given(COUNTS)
def test_it_begins_only_far_above_what_is_kept_and_ends_near_it(counts: list[int]):
    for count, (before, now) in zip(counts[1:], pairwise(after(counts)), strict=True):
        assert count > 500 * (END if before.reason else BEGIN) or not now.reason


@given(COUNTS)
def test_a_table_that_only_shrinks_is_never_throttled(counts: list[int]):
    assert not any(t.reason for t in after(sorted(counts, reverse=True)))


@given(st.integers(500, 20_000), st.lists(st.floats(0.98, 1.02), min_size=2, max_size=60), st.booleans())
def test_small_ups_and_downs_change_the_answer_once_at_most(level: int, wobbles: list[float], grown: bool):
    found = after([*([100] if grown else []), *(round(level * w) for w in wobbles)])[grown:]
    assert sum(bool(a.reason) != bool(b.reason) for a, b in pairwise(found)) <= 1


@given(st.integers(1, 1_000), st.integers(1, 200))
def test_whatever_it_was_a_table_in_shape_commits_as_declared(snapshots: int, manifests: int):
    worst = after([100, 10_000])[-1]
    done = throttle(worst, Measure(min(snapshots, 750), min(manifests, 150), 0.5), BOUNDS)
    assert (done.stretch, done.reason) == (1.0, None)


# The writer's side


def test_a_writer_that_waits_for_its_stretched_interval_is_not_hung():
    limits = {mode: Policy.for_stream(declared(mode)).advance_limits_ms[Phase.WAITING] for mode in ("warn", "stretch")}
    assert limits["stretch"] - limits["warn"] == 2 * 60_000


def declared(mode: str) -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "name": "made",
            "source": {"topics": ["made"], "bootstrap-servers": "127.0.0.1:1"},
            "table": "demo.made",
            "schema": {"at": "timestamptz"},
            "event-time": "at",
            "commit": {"throttle": mode, "interval": "1m", "max-interval": "3m"},
            "maintenance": {"expiry": {"at-most": 1, "at-least": 1}},
        }
    )


@pytest.mark.parametrize(("mode", "stretch"), [("stretch", 3.0), ("warn", 1.0), ("off", None)])
def test_a_commit_tells_planner_and_heartbeat(mode: str, stretch: float | None, frazil_home: Path, tmp_path: Path):  # noqa: ARG001
    made = MadeStream(declared(mode), 2_000_000_000_000, partitions=1)
    limits = Limits.for_stream(made.spec)
    reporter = Reporter(stream="made", fingerprint="f", folder=tmp_path, limits=limits, clock_ms=lambda: made.now_ms)
    rest: Any = None
    runner = BatchRunner(
        made.spec, rest, {}, made.tables, rest, made.begin(), rest, reporter, run_folder=tmp_path, progress=rest
    )
    write_rates(tmp_path, read_rates(tmp_path))
    for n in range(6):
        made.land({0: (n, n + 1)})
        runner._look_at_metadata(0.1)
    reporter.beat()
    beat = Heartbeat.read(tmp_path)
    assert beat is not None
    assert read_rates(tmp_path).stretch == (stretch or 1.0)
    assert ("grows faster" in (beat.throttle or "")) == (stretch is not None)
    assert ("stretched from 1m to 3m" in (beat.throttle or "")) == (mode == "stretch")
