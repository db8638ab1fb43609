"""The local launcher with real processes: each kind of exit is recognised."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
import psutil
import pytest

from frazil.errors import EnvironmentUnusable, WriterBusy
from frazil.host.launcher import ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.lock import LOCK_FILE, WriterLock, read_launch
from frazil.host.processes import AGENT_FILE, KILL_TIMEOUT_MS, ask_agent_to_kill
from frazil.host.records import Launch, ProcessMark
from frazil.json_files import read_json, replace_json

pytestmark = pytest.mark.processes


def running(at_hand: Any, eventually: Any) -> Any:
    """Launch the fake writer, and return its launch once it has committed a batch."""
    launch = at_hand.launcher.launch(at_hand.request())
    eventually(lambda: at_hand.batch() >= 1)
    return launch


def ended(at_hand: Any, eventually: Any) -> Any:
    """Wait for the end of the last launch, and return how it was written down."""
    eventually(lambda: at_hand.launcher.observe().process is ProcessState.ENDED)
    return at_hand.launcher.observe().exits[-1]


def test_a_stream_that_was_never_launched_has_no_launch_and_no_log(at_hand: Any) -> None:
    observation = at_hand.launcher.observe()
    assert observation.process is ProcessState.NEVER_LAUNCHED
    assert observation.launch is None
    assert at_hand.launcher.read_log(None, limit_bytes=1000) is None


def test_a_launched_writer_runs_in_a_session_of_its_own_and_is_no_child_of_ours(at_hand: Any, eventually: Any) -> None:
    launch = running(at_hand, eventually)
    assert at_hand.launcher.observe().process is ProcessState.RUNNING
    assert os.getsid(launch.writer.pid) == launch.parent.pid
    assert os.getpgid(launch.writer.pid) == launch.writer.pid
    ours = {child.pid for child in psutil.Process().children(recursive=True)}
    assert not ours & {launch.writer.pid, launch.parent.pid}


def test_a_graceful_stop_commits_the_current_batch_and_exits_with_0(at_hand: Any, eventually: Any) -> None:
    at_hand.orders(**{"batch-seconds": 1})
    launch = at_hand.launcher.launch(at_hand.request(spec_fingerprint="f7", generation=3))
    eventually(lambda: at_hand.batch() >= 1)
    before = at_hand.batch()
    at_hand.launcher.stop(force=False)
    exit_ = ended(at_hand, eventually)
    assert (exit_.launch_id, exit_.code, exit_.error) == (launch.id, 0, None)
    assert (exit_.spec_fingerprint, exit_.generation, exit_.committed) == ("f7", 3, True)
    assert at_hand.batch() > before
    assert exit_.ended_at_ms >= exit_.started_at_ms


def test_a_killed_writer_leaves_exit_code_137_and_a_free_lock(at_hand: Any, eventually: Any) -> None:
    launch = running(at_hand, eventually)
    os.kill(launch.writer.pid, signal.SIGKILL)
    assert ended(at_hand, eventually).code == 137
    with WriterLock(at_hand.folder):
        pass


def test_a_forced_stop_kills_the_whole_process_group_of_the_writer(at_hand: Any, eventually: Any) -> None:
    script = (
        "import subprocess, sys; subprocess.Popen(['sleep', '300']); sys.stdin.read(); subprocess.run(['sleep', '300'])"
    )
    launch = at_hand.launcher.launch(at_hand.request(sys.executable, "-c", script))
    eventually(lambda: len(psutil.Process(launch.writer.pid).children()) == 2)
    children = psutil.Process(launch.writer.pid).children()
    at_hand.launcher.stop(force=True)
    assert ended(at_hand, eventually).code == 137
    eventually(lambda: not any(child.is_running() for child in children))


def test_an_agent_is_asked_to_kill_its_driver_and_is_killed_if_it_does_not(at_hand: Any, eventually: Any) -> None:
    script = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from frazil.host.processes import KILL_SIGNAL, record_agent\n"
        "signal.signal(KILL_SIGNAL, lambda *_: print('asked', flush=True))\n"
        "record_agent(Path(sys.argv[1]))\n"
        "while True: signal.pause()\n"
    )
    launch = at_hand.launcher.launch(at_hand.request(sys.executable, "-c", script, str(at_hand.folder)))
    eventually(lambda: read_json(at_hand.folder / AGENT_FILE))
    at_hand.launcher.stop(force=True)
    eventually(lambda: "asked" in (at_hand.folder / "writer.log").read_text())
    assert at_hand.launcher.observe().process is ProcessState.RUNNING
    requested = read_json(at_hand.folder / AGENT_FILE)
    replace_json(
        at_hand.folder / AGENT_FILE, {**requested, "requested_at_ms": requested["requested_at_ms"] - KILL_TIMEOUT_MS}
    )
    at_hand.launcher.stop(force=True)
    assert ended(at_hand, eventually).code == 137
    assert not ask_agent_to_kill(at_hand.folder, ProcessMark(launch.writer.pid + 1, 0.0), now_ms=0), "of another launch"


def test_child_processes_of_a_dead_writer_are_stopped_before_the_lock_is_released(
    at_hand: Any, eventually: Any
) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '300']).pid, flush=True); raise SystemExit(5)"
    at_hand.launcher.launch(at_hand.request(sys.executable, "-c", script))
    assert ended(at_hand, eventually).code == 5
    left_behind = int((at_hand.folder / "writer.log").read_text())
    assert not psutil.pid_exists(left_behind) or psutil.Process(left_behind).status() == psutil.STATUS_ZOMBIE


def test_a_second_launch_is_refused_and_touches_nothing_of_the_first(at_hand: Any, eventually: Any) -> None:
    launch = running(at_hand, eventually)
    log = (at_hand.folder / "writer.log").stat().st_ino
    with pytest.raises(WriterBusy, match=str(launch.writer.pid)):
        LocalLauncher("ticks").launch(at_hand.request())
    assert read_launch(at_hand.folder) == launch
    assert (at_hand.folder / "writer.log").stat().st_ino == log
    assert at_hand.launcher.observe().process is ProcessState.RUNNING


def test_ten_launches_at_once_start_one_writer(at_hand: Any, eventually: Any) -> None:
    command = at_hand.launcher._parent_command("race", at_hand.request())
    racers = [
        subprocess.Popen(command, env=dict(at_hand.request().environment), stderr=subprocess.DEVNULL) for _ in range(10)
    ]
    codes = sorted(racer.wait(30) for racer in racers)
    assert codes == [0] + [WriterBusy.exit_code] * 9
    eventually(lambda: at_hand.batch() >= 1)


def test_another_launcher_re_attaches_from_the_run_folder(at_hand: Any, eventually: Any) -> None:
    launch = running(at_hand, eventually)
    other = LocalLauncher("ticks")
    observation = other.observe()
    assert (observation.process, observation.launch) == (ProcessState.RUNNING, launch)
    other.stop(force=False)
    assert ended(at_hand, eventually).code == 0


def test_sigterm_to_the_parent_is_passed_on(at_hand: Any, eventually: Any) -> None:
    launch = running(at_hand, eventually)
    os.kill(launch.parent.pid, signal.SIGTERM)
    assert ended(at_hand, eventually).code == 0


def test_a_writer_whose_parent_process_was_killed_continues_and_keeps_the_lock(at_hand: Any, eventually: Any) -> None:
    launch = running(at_hand, eventually)
    os.kill(launch.parent.pid, signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(launch.parent.pid))
    batch = at_hand.batch()
    eventually(lambda: at_hand.batch() > batch)
    assert at_hand.launcher.observe().process is ProcessState.RUNNING
    with pytest.raises(WriterBusy):
        at_hand.launcher.launch(at_hand.request())
    at_hand.launcher.stop(force=False)
    assert ended(at_hand, eventually).code == 0, "the heartbeat says that it ended well"


def test_a_writer_that_dies_unobserved_is_a_crash_without_an_exit_code(at_hand: Any, eventually: Any) -> None:
    launch = running(at_hand, eventually)
    for process in (launch.parent, launch.writer):
        os.kill(process.pid, signal.SIGKILL)
    exit_ = ended(at_hand, eventually)
    assert (exit_.launch_id, exit_.code, exit_.committed) == (launch.id, None, True)
    at_hand.launcher.observe()
    assert len(at_hand.launcher.observe().exits) == 1, "and it is written down once"


def test_a_pid_that_was_used_again_is_neither_alive_nor_signalled(at_hand: Any, eventually: Any) -> None:
    launch = running(at_hand, eventually)
    at_hand.launcher.stop(force=False)
    ended(at_hand, eventually)
    with subprocess.Popen(["sleep", "300"]) as stranger:
        try:
            record = dataclasses.asdict(launch)
            record["writer"] = {"pid": stranger.pid, "started_at_s": launch.writer.started_at_s - 3600}
            replace_json(at_hand.folder / LOCK_FILE, record)
            assert at_hand.launcher.observe().process is ProcessState.ENDED
            at_hand.launcher.stop(force=False)
            at_hand.launcher.stop(force=True)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_failed_writer_leaves_its_exit_code_and_error(at_hand: Any, eventually: Any) -> None:
    at_hand.orders(exit=11, error="OffsetGap: ticks-0 lost offsets 5 to 9")
    at_hand.launcher.launch(at_hand.request())
    exit_ = ended(at_hand, eventually)
    assert (exit_.code, exit_.error, exit_.committed) == (11, "OffsetGap: ticks-0 lost offsets 5 to 9", False)


def test_without_a_heartbeat_the_end_of_the_log_is_the_error(at_hand: Any, eventually: Any) -> None:
    at_hand.launcher.launch(at_hand.request(sys.executable, "-c", "raise SystemExit('no such module')"))
    exit_ = ended(at_hand, eventually)
    assert (exit_.code, exit_.error) == (1, "no such module")


def test_a_missing_command_is_an_unusable_environment_with_exit_code_127(at_hand: Any) -> None:
    with pytest.raises(EnvironmentUnusable, match="no-such-command"):
        at_hand.launcher.launch(at_hand.request("no-such-command"))
    assert at_hand.launcher.observe().exits[-1].code == 127


def test_the_log_is_read_from_where_the_last_check_ended(at_hand: Any, eventually: Any) -> None:
    at_hand.orders(exit=3, error="boom")
    at_hand.launcher.launch(at_hand.request(sys.executable, "-c", "print('one'); print('two')"))
    ended(at_hand, eventually)
    chunk = at_hand.launcher.read_log(None, limit_bytes=1000)
    assert chunk.lines == ("one", "two")
    with (at_hand.folder / "writer.log").open("a") as log:
        log.write("three\nfo")
    chunk = at_hand.launcher.read_log(chunk.position, limit_bytes=1000)
    assert chunk.lines == ("three",)
    with (at_hand.folder / "writer.log").open("a") as log:
        log.write("ur\n" + "x" * 5000 + "\nend\n")
    lines = at_hand.launcher.read_log(chunk.position, limit_bytes=1000).lines
    assert "bytes are omitted" in lines[0]
    assert lines[-1] == "end"


def test_each_launch_begins_a_new_log_and_the_last_five_are_kept(at_hand: Any, eventually: Any) -> None:
    for n in range(7):
        at_hand.launcher.launch(at_hand.request(sys.executable, "-c", f"print({n})"))
        ended(at_hand, eventually)
    assert {p.name: p.read_text().strip() for p in at_hand.folder.glob("writer.log*")} == {
        "writer.log": "6", **{f"writer.log.{n}": str(6 - n) for n in range(1, 6)},
    }  # fmt: skip


def test_a_foreground_writer_excludes_a_supervised_one_and_is_not_stopped_by_it(at_hand: Any) -> None:
    with WriterLock(at_hand.folder):
        assert at_hand.launcher.observe().process is ProcessState.FOREGROUND
        at_hand.launcher.stop(force=True)
        with pytest.raises(WriterBusy, match="foreground"):
            at_hand.launcher.launch(at_hand.request())
        with pytest.raises(WriterBusy, match=rf"end that process \(Ctrl-C where it runs, or `kill {os.getpid()}`\)"):
            WriterLock(at_hand.folder).acquire()
    launch = at_hand.launcher.launch(at_hand.request())
    with pytest.raises(WriterBusy, match=str(launch.writer.pid)):
        WriterLock(at_hand.folder).acquire()


def test_a_supervised_writer_inherits_the_lock_and_does_not_pass_it_to_child_processes(
    at_hand: Any, eventually: Any
) -> None:
    script = (
        "import os, subprocess, time; from frazil.home import run_folder; "
        "from frazil.host.lock import WriterLock; "
        "fd = WriterLock(run_folder('ticks')).acquire(); print(fd, os.get_inheritable(fd), flush=True); "
        "subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep(300)"
    )
    launch = at_hand.launcher.launch(at_hand.request(sys.executable, "-c", script))
    assert eventually((at_hand.folder / "writer.log").read_text).split()[1] == "False"
    (child,) = eventually(lambda: psutil.Process(launch.writer.pid).children())
    try:
        os.kill(launch.writer.pid, signal.SIGKILL)
        ended(at_hand, eventually)
        assert child.is_running()
        with WriterLock(at_hand.folder):
            pass
    finally:
        child.kill()


def test_a_lock_names_the_application_and_its_streams_and_an_older_lock_names_none(at_hand: Any) -> None:
    at_hand.launcher.launch(dataclasses.replace(at_hand.request(), streams=("ticks", "quotes")))
    launch = read_launch(at_hand.folder)
    assert launch is not None
    assert (launch.application, launch.streams) == ("ticks", ("ticks", "quotes"))
    earlier = {k: v for k, v in dataclasses.asdict(launch).items() if k not in {"application", "streams"}}
    assert msgspec.convert(earlier, Launch) == dataclasses.replace(launch, application="", streams=())


def test_the_launch_of_a_foreground_writer_names_its_application_and_streams(at_hand: Any) -> None:
    with WriterLock(at_hand.folder, streams=("ticks",)):
        launch = at_hand.launcher.observe().launch
    assert (launch.application, launch.streams) == ("ticks", ("ticks",))


def test_a_lock_that_leads_to_another_file_is_refused_and_that_file_is_left_alone(at_hand: Any, tmp_path: Any) -> None:
    (tmp_path / "precious").write_text("mine")
    at_hand.folder.mkdir(parents=True, exist_ok=True)
    (at_hand.folder / LOCK_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(EnvironmentUnusable, match="is a symbolic link"), WriterLock(at_hand.folder):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_launch_is_dated_with_the_current_time(at_hand: Any, eventually: Any) -> None:
    before = time.time_ns() // 1_000_000
    launch = running(at_hand, eventually)
    assert before <= launch.launched_at_ms <= time.time_ns() // 1_000_000


def test_forcing_again_and_again_does_not_lose_the_exit_code(at_hand: Any, eventually: Any) -> None:
    running(at_hand, eventually)

    def force() -> bool:
        at_hand.launcher.stop(force=True)
        return at_hand.launcher.observe().process is ProcessState.ENDED

    eventually(force)
    assert [e.code for e in at_hand.launcher.observe().exits] == [137]
