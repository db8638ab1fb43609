"""`frazil run`'s two processes, without Spark: a child that writes, and its parent in the terminal."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from frazil.cli import run
from frazil.cli.foreground import WriterPipe
from frazil.errors import WriterBusy
from frazil.events import EventDispatcher, Sink, StallBegan
from frazil.home import run_folder
from frazil.host.exits import ENDED_WITHOUT_RECORD
from frazil.host.heartbeat import Stall, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.lock import WriterLock
from frazil.host.processes import AGENT_KILLED, is_agent
from frazil.spec.model import StreamSpec
from frazil.status.derive import describe_writer_process
from frazil.status.state import WriterProcess
from frazil.stream.recording import log_event
from frazil.supervise.desired_state import DesiredStore
from tests.made_routes import shop
from tests.polling import eventually

pytestmark = pytest.mark.processes

Start = Callable[..., "subprocess.Popen[str]"]

RUN = """
import os, signal, sys, threading, time
from pathlib import Path
from frazil import errors
from frazil.cli.run import run_in_foreground
folder = Path(sys.argv[1])
def write(voice):
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    (folder / "began").write_text(str(os.getpid()))
{body}
sys.exit(run_in_foreground("ticks", write))
"""
UNTIL_REQUESTED = """
    asked.wait()
    (folder / "ended in order").touch()
"""
TALKS = """
    for n in range(20_000):
        voice.say(f"line {n}: " + "x" * 200)
