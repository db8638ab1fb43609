"""A failed test is run once more, alone. If it then passes, it is reported as flaky; the run fails anyway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
TESTS = """
from pathlib import Path

def test_first_time():
    ran = Path(__file__).with_name("ran")
    again = ran.exists()
    ran.touch()
    assert again, "it had never run"
"""


DEADLY_TESTS = """
import ctypes

def test_deadly():
    ctypes.string_at(0)
"""


def run(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.run_again", "-p", "no:cacheprovider", *options]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.processes
def test_a_test_that_passes_when_rerun_alone_is_reported_as_flaky_and_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(TESTS)
    flaky = run(tmp_path).partition("FLAKY: it passed alone  test_made.py::test_first_time")[2]
    assert "it had never run" in flaky


@pytest.mark.processes
def test_a_worker_that_dies_is_reported_with_its_exit_code_and_its_stacks(tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(DEADLY_TESTS)
    died = run(tmp_path, "-n", "1", "--max-worker-restart=0").partition("a worker process died")[2]
    assert "worker gw0: exit code -11" in died
    assert "in test_deadly" in died
