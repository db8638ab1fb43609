"""`pytest -p tests.run_again`: runs each failed test once more, alone, at the end of the run, to identify flaky tests.

A test that passes alone is reported as flaky, with its first output. The run still fails. If a worker process died,
its exit code, its last Python stacks and the free memory are printed. The stacks go to a file, because pytest loses
what it captured in a process that dies.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

MAX_TESTS = 10
TIMEOUT_S = 400
EXIT_TIMEOUT_S = 10
_failed: dict[str, str] = {}
_deaths: list[str] = []
_STACKS = "FRAZIL_TEST_STACKS"
"""The variable with the folder of the workers' stacks."""


@pytest.hookimpl(trylast=True)  # after pytest's own, which writes to the standard error
def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None:
        os.environ[_STACKS] = tempfile.mkdtemp(prefix="frazil-stacks-")
    elif _STACKS in os.environ:
        faulthandler.enable(Path(os.environ[_STACKS], worker).open("w"))  # noqa: SIM115 - open until the process ends


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    if error is None:
        return
    try:
        code: object = node.gateway._io.popen.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        code = "none: it runs, and closed its connection"
    stacks = Path(os.environ[_STACKS], node.gateway.id)
    free = subprocess.run(["df", "-h", tempfile.gettempdir()], capture_output=True, text=True, check=False).stdout
    memory = Path("/proc/meminfo")
    free += "".join(memory.read_text().splitlines(keepends=True)[:3] if memory.exists() else [])
    text = stacks.read_text(errors="replace") if stacks.exists() else ""
    _deaths.append(f"worker {node.gateway.id}: exit code {code}\n{text or 'no stacks'}\n{free}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.setdefault(report.nodeid.partition("@")[0], report.longreprtext)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if hasattr(terminalreporter.config, "workerinput"):
        return
    shutil.rmtree(os.environ.pop(_STACKS), ignore_errors=True)
    if not _failed:
        return
    terminalreporter.section("failed tests, each run again alone")
    for test, first in list(_failed.items())[:MAX_TESTS]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "", test]
        try:
            again = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            terminalreporter.line(f"FAILS ALONE TOO (no end within {TIMEOUT_S} s)  {test}")
            continue
        if again.returncode:
            terminalreporter.line(f"FAILS ALONE TOO  {test}")
        else:
            terminalreporter.line(f"FLAKY: it passed alone  {test}")
            terminalreporter.line(first)
    for death in _deaths:
        terminalreporter.section("a worker process died")
        terminalreporter.line(death)
    if len(_failed) > MAX_TESTS:
        terminalreporter.line(f"{len(_failed) - MAX_TESTS} more failed tests were not run again")
