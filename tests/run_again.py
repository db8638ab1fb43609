"""`pytest -p tests.run_again`: runs each failed test once more, alone, at the end of the run, to identify flaky tests.

A test that passes alone is reported as flaky, with its first output. The run still fails.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

MAX_TESTS = 10
TIMEOUT_S = 400
_failed: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.setdefault(report.nodeid.partition("@")[0], report.longreprtext)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _failed or hasattr(terminalreporter.config, "workerinput"):
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
    if len(_failed) > MAX_TESTS:
        terminalreporter.line(f"{len(_failed) - MAX_TESTS} more failed tests were not run again")
