"""Lists changed decisions in the code that no unit test notices: `python -m tests.mutant_hunt commit --count 40`.

Pytest collects the tests once. A first pass records which functions of the room each test calls, and how long it takes.
Then each mutant runs in a fork, in which the function's code is replaced. Only the tests that call the function run.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import PACKAGE, Mutant, Place, place_of, sample

VIEWS = ("overview", "rates", "stream_view", "table_view")
ROOMS = {
    "commit": ("commit", "dead_letters", "backfill", "signals"),
    "merge": ("merge", "commit"),
    "audit": ("audit", "commit/test_period.py", "dead_letters/test_replay.py"),
    "stream": ("stream", "commit", "status"),
    "signals": ("signals", "partitions", "cli"),
    "status": ("status", "cli/test_status.py", *(f"operations/test_{view}.py" for view in VIEWS)),
}
"""The folders and files of `tests/unit` that call most of a room's functions, by room."""
EXPLAINED = Path(__file__).with_name("mutants_explained.json")
"""Mutants that no test can or must notice, by `Mutant.name`, each with the reason in one sentence."""
TIMEOUT_S, TIMEOUT_FACTOR = 20.0, 4
"""A mutant's time limit is a constant plus a multiple of its tests' time. If it hangs, it is noticed."""


class Hunt:
    """A pytest plugin that runs, for each mutant, the tests that call the changed function."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self.mutants = mutants
        self.alive: list[Mutant] = []
        self.invalid: list[Mutant] = []
        self._seconds: list[float] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        places = {m.place for m in self.mutants}
        text = _forked(lambda: self._watch(session, places), timeout_s=3600)
        if text is None or not text.startswith(b"{"):
            raise pytest.UsageError(f"the tests fail or hang without a mutant: {text!r}")
        watched = json.loads(text)
        self._seconds = watched["seconds"]
        print(f"\n{len(session.items)} tests pass in {sum(self._seconds):.0f} s")
        for mutant in self.mutants:
            self._try(session, mutant, watched["calls"].get(str(mutant.place), ()))
        return True

    def _try(self, session: pytest.Session, mutant: Mutant, tests: Sequence[int]) -> None:
        order = sorted(tests, key=lambda i: self._seconds[i])
        limit_s = TIMEOUT_S + TIMEOUT_FACTOR * sum(self._seconds[i] for i in order)

        def attempt() -> bytes:
            try:
                mutant.apply()
            except Exception as error:  # it says nothing about the tests
                return f"invalid: {error!r}".encode()
            return b"alive" if all(_passes(session, session.items[i]) for i in order) else b"noticed"

        if (found := _forked(attempt, timeout_s=limit_s)) == b"alive":
            self.alive.append(mutant)
            reach = f"{len(order)} tests" if order else "no test"
            print(f"alive, {reach} call it: {mutant.name} (line {mutant.line})", flush=True)
        elif found != b"noticed":
            if found and found.startswith(b"invalid"):
                self.invalid.append(mutant)
            print(f"{found.decode() if found else 'hangs or dies'}: {mutant.name}", flush=True)

    def _watch(self, session: pytest.Session, places: set[Place]) -> bytes:
        """Run all tests, and record which tests call which function."""
        calls: dict[str, list[int]] = {}
        seconds: list[float] = []

        def called(frame: Any, event: str, _: object) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(str(PACKAGE)) and (place := place_of(code)) in places:
                of = calls.setdefault(str(place), [])
                if len(seconds) not in of[-1:]:
                    of.append(len(seconds))

        threading.setprofile(called)
        for item in session.items:
            began = time.monotonic()
            sys.setprofile(called)
            passed = _passes(session, item)
            sys.setprofile(None)
            if not passed:
                return f"failed: {item.nodeid}".encode()
            seconds.append(time.monotonic() - began)
        return json.dumps({"calls": calls, "seconds": seconds}).encode()


def _passes(session: pytest.Session, item: pytest.Item) -> bool:
    before = session.testsfailed
    session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return session.testsfailed == before


def _forked(work: Callable[[], bytes], *, timeout_s: float) -> bytes | None:
    """Return what `work` returns in a fork of this process; None if it takes too long, empty if the fork dies."""
    folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            os.write(write, work())
        finally:
            os._exit(0)
    os.close(write)
    try:
        return _all(read, time.monotonic() + timeout_s)
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        shutil.rmtree(folder, ignore_errors=True)


def _all(read: int, deadline: float) -> bytes | None:
    text = b""
    while select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not (part := os.read(read, 1 << 16)):
            return text
        text += part
    return None


def hunt(room: str, tests: Sequence[str], *, count: int, seed: int) -> list[Mutant]:
    """Return the mutants of a sample that no test notices and that have no stored explanation."""
    plugin = Hunt(sample(room, count, seed))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not soak and not processes"]
    if code := pytest.main([*options, *tests], plugins=[plugin]):
        sys.exit(int(code))
    explained = json.loads(EXPLAINED.read_text())
    left = [mutant for mutant in plugin.alive if mutant.name not in explained]
    total, alive = len(plugin.mutants) - len(plugin.invalid), len(plugin.alive)
    print(f"{room}: {total} mutants, {total - alive} noticed, {alive - len(left)} explained, {len(left)} alive")
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description="Lists changes of decisions that no test notices.")
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("tests", nargs="*", help="where to collect; else the folders of the room")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=2026)
    requested = parser.parse_intermixed_args()
    tests = requested.tests or [f"tests/unit/{folder}" for folder in ROOMS[requested.room]]
    return 1 if hunt(requested.room, tests, count=requested.count, seed=requested.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
