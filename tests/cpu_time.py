"""`pytest -p tests.cpu_time`: the CPU seconds of each test with all of its processes, by folder and for the dearest.

Unlike minutes, they hardly depend on what else the machine does. A server that tests share counts for the test that
started it, and from then on for each with what it does meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import PurePath

import psutil
import pytest

SHOWN = 20
_spent: Counter[str] = Counter()


def cpu_s() -> float:
    """Of this process and all below it, those that ended and were waited for included."""
    this = psutil.Process()
    spent = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


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
    """In the process that reports, which need not be the one that ran the test."""
    if report.when == "teardown":
        _spent[report.nodeid] += float(dict(report.user_properties).get("cpu_s", 0))  # type: ignore[arg-type]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    folders: Counter[str] = Counter()
    for test, spent in _spent.items():
        folders["/".join(PurePath(test).parts[:2])] += spent
    terminalreporter.section("CPU seconds")
    for name, spent in [*folders.most_common(), *_spent.most_common(SHOWN)]:
        terminalreporter.line(f"{spent:8.1f}  {name}")


began = pytest.StashKey[float]()
