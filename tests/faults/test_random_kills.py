"""SIGKILL at random moments under load: of the driver, or of one of the Python workers that stage."""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat
from frazil.host.local import LocalLauncher
from frazil.host.records import read_exits
from frazil.stream.worker_daemon import MODULE
from frazil.supervise.supervised import Program, SupervisedStream
from frazil.supervise.supervisor import Supervisor

from .exactness import check_exact
from .exactness import kills as kills_of

APPLICATION = Path(__file__).parents[2] / "spark_apps" / "write_stream.py"
RECORDS_A_ROUND = 200
ROUND_S = 0.1
KILL_WITHIN_S = 3.0
"""After a commit: about the time of three batches, so that every phase is hit."""


@contextmanager
def forever(step: Callable[[], Any], *, every_s: float) -> Iterator[None]:
    """`step` again and again in a thread meanwhile; what it raises is raised at the end."""
    over = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not over.wait(every_s):
                step()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
    if errors:
        raise errors[0]


class Load:
    """A producer of 2,000 records a second over four partitions."""

    def __init__(self, stream: Any, event: Callable[[int], bytes]) -> None:
        self.sent = 0
        self._event, self._topic = event, stream.topic
        self._producer = Producer({"bootstrap.servers": stream.bootstrap, "linger.ms": 5, "max.in.flight": 1})

    def step(self) -> None:
        for number in range(self.sent, self.sent + RECORDS_A_ROUND):
            self._producer.produce(self._topic, value=self._event(number), partition=number % 4)
        assert self._producer.flush(30) == 0
        self.sent += RECORDS_A_ROUND


def heartbeat(stream: Any) -> Heartbeat | None:
    return Heartbeat.read(run_folder(stream.name))


def committed_since(stream: Any, since_s: float) -> bool:
    found = heartbeat(stream)
    return bool(found and found.last_commit_at_ms and found.last_commit_at_ms > since_s * 1000)


def is_worker(process: psutil.Process) -> bool:
    """A live worker. The daemon that forks workers has children; a worker that just ended has no command line."""
    try:
        return MODULE in process.cmdline() and not process.children()
    except psutil.Error:
        return False


def victims(stream: Any) -> dict[str, psutil.Process]:
    """The driver, and one of its Python workers if one is alive."""
    found = heartbeat(stream)
    assert found is not None
    driver = psutil.Process(found.pid)
    leaves = [p for p in driver.children(recursive=True) if is_worker(p)]
    return {"driver": driver, **({"worker": random.choice(leaves)} if leaves else {})}


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    "kills",
    [3, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_kills_at_random_moments_under_load_lose_and_repeat_nothing(
    stream: Any, event: Callable[[int], bytes], eventually: Any, kills: int
):
    random.seed(int(os.environ["FRAZIL_TEST_SEED"]))
    load = Load(stream, event)
    supervisor = Supervisor(SupervisedStream(Program(stream.name, stream.streams, APPLICATION)))
    recoveries: dict[str, list[float]] = {"driver": [], "worker": []}
    try:
        with forever(supervisor.step, every_s=0.5):
            with forever(load.step, every_s=ROUND_S):
                eventually(lambda: committed_since(stream, 0))
                for number in range(kills):
                    threading.Event().wait(random.uniform(0, KILL_WITHIN_S))
                    able = victims(stream)
                    kind = "worker" if number % 3 == 2 and "worker" in able else "driver"
                    able[kind].kill()
                    killed_at = time.time()
                    eventually(lambda since=killed_at: committed_since(stream, since))
                    recoveries[kind].append(time.time() - killed_at)
            eventually(lambda: stream.table().current_snapshot().summary["total-records"] == str(load.sent))
        exits = read_exits(run_folder(stream.name))
    finally:
        LocalLauncher(stream.name).stop(force=True)
    assert kills_of(exits) == [128 + 9] * len(recoveries["driver"]), exits
    check_exact(stream, range(load.sent))
    for kind, times in recoveries.items():
        if times:
            p95 = sorted(times)[int(0.95 * (len(times) - 1))]
            print(
                f"{kind}: {len(times)} kills, to the next commit p50 {statistics.median(times):.1f} s, p95 {p95:.1f} s"
            )
