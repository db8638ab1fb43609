"""The Airflow task, the page, `frazil status` and the alerts agree about a stream with any history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.cli.status import _detail_fields
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.launcher import Observation, ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.processes import identify_process
from frazil.host.records import ExitRecord, Launch, LaunchKind, SupervisionTimes, write_supervision_times
from frazil.maintenance.stream_rules import evaluate_stream_rules
from frazil.operations.overview import RelatedState, StreamReading, build_line
from frazil.spec.load import load_stream
from frazil.spec.maintenance import Alerts
from frazil.spec.model import StreamSpec
from frazil.status.derive import derive_from_decision
from frazil.status.state import Level, StreamState
from frazil.status.stream import read_stream_state
from frazil.supervise.supervised import Program, SupervisedStream
from frazil.supervise.supervisor import Supervisor
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
DECLARED = {
    "name": "ticks",
    "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
    "table": "demo.ticks",
    "schema": {"ts": "timestamptz not null"},
    "event-time": "ts",
}


@dataclass(frozen=True)
class End:
    """How one writer ended, some minutes ago."""

    minutes_ago: float
    code: int | None = 1
    committed: bool = False
    stopped_for: str | None = None


@dataclass(frozen=True)
class Views:
    """One stream at one moment, as four places show it."""

    task: str
    page: str
    status: str
    crashes: int
    """What the alert `restarts` counts."""
    shows_given_up: bool
    """Whether the alert `writer` says so."""
    shown: tuple[Level, str]
    """The page's level, and its first sentence."""


@pytest.fixture
def spec(tmp_path: Path, frazil_home: Path) -> StreamSpec:  # noqa: ARG001
    (tmp_path / "ticks.yaml").write_text(yaml.safe_dump(DECLARED))
    spec = load_stream(tmp_path / "ticks.yaml")
    ensure_table(load_catalog(None), spec)
    return spec


def views(
    spec: StreamSpec, folder: Path, ends: list[End], lives: Heartbeat | None = None, *, watched_ms: int = NOW_MS
) -> Views:
    """A run folder with these ends, oldest first, and perhaps a writer that was launched 30 s ago."""
    exits = tuple(
        ExitRecord(
            f"l{n}", one.code, int(NOW_MS - one.minutes_ago * MINUTE_MS - 1_000),
            int(NOW_MS - one.minutes_ago * MINUTE_MS), spec.fingerprint(), 0, one.committed, one.stopped_for,
            error="boom",
        )
        for n, one in enumerate(ends)
    )  # fmt: skip
    launch_id = "live" if lives else f"l{len(ends) - 1}"
    launch = Launch(launch_id, LaunchKind.SUPERVISED, NOW_MS - 30_000, spec.fingerprint(), writer=identify_process(1))
    write_supervision_times(run_folder("ticks"), SupervisionTimes(last_ms=watched_ms))
    process = ProcessState.RUNNING if lives else ProcessState.ENDED
    observed = Observation(process, launch, lives, exits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalLauncher, "observe", lambda _: observed)
        step = Supervisor(SupervisedStream(Program("ticks", folder, folder), clock=lambda: NOW_MS)).preview()
        task = derive_from_decision(StreamState("ticks"), step.observed, step.decision, now_ms=NOW_MS)
        seen, measured = (read_stream_state(spec, now_ms=NOW_MS, in_full=full) for full in (True, False))
    read = {one.rule: one for one in evaluate_stream_rules(measured, Alerts(), now_ms=NOW_MS)}
    line = build_line("ticks", spec, StreamReading(seen, NOW_MS), RelatedState(), now_ms=NOW_MS)
    return Views(
        task.state,
        line.word,
        _detail_fields(seen, None, now_ms=NOW_MS)["state"],
        int(read["restarts"].value or 0),
        read["writer"].shown == "the supervisor gave up",
        (line.level, line.needs[0].sentence if line.needs else ""),
    )


def heartbeat(*, committed_ago_ms: int | None, lag: int) -> Heartbeat:
    committed = None if committed_ago_ms is None else NOW_MS - committed_ago_ms
    return Heartbeat("ticks", 1, "f", Phase.WAITING, NOW_MS, NOW_MS, 3, 7, lag=lag, last_commit_at_ms=committed)


@pytest.mark.parametrize(
    ("ends", "state", "crashes"),
    [
        ([End(12, committed=True), End(6, committed=True), End(1, committed=True)], "running", 0),
        (
            [End(9, committed=True), End(6, committed=True), End(3, committed=True), End(0, committed=True)],
            "starting again",
            0,
        ),
        ([End(40), End(30), End(20)], "crash-looping", 3),
        ([End(3, 0), End(2, 0), End(1, 0)], "crash-looping", 3),
    ],
)
def test_all_views_agree_on_a_crash_loop(
    spec: StreamSpec, tmp_path: Path, ends: list[End], state: str, crashes: int
) -> None:
    lives = heartbeat(committed_ago_ms=1_000, lag=5) if state == "running" else None
    found = views(spec, tmp_path, ends, lives)
    assert (found.task, found.page, found.status, found.crashes) == (state, state, state, crashes)


@pytest.mark.parametrize("minutes", [0, 1])
def test_a_killed_writer_is_starting_again_only_while_its_supervisor_watches_it(
    spec: StreamSpec, tmp_path: Path, minutes: int
) -> None:
    found = views(spec, tmp_path, [End(0.1, 137, committed=True)], watched_ms=NOW_MS - minutes * MINUTE_MS)
    assert found.page == found.status == ("stopped" if minutes else "starting again")
    level, sentence = found.shown
    assert (level is Level.BROKEN) == (level is not Level.TROUBLE) == bool(minutes)
    remedy = "check that its DAG runs in Airflow" if minutes else "its supervisor starts the next one"
    assert sentence == f"the last writer ended with 137 (signal 9): boom; {remedy}"
    killed = heartbeat(committed_ago_ms=1_000, lag=5)
    found = views(spec, tmp_path, [End(0.1, 137, committed=True)], replace(killed, epoch=None))
    assert found.page == found.status == "starting again"
    assert found.shown == (Level.TROUBLE, "the last writer ended with 137 (signal 9); the next one is starting")


ENDS = st.lists(
    st.builds(
        End,
        st.floats(5.1, 90),
        st.sampled_from([0, 1, 11, 13, 20, 137, None]),
        st.booleans(),
        st.sampled_from([None, None, None, "paused", "hung"]),
    ),
    min_size=1,
    max_size=8,
).map(lambda ends: sorted(ends, key=lambda one: -one.minutes_ago))
LIVES = st.none() | st.builds(
    heartbeat, committed_ago_ms=st.sampled_from([None, 1_000, 3_600_000]), lag=st.integers(0, 1)
)


def test_the_views_agree_about_every_history(spec: StreamSpec, tmp_path: Path) -> None:
    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(ENDS, LIVES)
    def agree(ends: list[End], lives: Heartbeat | None) -> None:
        found = views(spec, tmp_path, ends, lives)
        assert found.page == found.status
        for final in ("crash-looping", "given up"):
            assert (found.task == final) == (found.page == final), found
        assert (found.task == "given up") == found.shows_given_up, found
        assert found.crashes < 3 or found.task in {"crash-looping", "given up"}, found
        assert found.task != "crash-looping" or found.crashes >= 3, found
        assert (lives is None) or found.page not in {"stopped", "given up"}, found

    agree()
