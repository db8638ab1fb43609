"""The supervisor's loop without Airflow, over real writers, a real table and a real run folder."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.clock import now_ms
from frazil.history.objects import read_history
from frazil.history.recorder import RETRY_INTERVAL_MS
from frazil.host.launcher import ProcessState
from frazil.host.supervising_run import announce_given_up, confirm_announcement, confirm_given_up
from frazil.spec.last_valid import MAX_FOLDER_ABSENCE_MS
from frazil.spec.load import find_stream
from frazil.supervise.decision import Cause, WriterAction
from frazil.supervise.desired_state import open_desired_store
from frazil.supervise.supervised import Program, SupervisedStream, TableReader
from frazil.supervise.supervisor import SupervisionStep, Supervisor
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table

pytestmark = pytest.mark.processes

FAKE_WRITER = Path(__file__).parents[1] / "host" / "fake_writer.py"


class Clock:
    """The supervisor's clock: real time, and as much more as a test lets pass."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now, self.ahead_ms = now, 0

    def __call__(self) -> int:
        return self.now() + self.ahead_ms


class Bench:
    """A supervisor at work: `until` steps it, as the trigger does, until it decides as expected."""

    def __init__(self, at_hand: Any, streams: Path, eventually: Any) -> None:
        self.at_hand, self.streams, self.eventually = at_hand, streams, eventually
        self.lines: list[str] = []

    def supervisor(self, **changes: Any) -> Supervisor:
        return Supervisor(SupervisedStream(Program("ticks", self.streams, FAKE_WRITER), **changes))

    def until(self, supervisor: Supervisor, action: WriterAction, cause: Cause) -> SupervisionStep:
        def check() -> SupervisionStep | None:
            step = supervisor.step()
            self.lines += step.writer_log
            return step if (step.decision.action, step.decision.cause) == (action, cause) else None

        found: SupervisionStep = self.eventually(check)
        return found

    def runs(self, supervisor: Supervisor) -> int:
        """The pid of the writer, once it runs and has committed."""
        before = {e.launch_id for e in self.at_hand.launcher.observe().exits}

        def committed() -> int:
            self.lines += supervisor.step().writer_log
            seen = self.at_hand.launcher.observe()
            fresh = seen.launch is not None and seen.launch.id not in before
            return seen.launch.writer.pid if fresh and seen.heartbeat and seen.heartbeat.batch else 0

        pid: int = self.eventually(committed)
        return pid


@pytest.fixture
def bench(at_hand: Any, streams: Path, eventually: Any) -> Bench:
    return Bench(at_hand, streams, eventually)


def test_a_supervisor_starts_a_writer_and_the_next_supervisor_follows_it(bench: Bench) -> None:
    pid = bench.runs(bench.supervisor())
    other = bench.supervisor()
    step = bench.until(other, WriterAction.KEEP, Cause.ADVANCING)
    assert f"pid {pid}" in step.decision.reason
    assert any(f"fake writer {pid} starts" in line for line in step.writer_log)


def test_a_killed_writer_is_started_again_and_its_new_log_is_read_from_the_beginning(bench: Bench) -> None:
    supervisor = bench.supervisor()
    pid = bench.runs(supervisor)
    os.kill(pid, signal.SIGKILL)
    step = bench.until(supervisor, WriterAction.START, Cause.CRASHED)
    assert "signal 9" in step.decision.reason
    second = bench.runs(supervisor)
    bench.until(supervisor, WriterAction.KEEP, Cause.ADVANCING)
    assert second != pid
    assert f"fake writer {second} starts ticks" in bench.lines


