"""Three streams in one application, over a real broker and real tables: each record lands once, despite kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from frazil.errors import Fenced, WorkerDied
from frazil.home import run_folder
from frazil.host.exits import ENDED_WITH_APPLICATION
from frazil.host.launcher import ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.records import read_exits
from frazil.supervise.decision import WriterAction
from frazil.supervise.supervised import Program, SupervisedStream
from frazil.supervise.supervisor import Supervisor

from .exactness import check_exact, parquet_files

PROGRAM = Path(__file__).parent / "crashing_application.py"
MAIN = Path(__file__).parents[2] / "spark_apps" / "write_application.py"
WITHOUT_JVM = Path(__file__).parents[1] / "writer_without_jvm.py"
BAD = [b"not json", b"[]"]
NAMES = ("a", "b", "c")


class Application:
    """Three streams that share it, and its process."""

    def __init__(self, streams: dict[str, Any]) -> None:
        self.streams = streams
        (self.folder,) = {one.streams for one in streams.values()}

    def start(
        self,
        *arguments: str,
        crash: str = "",
        home: Path | None = None,
        said: int = subprocess.DEVNULL,
        program: Path = PROGRAM,
    ) -> subprocess.Popen[str]:
        environment = {**os.environ, "FRAZIL_TEST_CRASH": crash, **({"FRAZIL_HOME": str(home)} if home else {})}
        command = [sys.executable, str(program), "small", "--streams", str(self.folder), *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said, text=True)

    def catch_up(self) -> None:
        process = self.start("--until-caught-up", said=subprocess.PIPE)
        _, said = process.communicate(timeout=250)
        assert process.returncode == 0, said[-3000:]


@pytest.fixture
def shared(
    tmp_path: Path,
    kafka: Any,
    topic: Callable[..., str],
    frazil_home: Path,  # noqa: ARG001
    declared_stream: Any,
) -> Application:
    streams = {}
    for name in NAMES:
        one = streams[name] = declared_stream(tmp_path, name=name, topic=topic(2), bootstrap=kafka.bootstrap)
        one.declare("application: small\ncommit: {interval: 1s}\n")
    return Application(streams)


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    "point",
    [
        "after-journal",
        *(pytest.param(p, marks=pytest.mark.soak) for p in ("after-stage", "after-dead-letters", "after-commit")),
    ],
)
def test_an_application_killed_in_the_batch_of_one_stream_loses_and_repeats_nothing_of_any(
    shared: Application, events: Callable[[Iterable[int]], Iterator[bytes]], point: str
):
    for name, one in shared.streams.items():
        one.produce([*events(range(500)), *(BAD if name == "b" else [])], partitions=2)
    crashed = shared.start("--until-caught-up", crash=f"{point}:b", said=subprocess.PIPE)
    _, said = crashed.communicate(timeout=250)
    assert crashed.returncode == -signal.SIGKILL, said[-3000:]
    staged = parquet_files(shared.streams["b"]) if point == "after-journal" else None

    shared.catch_up()

    for name, one in shared.streams.items():
        check_exact(one, range(500), rejected=BAD if name == "b" else [])
    assert staged in (None, parquet_files(shared.streams["b"])), "the journal was to be committed as it was staged"


@pytest.mark.soak
def test_a_suspended_application_that_was_replaced_on_another_host_changes_nothing_later(
    shared: Application,
    events: Callable[[Iterable[int]], Iterator[bytes]],
    eventually: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Two applications claim the same streams; hosts share the catalog, and no lock."""
    home = Path(os.environ["FRAZIL_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{home}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", f"file://{home}/warehouse")
    for one in shared.streams.values():
        one.produce(events(range(100)), partitions=2)
    old = shared.start()
    try:
        eventually(lambda: all(one.has_rows(100) for one in shared.streams.values()))
        old.send_signal(signal.SIGSTOP)
        for one in shared.streams.values():
            one.produce(events(range(100, 200)), partitions=2)
        new = shared.start(home=tmp_path / "other-host")
        try:
            eventually(lambda: all(one.has_rows(200) for one in shared.streams.values()))
            old.send_signal(signal.SIGCONT)
            for one in shared.streams.values():
                one.produce(events(range(200, 300)), partitions=2)
            eventually(lambda: all(one.has_rows(300) for one in shared.streams.values()))
            eventually(lambda: all(fenced(name) for name in NAMES))
        finally:
            new.send_signal(signal.SIGTERM)
            new.communicate(timeout=60)
    finally:
        old.send_signal(signal.SIGTERM)
        old.send_signal(signal.SIGCONT)
        old.communicate(timeout=60)
    assert (old.returncode, new.returncode) == (0, 0)
    shared.catch_up()
    for one in shared.streams.values():
        check_exact(one, range(300))


@pytest.mark.soak
def test_a_stream_moves_to_its_own_process_and_back_while_the_others_continue(
    shared: Application, events: Callable[[Iterable[int]], Iterator[bytes]], eventually: Callable[..., Any]
):
    """Its own supervisor, as Airflow runs it, and the application's process see each other by the run folder alone."""

    def produce(numbers: range) -> None:
        for one in shared.streams.values():
            one.produce(events(numbers), partitions=2)

    def all_have(rows: int) -> bool:
        own.step()
        return all(one.has_rows(rows) for one in shared.streams.values())

    moving = shared.streams["a"]
    own = Supervisor(SupervisedStream(Program("a", shared.folder, WITHOUT_JVM)))
    produce(range(100))
    process = shared.start()
    try:
        eventually(lambda: all_have(100))
        moving.declare("commit: {interval: 1s}\n")
        eventually(lambda: own.step() and LocalLauncher("a").observe().process is ProcessState.RUNNING, within_s=90)
        produce(range(100, 200))
        eventually(lambda: all_have(200))
        moving.declare("application: small\ncommit: {interval: 1s}\n")
        eventually(lambda: own.step() and LocalLauncher("a").observe().process is ProcessState.HOSTED, within_s=90)
        produce(range(200, 300))
        eventually(lambda: all_have(300))
        eventually(lambda: own.step().decision.action is WriterAction.END, within_s=60)
        assert not read_exits(run_folder("b")), "the others were not restarted"
        assert not read_exits(run_folder("c"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        LocalLauncher("a").stop(force=True)
    assert process.returncode == 0
    for one in shared.streams.values():
        check_exact(one, range(300))


@pytest.mark.soak
def test_a_killed_jvm_ends_the_application_and_its_next_start_loses_and_repeats_nothing(
    shared: Application,
    events: Callable[[Iterable[int]], Iterator[bytes]],
    eventually: Callable[..., Any],
    tmp_path: Path,
):
    for one in shared.streams.values():
        one.produce(events(range(100)), partitions=2)
    log = tmp_path / "application.log"
    with log.open("w") as out:
        process = shared.start(program=MAIN, said=out.fileno())
    try:
        eventually(lambda: all(one.has_rows(100) for one in shared.streams.values()), within_s=180)
        for one in shared.streams.values():
            one.produce(events(range(100, 200)), partitions=2)
        (jvm,) = [p for p in psutil.Process(process.pid).children() if p.name() == "java"]
        jvm.kill()
        process.wait(120)
    finally:
        process.kill()
    said = log.read_text()
    assert process.returncode == WorkerDied.exit_code, said[-3000:]
    assert "the JVM" in said
    assert {exit_.stopped_for for name in NAMES for exit_ in read_exits(run_folder(name))} <= {
        ENDED_WITH_APPLICATION,
        None,
    }

    shared.catch_up()

    for one in shared.streams.values():
        check_exact(one, range(200))


def fenced(name: str) -> bool:
    return any(exit_.code == Fenced.exit_code for exit_ in read_exits(run_folder(name)))
