"""`pytest -p tests.cpu_time`: prints wall seconds and CPU seconds by folder, and the tests that take the most CPU.

A test's CPU seconds include all of its processes, and hardly depend on the machine's other load. The start of a shared
server counts for the test that started it; its later work counts for the test that runs at that time.
`--write-durations` stores the CPU seconds of the files that ran in tests/durations.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import PurePath

import psutil
import pytest

from tests import durations

SHOWN = 20
_spent: Counter[str] = Counter()
_took: Counter[str] = Counter()


def cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants, including ended ones that were waited for."""
    this = psutil.Process()
    spent = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help="store CPU seconds in tests/durations.json")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[began] = cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_s", cpu_s() - item.stash[began]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the times. Runs in the reporting process, which may not be the one that ran the test."""
    _took[folder_of(report.nodeid)] += report.duration  # type: ignore[assignment]
    if report.when == "teardown":
        _spent[report.nodeid] += float(dict(report.user_properties).get("cpu_s", 0))  # type: ignore[arg-type]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    folders: Counter[str] = Counter()
    for test, spent in _spent.items():
        folders[folder_of(test)] += spent
    terminalreporter.section("seconds in a worker, CPU seconds")
    for name, took in _took.most_common():
        terminalreporter.line(f"{took:8.1f} {folders[name]:8.1f}  {name}")
    for name, spent in _spent.most_common(SHOWN):
        terminalreporter.line(f"{spent:17.1f}  {name}")
    if terminalreporter.config.getoption("--write-durations"):
        durations.write(_spent)


def folder_of(test: str) -> str:
    return "/".join(PurePath(test).parts[:2])


began = pytest.StashKey[float]()
