"""Supervision moves to another host, whose triggerer has its own FRAZIL_HOME; both hosts share only the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import Fenced
from frazil.host.launcher import ProcessState
from frazil.host.local import LocalLauncher
from frazil.supervise.decision import WriterAction
from frazil.supervise.supervised import Program, SupervisedStream
from frazil.supervise.supervisor import SupervisionStep, Supervisor

CHECKOUT = Path(__file__).resolve().parents[2]
WRITER = CHECKOUT / "tests" / "writer_without_jvm.py"


class Host:
    """A host with a triggerer. What it does, it does with its own FRAZIL_HOME."""

    def __init__(self, home: Path, stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._home, self._monkeypatch = home, monkeypatch
        self.launcher = LocalLauncher(stream.name, folder=home / "streams" / stream.name)
        with self._at_home():
            self._supervisor = Supervisor(SupervisedStream(Program(stream.name, stream.streams, WRITER)))

    def step(self) -> SupervisionStep:
        with self._at_home():
            return self._supervisor.step()

    @property
    def has_epoch(self) -> bool:
        heartbeat = self.launcher.observe().heartbeat
        return heartbeat is not None and heartbeat.epoch is not None

    @contextmanager
    def _at_home(self) -> Iterator[None]:
        with self._monkeypatch.context() as patch:
            patch.setenv("FRAZIL_HOME", str(self._home))
            yield


@pytest.fixture
def host(stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Host]]:
    """`host("one")`; all hosts share a catalog."""
    catalog = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/shared.db", "WAREHOUSE": f"file://{tmp_path}/warehouse"}
    for name, value in catalog.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name}", value)
    hosts: list[Host] = []

    def make(name: str) -> Host:
        hosts.append(Host(tmp_path / name, stream, monkeypatch))
        return hosts[-1]

    yield make
    for one in hosts:
        one.launcher.stop(force=True)


def test_another_host_takes_the_writer_over_and_the_epoch_fences_the_first(
    stream: Any, host: Callable[[str], Host], events: Any, eventually: Any
) -> None:
    """The triggerer of the first host is gone, but its writer runs: nothing stops it, and nothing needs to."""
    one, two = host("one"), host("two")
    stream.produce(events(range(200)), partitions=4)
    eventually(lambda: one.step() and stream.has_rows(200))
    assert two.step().decision.action is WriterAction.START
    # Without an epoch of the second, the first may commit all that follows, and has nothing that could be refused.
    eventually(lambda: two.step() and two.has_epoch)
    stream.produce(events(range(200, 400)), partitions=4)
    eventually(lambda: two.step() and stream.has_rows(400))
    stream.produce(events(range(400, 600)), partitions=4)
    eventually(lambda: one.launcher.observe().process is ProcessState.ENDED)
    assert one.launcher.observe().exits[-1].code == Fenced.exit_code
    eventually(lambda: two.step() and stream.has_rows(600))
    # The first triggerer is not dead, only apart from Airflow, and goes on: it must not take the stream back.
    for _ in range(3):
        assert one.step().decision.action in {WriterAction.GIVE_UP, WriterAction.HOLD}
    assert two.step().decision.action is WriterAction.KEEP
    assert two.launcher.observe().exits == ()
    assert stream.ids() == list(range(600))
