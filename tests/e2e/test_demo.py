"""`make demo`: refused with one sentence, interrupted anywhere, killed, and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import psutil
import pytest

from demo.parts import MARK, DemoCatalog
from frazil.dev.process import LOOPBACK, choose_free_port
from tests.kubernetes.node import BINARIES, what_is_missing
from tests.polling import eventually


class RunningDemo:
    """One `python -m demo` with its output in a file."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.output = home.parent / "demo.out"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo", "--exit", *arguments],
                cwd=Path(__file__).parents[2],
                env={**os.environ, "FRAZIL_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def printed(self) -> str:
        return self.output.read_text()

    def wait_until(self, text: str, within_s: float = 180) -> None:
        eventually(lambda: text in self.printed or self.process.poll() is not None, within_s=within_s)
        assert text in self.printed, self.printed

    def end(self, number: signal.Signals, within_s: float = 120) -> int:
        self.process.send_signal(number)
        return self.process.wait(within_s)


def left_behind(home: Path) -> list[str]:
    """The command lines of the demo's processes that still run."""
    found = []
    for candidate in psutil.process_iter():
        try:
            if candidate.environ().get(MARK) == str(home / "demo"):
                found.append(" ".join(candidate.cmdline())[:100])
        except psutil.Error:
            continue
    return found


@pytest.fixture
def ports() -> tuple[str, ...]:
    return ("--kafka-port", str(choose_free_port()), "--airflow-port", str(choose_free_port()))


def test_a_port_in_use_is_one_sentence_with_the_make_variable_and_exit_code_1(frazil_home: Path) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        demo = RunningDemo(frazil_home, "--kafka-port", str(choose_free_port()), "--airflow-port", port)
        assert demo.process.wait(60) == 1
    assert f"port {port}, wanted for the demo's Airflow, is taken" in demo.printed
    assert "make demo AIRFLOW_PORT=…" in demo.printed
    assert "Traceback" not in demo.printed


def test_missing_java_is_one_sentence_and_exit_1(
    frazil_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    demo = RunningDemo(frazil_home, *ports)
    assert demo.process.wait(60) == 1
    assert "Java 17 is missing" in demo.printed
    assert "Traceback" not in demo.printed


@pytest.mark.rotates(2)
def test_pods_need_a_node_and_a_catalog_that_they_can_reach(
    frazil_home: Path, monkeypatch: pytest.MonkeyPatch, ports: tuple[str, ...]
) -> None:
    monkeypatch.delenv(BINARIES, raising=False)
    demo = RunningDemo(frazil_home, "--spark", "kubernetes", "--catalog", "rest", *ports)
    assert demo.process.wait(60) == 2
    assert "pods cannot connect to the servers of CATALOG=rest: leave out CATALOG or SPARK" in demo.printed
    demo = RunningDemo(frazil_home, "--spark", "kubernetes", *ports)
    assert demo.process.wait(60) == 1
    assert "Traceback" not in demo.printed
    assert demo.printed.startswith(f"EnvironmentUnusable: {what_is_missing()}")


@pytest.mark.rotates(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_during_startup_leaves_no_process_behind(
    frazil_home: Path, ports: tuple[str, ...], number: signal.Signals
) -> None:
    demo = RunningDemo(frazil_home, *ports)
    demo.wait_until("starting Kafka")
    eventually(lambda: left_behind(frazil_home))
    assert demo.end(number) == 130
    assert "Traceback" not in demo.printed
    assert left_behind(frazil_home) == []


@pytest.mark.rotates(4)
def test_a_demo_after_a_killed_demo_ends_the_remaining_processes_and_starts_afresh(
    frazil_home: Path, ports: tuple[str, ...]
) -> None:
    first = RunningDemo(frazil_home, *ports)
    first.wait_until("starting Airflow")
    eventually(lambda: any("airflow" in command for command in left_behind(frazil_home)))
    first.end(signal.SIGKILL)
    stale = set(left_behind(frazil_home))
    assert stale
    second = RunningDemo(frazil_home, *ports)
    second.wait_until("sent 334,880 flights")
    assert second.end(signal.SIGINT) == 130
    assert "Traceback" not in second.printed
    assert left_behind(frazil_home) == []


@pytest.fixture
def reachable_home() -> Iterator[Path]:
    """If root runs the tests, PostgreSQL runs as another user, who cannot enter pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="frazil-demo-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "home"


NO_NODE = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words",
    [
        *(("--catalog", catalog) for catalog in get_args(DemoCatalog)),
        pytest.param(("--spark", "kubernetes"), marks=NO_NODE),
    ],
    ids=" ".join,
)
def test_the_whole_demo_lands_every_flight_exactly_once(
    reachable_home: Path, ports: tuple[str, ...], words: tuple[str, ...]
) -> None:
    demo = RunningDemo(reachable_home, *words, *ports)
    assert demo.process.wait(880) == 0, demo.printed
    assert "rows        336,776 of 336,776" in demo.printed
    assert "every flight is in the table exactly once" in demo.printed
    assert left_behind(reachable_home) == []