def test_a_pause_or_resume_stored_next_to_the_table_is_obeyed_and_recorded_in_the_history(bench: Bench) -> None:
    clock = Clock(now_ms)
    supervisor = bench.supervisor(clock=clock)
    pid = bench.runs(supervisor)
    ensure_table(load_catalog(None), spec := find_stream(bench.streams, "ticks"))
    desired = open_desired_store(spec)
    desired.pause(by="ana", reason="Kafka upgrade")
    # The table was made a moment ago: the supervisor looks for it again after ten seconds.
    supervisor._program.on_launch()
    bench.until(supervisor, WriterAction.STOP, Cause.PAUSED)
    held = bench.until(supervisor, WriterAction.HOLD, Cause.PAUSED)
    assert "paused by ana" in held.decision.reason
    assert "Kafka upgrade" in held.decision.reason
    assert [e.code for e in bench.at_hand.launcher.observe().exits] == [0]
    desired.resume(by="ana", reason="")
    assert bench.runs(supervisor) != pid

    clock.ahead_ms += RETRY_INTERVAL_MS  # there was no table when the first start was to be reported

    def reported() -> list[str]:
        supervisor.step()
        return [what.sentence for what in read_history(spec, since_ms=0).events]

    assert "the stream is paused by ana: Kafka upgrade" in bench.eventually(reported)
    first, second = [sentence for sentence in reported() if "the writer is started" in sentence]
    assert "(requested): resumed by ana" in second
    assert first != second
    desired.restart(by="ana", reason="new credentials")
    bench.until(supervisor, WriterAction.RESTART, Cause.REQUESTED)
    bench.until(supervisor, WriterAction.KEEP, Cause.ADVANCING)
    assert bench.at_hand.launcher.observe().launch.generation == 3


def test_a_changed_spec_restarts_the_stream_and_a_broken_spec_does_not(bench: Bench) -> None:
    supervisor = bench.supervisor()
    bench.runs(supervisor)
    file = bench.streams / "ticks.yaml"
    valid = file.read_text()
    file.write_text(valid.replace("event-time", "event-tmie"))
    assert supervisor.step().decision.cause is Cause.ADVANCING
    file.write_text(valid + "lateness: 10m\n")
    bench.until(supervisor, WriterAction.RESTART, Cause.SPEC_CHANGED)
    bench.until(supervisor, WriterAction.KEEP, Cause.ADVANCING)


def test_a_writer_that_hangs_is_stopped_and_started_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from frazil.supervise import supervisor as module

    clock = Clock(now_ms)
    supervisor = bench.supervisor(clock=clock)
    pid = bench.runs(supervisor)
    # A supervisor that slept as long as the writer stood still may not judge it; this one goes on looking.
    monkeypatch.setattr(module, "MIN_GAP_MS", 60 * 60_000)
    bench.at_hand.orders(hang=True)
    clock.ahead_ms = 20_000
    bench.until(supervisor, WriterAction.KEEP, Cause.ADVANCING)
    os.kill(pid, signal.SIGSTOP)
    clock.ahead_ms = 70_000
    bench.until(supervisor, WriterAction.RESTART, Cause.SILENT)
    clock.ahead_ms = 110_000
    bench.until(supervisor, WriterAction.KILL, Cause.STOPPING)
    bench.at_hand.orders()
    second = bench.eventually(
        lambda: supervisor.step() and (w := bench.at_hand.launcher.observe().launch.writer) and w.pid
    )
    bench.eventually(lambda: bench.at_hand.launcher.observe().exits)
    assert [(e.code, e.stopped_for) for e in bench.at_hand.launcher.observe().exits] == [(137, "silent")]
    assert second


def test_a_stall_that_the_writer_reports_is_reported_and_restarts_nothing(bench: Bench) -> None:
    supervisor = bench.supervisor()
    pid = bench.runs(supervisor)
    assert supervisor.step().observed.stall is None
    bench.at_hand.orders(stall="ticks-0")
    step = bench.eventually(lambda: (s := supervisor.step()).observed.stall and s)
    assert (step.observed.stall.held_back_by, step.observed.stall.reason) == (
        "ticks-0",
        "ticks-0 holds the offsets back",
    )
    assert (step.decision.action, step.decision.cause) == (WriterAction.KEEP, Cause.ADVANCING)
    bench.at_hand.orders()
    bench.eventually(lambda: supervisor.step().observed.stall is None)
    assert bench.at_hand.launcher.observe().launch.writer.pid == pid


