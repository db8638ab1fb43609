"""The resources that a process tree is reported to use, however its processes end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from subprocess import PIPE

import pytest

from bench.meter.process_tree import SampledTree, measured

pytestmark = pytest.mark.processes

BURN = """
    import os, signal, sys, time

    def burn(cpu_s):
        while time.process_time() < cpu_s:
            pass

    def fork(work):
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        return pid
"""


def usage_of(script: str, folder: Path) -> float:
    source = textwrap.dedent(BURN) + textwrap.dedent(script)
    usage = measured([sys.executable, "-c", source], log=folder / "log")
    assert usage.exit_code == 0, (folder / "log").read_text()
    return usage.cpu_s


def test_a_child_that_its_parent_waits_for_is_counted(tmp_path: Path) -> None:
    cpu_s = usage_of("os.waitpid(fork(lambda: burn(1)), 0)", tmp_path)

    assert 1 <= cpu_s < 1.8


def test_a_child_whose_parent_ignores_its_end_is_counted(tmp_path: Path) -> None:
    script = """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    fork(lambda: burn(1))
    try:
        os.wait()  # returns when no child is left
    except ChildProcessError:
        pass
    """

    cpu_s = usage_of(script, tmp_path)

    assert 0.8 <= cpu_s < 1.8


def test_a_child_that_outlives_a_parent_that_ignores_it_is_counted_once(tmp_path: Path) -> None:
    script = """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    seen, tell = os.pipe()
    fork(lambda: (burn(1), os.write(tell, b"."), burn(1.1)))
    os.read(seen, 1)  # it has been sampled as this process's child, and becomes an orphan
    """

    cpu_s = usage_of(script, tmp_path)

    assert 1 <= cpu_s < 1.8


def test_the_exit_code_of_the_measured_command_is_reported(tmp_path: Path) -> None:
    assert measured([sys.executable, "-c", "raise SystemExit(3)"], log=tmp_path / "log").exit_code == 3


def test_a_sampled_process_tree_keeps_the_cpu_time_and_role_of_ended_processes() -> None:
    script = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); sys.stdin.read()"
    tree = SampledTree()
    before = tree.cpu_s()["worker daemon"]  # of other tests' Spark, which runs below this process too
    with subprocess.Popen([sys.executable, "-c", script, "daemon"], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        running = tree.cpu_s()
        burnt = next(sampled for (pid, _), sampled in tree.sampled.items() if pid == child.pid)
        child.kill()

    assert burnt.role == "worker daemon"
    assert 0.2 <= burnt.cpu_s < 0.8
    assert running["worker daemon"] >= before + burnt.cpu_s
    assert tree.cpu_s()["worker daemon"] >= running["worker daemon"]
    assert tree.cpu_s()["command"] >= running["command"] > 0