"""


@pytest.fixture
def start(tmp_path: Path, frazil_home: Path) -> Iterator[Start]:  # noqa: ARG001
    """Starts `frazil run`'s processes with a body for the writer; what is left of them is ended."""
    started: list[subprocess.Popen[str]] = []

    def run(body: str) -> subprocess.Popen[str]:
        script = RUN.format(body=body)
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        if (writer := observed().launch) and writer.writer and psutil.pid_exists(writer.writer.pid):
            os.kill(writer.writer.pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def observed() -> Observation:
    return LocalLauncher("ticks").observe()


def ended(process: subprocess.Popen[str] | None = None) -> WriterProcess:
    """Return the output of `frazil status` once the writer has ended."""
    if process is not None:
        process.communicate(timeout=30)
    return eventually(
        lambda: (seen := observed()).process is ProcessState.ENDED and describe_writer_process(seen, now_ms=0),
        within_s=30,
    )


def began(tmp_path: Path) -> int:
    return int(eventually(lambda: (tmp_path / "began").exists() and (tmp_path / "began").read_text(), within_s=30))


def test_a_run_that_is_asked_to_stop_records_its_exit(start: Start, tmp_path: Path):
    process = start(UNTIL_REQUESTED)
    began(tmp_path)
    seen = observed()
    assert seen.process is ProcessState.FOREGROUND
    assert seen.launch is not None
    assert (seen.launch.parent and seen.launch.parent.pid) == process.pid
    with pytest.raises(WriterBusy, match=f"writer {seen.launch.writer and seen.launch.writer.pid}"):
        WriterLock(run_folder("ticks")).acquire()
    process.send_signal(signal.SIGINT)
    status = ended(process)
    assert (process.returncode, status.exit_code, status.error) == (0, 0, None)
    assert (tmp_path / "ended in order").exists()
    (exit_,) = observed().exits
    assert (exit_.is_supervised, exit_.ended_at_ms >= exit_.started_at_ms) == (False, True)


def test_an_error_is_printed_and_recorded_with_its_exit_code_and_name(start: Start):
    process = start('    raise errors.OffsetGap("ticks[0] begins at 7")')
    _, complaints = process.communicate(timeout=30)
    assert complaints == "OffsetGap: ticks[0] begins at 7\n"
    status = ended()
    assert (process.returncode, status.exit_code, status.exit_name) == (11, 11, "OffsetGap")
    assert str(status.error) == "OffsetGap: ticks[0] begins at 7"


def test_an_exit_that_cannot_be_recorded_hides_neither_its_error_nor_its_exit_code(start: Start):
    stands_in_the_way = run_folder("ticks") / "exit.json"
    stands_in_the_way.mkdir(parents=True)
    process = start('    raise errors.OffsetGap("ticks[0] begins at 7")')
    _, complaints = process.communicate(timeout=30)
    stands_in_the_way.rmdir()
    error, unwritten = complaints.splitlines()
    assert error == "OffsetGap: ticks[0] begins at 7"
    assert "cannot be written, so `frazil status` will not show this" in unwritten
    assert process.returncode == 11


def test_a_second_ctrl_c_is_reported_as_the_cause_of_the_end(start: Start, tmp_path: Path):
    process = start("    signal.signal(signal.SIGTERM, signal.SIG_IGN); asked.wait()")
    began(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert "The current batch commits" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    status = ended(process)
    assert (status.exit_code, str(status.error)) == (137, "a user ended it immediately, with a second Ctrl-C")


def test_a_kill_of_a_writer_is_not_explained_by_the_end_of_its_log(start: Start, tmp_path: Path):
    process = start('    print("2026-01-01 00:00:00,000 WARNING the last word", flush=True)\n    asked.wait()')
    os.kill(began(tmp_path), signal.SIGKILL)
    status = ended(process)
    assert (process.returncode, status.exit_code) == (137, 137)
    killed = "the writer was killed by another user or program, or by the kernel (out of memory: see the kernel's log)"
    assert str(status.error) == f"{killed}; the next one continues from the table"


AGENT = """
    from frazil.home import run_folder
    from frazil.host.processes import record_agent
    record_agent(run_folder("ticks"))
"""


def test_a_killed_agent_is_not_reported_as_an_ended_driver(start: Start, tmp_path: Path):
    process = start(f"{AGENT}    asked.wait()")
    writer = began(tmp_path)
    eventually(lambda: is_agent(run_folder("ticks"), writer), within_s=30)
    os.kill(writer, signal.SIGKILL)
    status = ended(process)
    assert (status.exit_code, str(status.error)) == (137, AGENT_KILLED)


def test_a_second_ctrl_c_ends_an_agent_and_not_its_driver(start: Start, tmp_path: Path):
    process = start(f"{AGENT}    signal.signal(signal.SIGTERM, signal.SIG_IGN); asked.wait()")
    writer = began(tmp_path)
    eventually(lambda: is_agent(run_folder("ticks"), writer), within_s=30)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert "The current batch commits" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert "the driver in the cluster may continue" in process.stdout.readline()
    assert "its driver in the cluster may continue" in str(ended(process).error)


def test_a_writer_whose_run_command_was_killed_ends_gracefully_with_a_recorded_exit(start: Start, tmp_path: Path):
    process = start(UNTIL_REQUESTED + "    while not (folder / 'go').exists(): time.sleep(0.05)")
    writer = began(tmp_path)
    process.kill()
    eventually(lambda: observed().process is ProcessState.ORPHANED, within_s=30)
    with pytest.raises(WriterBusy, match=rf"pid {writer}\) holds .* Its `frazil run` was killed, so it ends after"):
        WriterLock(run_folder("ticks")).acquire()
    (tmp_path / "go").touch()
    status = ended()
    assert (tmp_path / "ended in order").exists()
    assert status.ended_at_ms is not None
    log = (run_folder("ticks") / "writer.log").read_text()
    assert "the process of `frazil run` was killed: the current batch commits, then the writer ends" in log


def test_a_writer_killed_together_with_its_run_has_an_unknown_exit_with_its_last_warning(start: Start, tmp_path: Path):
    process = start('    print("2026-01-01 00:00:00,000 WARNING the last word", flush=True)\n    asked.wait()')
    writer = began(tmp_path)
    eventually(lambda: "the last word" in (run_folder("ticks") / "writer.log").read_text(), within_s=30)
    process.send_signal(signal.SIGSTOP)
    os.kill(writer, signal.SIGKILL)
    eventually(lambda: observed().process is ProcessState.ENDING, within_s=30)
    with pytest.raises(WriterBusy) as busy:
        WriterLock(run_folder("ticks")).acquire()
    parent = f"the last writer of ticks has ended, and its parent (pid {process.pid}) holds"
    assert parent in str(busy.value)
    assert str(writer) not in str(busy.value).replace(str(process.pid), "")
    assert observed().exits == (), "the parent records the exit"
    process.kill()
    status = ended()
    assert (status.exit_code, str(status.error)) == (
        None,
        f"{ENDED_WITHOUT_RECORD}. Its last warning: 2026-01-01 00:00:00,000 WARNING the last word",
    )


@pytest.mark.parametrize("is_stopped", [False, True], ids=["a terminal that takes nothing", "a stopped process"])
def test_a_writer_never_waits_for_its_terminal(start: Start, tmp_path: Path, is_stopped: bool):
    process = start(f'{TALKS}    (folder / "talked").touch()\n    asked.wait()')
    writer = began(tmp_path)
    if is_stopped:
        process.send_signal(signal.SIGSTOP)
    eventually((tmp_path / "talked").exists, within_s=30)
    os.kill(writer, signal.SIGTERM)
    if not is_stopped:
        assert (ended().exit_code, process.poll()) == (0, None), "the exit is known, and the terminal has not all lines"
    process.send_signal(signal.SIGCONT)
    shown, _ = process.communicate(timeout=120)
    lines = shown.splitlines()
    assert lines[0].startswith("line 0: ")
    assert any("not shown, because the terminal was blocked" in line for line in lines)


def test_closing_the_pager_lets_the_current_batch_commit(start: Start, tmp_path: Path):
    process = start("""
    while not asked.wait(0.05):
        voice.say("a batch")
    (folder / "ended in order").touch()
""")
    began(tmp_path)
    assert process.stdout
    process.stdout.close()
    assert process.wait(30) == 0
    assert (tmp_path / "ended in order").exists()
    assert process.stderr
    assert process.stderr.read() == ""


def test_no_signal_is_sent_to_an_ended_writer_while_its_process_group_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[tuple[int, int]] = []
    follower = run.ForegroundWriter(tmp_path, ("s",))

    def ending(_: int, *, timeout_s: float, ask: bool) -> None:
        assert timeout_s
        assert ask
        follower._forward_signal(signal.SIGTERM, None)

    writer = os.fork()
    if writer == 0:
        os._exit(3)
    monkeypatch.setattr(run, "end_group", ending)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    read_end, write_end = os.pipe()
    os.close(write_end)
    assert follower.follow(writer, read_end) == 3
    os.close(read_end)
    follower.terminal.close()
    assert sent == []


@pytest.mark.parametrize("paused", [True, False])
def test_a_run_of_a_paused_stream_reports_the_pause(
    frazil_home: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,  # noqa: ARG001
    *,
    paused: bool,
) -> None:
    spec, said = shop(), list[str]()
    if paused:
        DesiredStore("shop", None).pause(by="ada", reason="a new disk")
    voice: Any = SimpleNamespace(say=said.append)
    run._report_pause(spec, voice)
    assert [line.partition(", 2")[0] for line in said] == (["shop is paused (ada"] if paused else [])
    assert all("a new disk): this run writes anyway" in line for line in said)


def test_a_run_continues_when_the_desired_state_of_its_stream_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.supervise.desired_state.load_stream_table", lambda _: 1 / 0)
    said = list[str]()
    voice: Any = SimpleNamespace(say=said.append)
    run._report_pause(shop(), voice)
    assert said == []


def test_a_stall_is_shown_once(frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    stall = Stall(StallKind.OFFSETS, 0, "shop-0", "shop-0 holds the offsets back")

    def write(spec: StreamSpec, sink: Sink, **_: Any) -> bool:
        events = EventDispatcher(spec.name, log_event, sink, clock_ms=lambda: 0)
        events.emit(StallBegan(stall))
        return False

    monkeypatch.setattr("frazil.stream.main.write", write)
    read_end, write_end = os.pipe()
    logger, pipe = logging.getLogger("frazil"), WriterPipe(write_end)
    try:
        run._write_stream(shop(), pipe, until_caught_up=True)
    finally:
        logger.removeHandler(pipe)
        os.close(write_end)
    with os.fdopen(read_end) as lines:
        assert lines.read().count(stall.reason) == 1
