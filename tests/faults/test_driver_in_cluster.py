"""Writers whose driver runs in a standalone Spark cluster: processes die on either side, and requests time out."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil
import pytest

from frazil.dev.spark_cluster import EmbeddedSparkCluster
from frazil.host.heartbeat import Heartbeat
from frazil.host.launcher import LaunchRequest
from frazil.host.local import LocalLauncher
from frazil.remote.driver_folder import DriverFolder
from frazil.table.tables import load_stream_table

from .exactness import check_exact

BAD = [b"not json", b"[]", None]
Events = Callable[[Iterable[int]], Iterator[bytes]]


class Supervised:
    """A stream whose agent a launcher runs, as its supervisor does."""

    def __init__(self, stream: Any, cluster: EmbeddedSparkCluster) -> None:
        self.stream, self.launcher = stream, LocalLauncher(stream.name)
        stream.declare(
            f"resources: {{master: '{cluster.master.address}', cores: 2, deploy-mode: cluster, "
            f"rest-port: {cluster.master.rest_port}}}\ncommit: {{interval: 1s}}\n"
        )

    def launch(self) -> None:
        request = LaunchRequest(tuple(self.stream.command()), dict(os.environ), self.stream.spec.fingerprint(), 1)
        self.launcher.launch(request)

    @property
    def folder(self) -> DriverFolder:
        table = load_stream_table(self.stream.spec)
        assert table is not None
        return DriverFolder.open(table, self.stream.name)

    def driver(self) -> psutil.Process | None:
        """The Python of the driver that the order names."""
        order = self.folder.order()
        assert order is not None
        found = [p for p in psutil.process_iter(["cmdline"]) if order.id in (p.info["cmdline"] or ())]
        return next((p for p in found if "java" not in p.name()), None)

    def code(self) -> int | None:
        """Return the exit code of the last launch; None while it runs."""
        seen = self.launcher.observe()
        if seen.process.is_alive or not seen.exits or seen.launch is None:
            return None
        return seen.exits[-1].code if seen.exits[-1].launch_id == seen.launch.id else None

    def heartbeat(self) -> Heartbeat | None:
        return self.launcher.observe().heartbeat

    def has_rows(self, count: int) -> bool:
        assert self.code() is None, "the agent has ended"
        return bool(self.stream.has_rows(count))

    def log(self) -> str:
        chunk = self.launcher.read_log(None, limit_bytes=100_000)
        return "\n".join(chunk.lines) if chunk else ""


@pytest.fixture
def supervised(stream: Any, spark_cluster: EmbeddedSparkCluster) -> Iterator[Supervised]:
    found = Supervised(stream, spark_cluster)
    yield found
    found.launcher.stop(force=True)
    print(found.log()[-12000:])


def python_of(supervised: Supervised, eventually: Any) -> psutil.Process:
    found: psutil.Process = eventually(supervised.driver)
    return found


def ended(supervised: Supervised, eventually: Any) -> int | None:
    """The exit code of the last launch, as the supervisor sees it."""
    eventually(lambda: supervised.code() is not None, within_s=90)
    return supervised.code()


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.soak
def test_a_driver_in_the_cluster_writes_and_stops_on_request(
    stream: Any, supervised: Supervised, events: Events, eventually: Any
) -> None:
    stream.produce([*events(range(1000)), *BAD], partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(1000))
    heartbeat = eventually(lambda: (found := supervised.heartbeat()) and found.last_commit_at_ms and found)
    assert any("the driver is driver-" in notice for notice in heartbeat.notices)
    eventually(lambda: "committed" in supervised.log())
    supervised.launcher.stop(force=False)
    assert ended(supervised, eventually) == 0
    check_exact(stream, range(1000), rejected=BAD)


@pytest.mark.soak
def test_a_restarted_agent_finds_its_driver_which_continued_meanwhile(
    stream: Any, supervised: Supervised, events: Events, eventually: Any
) -> None:
    stream.produce(events(range(1000)), partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(1000))
    driver, order = python_of(supervised, eventually), supervised.folder.order()
    launch = supervised.launcher.observe().launch
    assert launch is not None
    assert launch.writer is not None
    os.kill(launch.writer.pid, signal.SIGKILL)
    assert ended(supervised, eventually) == 137
    stream.produce(events(range(1000, 2000)), partitions=4)
    eventually(lambda: stream.has_rows(2000))
    supervised.launch()
    eventually(lambda: (found := supervised.heartbeat()) and found.batch is not None)
    assert supervised.folder.order() == order
    assert python_of(supervised, eventually) == driver
    supervised.launcher.stop(force=False)
    assert ended(supervised, eventually) == 0
    assert eventually(lambda: has_ended(driver))
    check_exact(stream, range(2000))


@pytest.mark.soak
def test_the_supervisor_learns_that_a_driver_was_killed_and_the_next_driver_continues(
    stream: Any, supervised: Supervised, events: Events, eventually: Any
) -> None:
    stream.produce(events(range(1000)), partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(1000))
    python_of(supervised, eventually).kill()
    assert ended(supervised, eventually) in {1, 137}
    stream.produce(events(range(1000, 2000)), partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(2000))
    # The JVM alone, as a worker kills it: the Python sees that for itself.
    driver = python_of(supervised, eventually)
    parent = driver.parent()
    assert parent is not None
    parent.kill()
    eventually(lambda: has_ended(driver))
    assert ended(supervised, eventually) in {1, 137}
    check_exact(stream, range(2000))


@pytest.mark.soak
def test_a_driver_that_does_not_end_is_killed_in_the_cluster(
    stream: Any, supervised: Supervised, events: Events, eventually: Any
) -> None:
    stream.produce(events(range(1000)), partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(1000))
    driver = python_of(supervised, eventually)
    driver.suspend()
    supervised.launcher.stop(force=True)
    assert ended(supervised, eventually) == 137
    driver.resume()
    eventually(lambda: has_ended(driver))
    stream.produce(events(range(1000, 2000)), partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(2000))
    supervised.launcher.stop(force=False)
    assert ended(supervised, eventually) == 0
    check_exact(stream, range(2000))


@pytest.mark.soak
def test_a_master_that_is_gone_for_a_while_ends_no_driver(
    stream: Any, supervised: Supervised, spark_cluster: EmbeddedSparkCluster, events: Events, eventually: Any
) -> None:
    stream.produce(events(range(1000)), partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(1000))
    spark_cluster.master.kill()
    eventually(lambda: (found := supervised.heartbeat()) and any("cannot be reached" in said for said in found.notices))
    stream.produce(events(range(1000, 2000)), partitions=4)
    eventually(lambda: supervised.has_rows(2000))
    spark_cluster.master.start()
    eventually(
        lambda: (found := supervised.heartbeat()) and any("the driver runs on" in said for said in found.notices)
    )
    supervised.launcher.stop(force=False)
    assert ended(supervised, eventually) == 0
    check_exact(stream, range(2000))


@pytest.mark.soak
def test_one_of_two_drivers_with_unanswered_submissions_writes(
    stream: Any, supervised: Supervised, events: Events, eventually: Any
) -> None:
    stream.produce(events(range(1000)), partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(1000))
    first, order = python_of(supervised, eventually), supervised.folder.order()
    assert order is not None
    # As if the agent had died between its submission and the answer, and the driver were not heard from for a minute.
    first.suspend()
    supervised.folder.put_order(dataclasses.replace(order, id="0" * 32, submission=None))
    launch = supervised.launcher.observe().launch
    assert launch is not None
    assert launch.writer is not None
    os.kill(launch.writer.pid, signal.SIGKILL)
    assert ended(supervised, eventually) == 137
    stream.produce(events(range(1000, 2000)), partitions=4)
    supervised.launch()
    eventually(lambda: supervised.has_rows(2000), within_s=180)
    first.resume()
    eventually(lambda: has_ended(first))
    supervised.launcher.stop(force=False)
    assert ended(supervised, eventually) == 0
    check_exact(stream, range(2000))
