"""Servers are found and ended by their record, even if the process that started them is gone."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from frazil.dev import process
from frazil.errors import EnvironmentUnusable
from frazil.host import processes
from tests.polling import eventually

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]
PARENT = [
    sys.executable,
    "-c",
    (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " process_group=0); print('born', flush=True); time.sleep(600)"
    ),
]


def start(command: list[str], folder: Path) -> process.Server:
    return process.start("server", command, records=folder, log=folder / "server.log")


def session(server: process.Server) -> list[int]:
    return [p.pid for p in psutil.process_iter() if p.is_running() and _sid(p.pid) == server.pid]


def _sid(pid: int) -> int | None:
    try:
        return os.getsid(pid) if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else None
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


def test_a_server_leads_its_own_session_and_is_found_by_its_record(tmp_path: Path) -> None:
    server = start(SLEEPER, tmp_path)
    assert os.getsid(server.pid) == server.pid
    assert process.find_server("server", tmp_path) == server
    process.stop_all([server], records=tmp_path)
    assert not process.is_alive(server)
    assert process.read_records(tmp_path) == []


def test_a_server_does_not_hold_a_lock_of_the_commands_caller(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    fcntl.flock(lock, fcntl.LOCK_EX)
    server = start(SLEEPER, tmp_path)
    os.close(lock)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)
        process.stop_all([server], records=tmp_path)


def test_a_started_server_gets_no_secrets_from_the_shell_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "KAFKA_PASSWORD", "AIRFLOW_CONN_KAFKA", "LC_ALL"):
        monkeypatch.setenv(name, "C")
    server = start(SLEEPER, tmp_path)
    try:
        given = eventually(psutil.Process(server.pid).environ)  # empty for a moment after the start
    finally:
        process.stop_all([server], records=tmp_path)
    assert given["LC_ALL"] == "C"
    assert {name for name in given if not name.startswith("LC_")} <= process.PASSED_VARIABLES


def test_a_server_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    server = start(STUBBORN, tmp_path)
    eventually(lambda: "deaf" in (tmp_path / "server.log").read_text())
    process.stop_all([server], records=tmp_path, grace_s=0.3)
    assert not process.is_alive(server)


def test_children_that_outlive_their_leader_are_ended_too(tmp_path: Path) -> None:
    server = start(PARENT, tmp_path)
    eventually(lambda: "born" in (tmp_path / "server.log").read_text())
    os.kill(server.pid, 9)
    eventually(lambda: not process.is_alive(server))
    assert len(session(server)) == 1
    assert process.find_server("server", tmp_path) is None
    process.stop_all(process.read_records(tmp_path), records=tmp_path)
    assert session(server) == []


def test_a_pid_that_was_given_to_another_program_is_never_signalled(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPER, start_new_session=True) as innocent:
        stale = process.Server("server", innocent.pid, time.time() - 3600, "gone.log")
        (tmp_path / f"server{process.RECORD_SUFFIX}").write_text(
            json.dumps({"name": "server", "pid": stale.pid, "started_at_s": stale.started_at_s, "log": stale.log})
        )
        assert process.find_server("server", tmp_path) is None
        process.stop_all([stale], records=tmp_path)
        assert innocent.poll() is None
        innocent.kill()


def test_a_server_outlives_the_process_that_started_it_and_is_ended_by_another(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from frazil.dev import process; folder = Path(sys.argv[1]);"
        "process.start('server', [sys.executable, '-c', 'import time; time.sleep(600)'],"
        " records=folder, log=folder / 'server.log')"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    server = process.find_server("server", tmp_path)
    assert server is not None
    process.stop_all([server], records=tmp_path)
    assert process.find_server("server", tmp_path) is None


def test_the_log_tail_contains_the_last_lines_of_the_server(tmp_path: Path) -> None:
    server = start([sys.executable, "-c", "print('one'); print('two'); print('three')"], tmp_path)
    eventually(lambda: not process.is_alive(server))
    assert process.last_lines(tmp_path / "server.log", 2) == "two\nthree"
    assert process.last_lines(tmp_path / "none.log") == ""


def test_a_port_in_use_is_reported_with_its_owner_and_the_option() -> None:
    with socket.socket() as taken:
        taken.bind((process.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert processes.is_listening(port)
        with pytest.raises(
            EnvironmentUnusable, match=rf"port {port}, wanted for tea, is taken .*pid {os.getpid()}.*--tea"
        ):
            process.require_free_port(port, server="tea", option="--tea-port")
    process.require_free_port(port, server="tea", option="--tea-port")


def test_a_free_port_can_be_listened_on() -> None:
    port = process.choose_free_port()
    with socket.socket() as probe:
        probe.bind((process.LOOPBACK, port))