def test_an_exit_that_needs_attention_is_given_up_once_and_clearing_the_run_retries(bench: Bench) -> None:
    supervisor = bench.supervisor()
    bench.at_hand.orders(exit=11, error="OffsetGap: ticks-0 lost offsets 5 to 9")
    step = bench.until(supervisor, WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION)
    assert "OffsetGap: ticks-0 lost offsets 5 to 9" in step.decision.reason
    confirm_given_up("ticks", step.decision.subject, reason=step.decision.reason, table_fingerprint=None)
    assert supervisor.step().decision.action is WriterAction.HOLD
    assert bench.supervisor().step().decision.action is WriterAction.HOLD
    bench.at_hand.orders()
    supervisor.clear_for_user(by="Airflow", reason="the run was cleared")
    bench.runs(supervisor)


def test_clearing_undoes_a_pause_by_airflow_but_not_one_by_a_user(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_table(load_catalog(None), spec := find_stream(bench.streams, "ticks"))
    supervisor, desired = bench.supervisor(), open_desired_store(spec)

    def cleared() -> tuple[str, str]:
        supervisor.clear_for_user(by="Airflow", reason="the run was cleared")
        now = desired.read()
        return str(now.mode), now.by

    desired.pause(by="Airflow", reason="the run was marked failed")
    assert cleared() == ("running", "Airflow")
    desired.pause(by="ana", reason="Kafka upgrade")
    assert cleared() == ("paused", "ana")
    assert not bench.at_hand.launcher.observe().process.is_alive
    seen = desired.pause(by="Airflow", reason="the run was marked failed")
    desired.pause(by="ana", reason="it must not run")
    monkeypatch.setattr(TableReader, "desired", lambda *_: seen)
    assert cleared() == ("paused", "ana"), "ana paused it after the supervisor had looked"


def test_a_give_up_announced_by_a_failed_run_on_another_host_is_applied_once(bench: Bench) -> None:
    """The worker in which the run fails reaches no run folder of this host: the next run's trigger knows by itself."""
    supervisor = bench.supervisor()
    bench.at_hand.orders(exit=11, error="OffsetGap: ticks-0 lost offsets 5 to 9")
    step = bench.until(supervisor, WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION)
    announced = {"reason": step.decision.reason, "table_fingerprint": "t1"}
    announce_given_up("ticks", step.decision.subject, run_id="run 1", **announced)
    confirm_announcement("ticks", run_id="run 1")
    assert supervisor.step().decision.action is WriterAction.GIVE_UP, "Airflow may not have been told"
    confirm_announcement("ticks", run_id="run 2")
    assert bench.supervisor().step().decision.action is WriterAction.HOLD
    bench.at_hand.orders()
    supervisor.clear_for_user(by="Airflow", reason="the run was cleared")
    confirm_announcement("ticks", run_id="run 3")
    bench.runs(supervisor)


def test_a_truncated_give_up_announcement_is_deleted(bench: Bench) -> None:
    torn = bench.at_hand.folder / "giving-up.json"
    for text in ("{", '{"run_id": "run 1"}', '{"run_id": "run 1", "given_up": {"of_a_later_version": 1}}'):
        torn.write_text(text)
        confirm_announcement("ticks", run_id="run 2")
        assert not torn.exists()


def test_a_fenced_writer_stays_stopped_and_is_started_when_supervision_returns_to_this_host(bench: Bench) -> None:
    clock = Clock(bench.supervisor()._clock)
    bench.at_hand.orders(exit=13, error="Fenced: epoch 9 took over")
    step = bench.until(bench.supervisor(clock=clock), WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION)
    confirm_given_up("ticks", step.decision.subject, reason=step.decision.reason, table_fingerprint=None)
    bench.at_hand.orders()
    clock.ahead_ms += 2 * 60_000
    assert bench.supervisor(clock=clock).step().decision.action is WriterAction.HOLD  # Airflow was restarted
    clock.ahead_ms += 3 * 24 * 60 * 60_000
    back = bench.supervisor(clock=clock)
    assert back.preview().decision.cause is Cause.RETURNED
    bench.until(back, WriterAction.START, Cause.RETURNED)
    bench.eventually(lambda: bench.at_hand.launcher.observe().process.is_alive)


def test_five_crashes_without_a_commit_are_given_up_on(bench: Bench) -> None:
    supervisor = bench.supervisor(clock=(clock := Clock(bench.supervisor()._clock)))
    bench.at_hand.orders(**{"crash-at-start": True})

    def given_up() -> SupervisionStep | None:
        step = supervisor.step()
        # Time passes as the backoff wants it to.
        clock.ahead_ms += max(0, (step.decision.until_ms or 0) - clock())
        return step if step.decision.action is WriterAction.GIVE_UP else None

    step: SupervisionStep = bench.eventually(given_up)
    assert step.decision.cause is Cause.CRASH_LOOP
    assert "5 crashes" in step.decision.reason
    assert "asked to crash" in step.decision.reason
    assert len(bench.at_hand.launcher.observe().exits) == 5


def test_a_stream_stopped_in_airflow_stays_stopped_until_its_run_is_cleared_there(bench: Bench) -> None:
    supervisor = bench.supervisor()
    bench.runs(supervisor)
    supervisor.pause_for_user(by="Airflow", reason="the run r1 was marked failed or success")
    held = bench.until(bench.supervisor(), WriterAction.HOLD, Cause.PAUSED)
    assert "the run r1 was marked failed" in held.decision.reason
    supervisor.clear_for_user(by="Airflow", reason="the run r2 was cleared")
    bench.runs(supervisor)


def test_clearing_in_airflow_does_not_take_back_a_pause_from_elsewhere(bench: Bench) -> None:

    open_desired_store(find_stream(bench.streams, "ticks")).pause(by="ana", reason="")
    supervisor = bench.supervisor()
    assert supervisor.step().decision.cause is Cause.PAUSED
    supervisor.clear_for_user(by="Airflow", reason="the run was cleared")
    assert supervisor.step().decision.cause is Cause.PAUSED
    assert bench.at_hand.launcher.observe().process is ProcessState.NEVER_LAUNCHED


def test_a_removed_stream_is_stopped_and_its_supervision_ends(bench: Bench) -> None:
    supervisor = bench.supervisor(clock=(clock := Clock(bench.supervisor()._clock)))
    bench.runs(supervisor)
    (bench.streams / "ticks.yaml").rename(aside := bench.streams / "ticks.aside")
    assert supervisor.step().decision.action is WriterAction.KEEP
    clock.ahead_ms = MAX_FOLDER_ABSENCE_MS - 1_000
    assert supervisor.step().decision.action is WriterAction.KEEP, "nothing at all is there: an unmounted volume"
    (bench.streams / "other.yaml").write_text(aside.read_text().replace("ticks", "other"))
    clock.ahead_ms += 500
    assert supervisor.step().decision.action is WriterAction.STOP
    bench.until(supervisor, WriterAction.END, Cause.REMOVED)
    assert bench.at_hand.launcher.observe().exits[-1].code == 0


def test_a_full_run_folder_does_not_end_supervision(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = bench.supervisor(clock=(clock := Clock(bench.supervisor()._clock)))
    bench.runs(supervisor)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("frazil.supervise.supervisor.write_supervision_times", full)
    clock.ahead_ms = 11_000
    assert supervisor.step().decision.action is WriterAction.KEEP


def test_two_supervisors_at_once_start_one_writer(bench: Bench) -> None:
    first, second = bench.supervisor(), bench.supervisor()
    observed = [s._observe() for s in (first, second)]
    problems = [s._launch(o) for s, o in zip((first, second), observed, strict=True)]
    assert problems[0] is None
    assert problems[1] is not None
    assert "WriterBusy" in problems[1]
    bench.until(second, WriterAction.KEEP, Cause.ADVANCING)


def test_a_catalog_that_cannot_be_used_starts_nothing_and_stops_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", "sqlite:////no/such/folder/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__TYPE", "sql")
    supervisor = bench.supervisor()
    step = supervisor.step()
    assert (step.decision.action, step.decision.cause) == (WriterAction.HOLD, Cause.STATE_UNREADABLE)
    spec = find_stream(bench.streams, "ticks")
    bench.at_hand.launcher.launch(bench.at_hand.request(spec_fingerprint=spec.fingerprint()))
    assert supervisor.step().decision.action is WriterAction.KEEP
