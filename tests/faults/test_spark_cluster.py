"""Writers whose tasks run on a standalone Spark cluster: outages of its processes, and unusable executors."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from frazil.cli.main import frazil
from frazil.dev import process
from frazil.dev.spark_cluster import EmbeddedSparkCluster
from frazil.errors import EnvironmentUnusable
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.stream import worker_daemon

from .exactness import check_exact

BAD = [b"not json", b"[]", None]
Events = Callable[[Iterable[int]], Iterator[bytes]]


def declare(stream: Any, cluster: EmbeddedSparkCluster, *, resources: str = "", extra: str = "") -> None:
    stream.declare(
        f"resources: {{master: '{cluster.master.address}', cores: 2{resources}}}\ncommit: {{interval: 1s}}\n{extra}"
    )
    # Several tasks for each batch, however small: each makes a file of the target size.
    declared = stream.streams / f"{stream.name}.yaml"
    small = f"{{identifier: test.{stream.name}, properties: {{write.target-file-size-bytes: 2000}}}}"
    declared.write_text(declared.read_text().replace(f"table: test.{stream.name}", f"table: {small}"))


def caught_up(stream: Any) -> subprocess.CompletedProcess[str]:
    """The writer's process, to its end."""
    command = stream.command("--until-caught-up")
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    print(done.stderr[-8000:])
    return done


@pytest.mark.rotates(3)
def test_the_cluster_listens_on_loopback_alone(spark_cluster: EmbeddedSparkCluster):
    processes = [psutil.Process(found.pid) for s in spark_cluster.servers.values() if (found := s.server())]
    ips = {c.laddr.ip for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
    assert {ip_address(ip.removeprefix("::ffff:")).is_loopback for ip in ips} == {True}


@contextmanager
def running(stream: Any) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Yield the writer's process and its log lines so far. Afterwards the process must end in order on request."""
    with subprocess.Popen(stream.command(), stderr=subprocess.PIPE, text=True) as writer:
        said: list[str] = []
        reading = threading.Thread(target=lambda: said.extend(writer.stderr or ()), daemon=True)
        reading.start()
        try:
            yield writer, said
            writer.terminate()
            code = writer.wait(60)
        finally:
            writer.kill()
            reading.join(10)
            print("".join(said)[-12000:])
    assert code == 0


def python_workers(server: process.EmbeddedServer) -> list[psutil.Process]:
    """The Python workers of the executors of one of the cluster's workers."""
    found = server.server()
    below = psutil.Process(found.pid).children(recursive=True) if found else []
    daemons = {p.pid for p in below if _is_daemon(p) and not _is_daemon(p.parent())}
    return [p for p in below if p.ppid() in daemons]


def executors(server: process.EmbeddedServer) -> list[psutil.Process]:
    """The JVMs of the executors of one of the cluster's workers."""
    found = server.server()
    return psutil.Process(found.pid).children() if found else []


def staging(stream: Any) -> bool:
    heartbeat = Heartbeat.read(run_folder(stream.name))
    return heartbeat is not None and heartbeat.phase is Phase.STAGING


def has_ended(candidate: psutil.Process) -> bool:
    return not candidate.is_running() or candidate.status() == psutil.STATUS_ZOMBIE


def _is_daemon(candidate: psutil.Process | None) -> bool:
    with suppress(psutil.Error):
        return candidate is not None and worker_daemon.MODULE in candidate.cmdline()
    return False


@pytest.mark.rotates(3)
def test_a_stream_is_written_by_the_executors_of_a_cluster(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events
):
    stream.produce([*events(range(3000)), *BAD], partitions=4)
    declare(stream, spark_cluster)
    assert caught_up(stream).returncode == 0
    check_exact(stream, range(3000), rejected=BAD)


SPECULATION = {"": "true", ".interval": "100ms", ".minTaskRuntime": "1s", ".quantile": "0.5"}


def spark(properties: dict[str, str]) -> str:
    return f", spark: {json.dumps(properties)}"


@pytest.mark.soak
def test_tasks_lose_nothing_and_leave_no_file_whatever_becomes_of_executors(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events, eventually: Any
):
    declare(stream, spark_cluster, resources=spark({f"spark.speculation{k}": v for k, v in SPECULATION.items()}))
    stream.produce([*events(range(1000)), *BAD], partitions=4)
    with running(stream):
        eventually(lambda: stream.has_rows(1000))
        # A loser of speculation: its copy, on the other worker, is committed while it sleeps.
        (loser,) = eventually(lambda: python_workers(spark_cluster.workers[0]))
        loser.suspend()
        stream.produce(events(range(1000, 3000)), partitions=4)
        eventually(lambda: stream.has_rows(3000))
        loser.resume()
        eventually(lambda: has_ended(loser))
        # An executor that is killed during a stage.
        (killed,) = executors(spark_cluster.workers[1])
        (asleep,) = eventually(lambda: python_workers(spark_cluster.workers[1]))
        asleep.suspend()
        stream.produce(events(range(3000, 5000)), partitions=4)
        eventually(lambda: staging(stream))
        killed.kill()
        eventually(lambda: stream.has_rows(5000))
        with suppress(psutil.NoSuchProcess):
            asleep.resume()
        eventually(lambda: has_ended(asleep))
    check_exact(stream, range(5000), rejected=BAD)


@pytest.mark.soak
def test_a_worker_that_dies_during_a_stage_is_replaced_by_one_that_joins(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events, eventually: Any
):
    declare(stream, spark_cluster)
    stream.produce(events(range(1000)), partitions=4)
    first = spark_cluster.workers[0]
    with running(stream):
        eventually(lambda: stream.has_rows(1000))
        for asleep in eventually(lambda: python_workers(first)):
            asleep.suspend()
        stream.produce(events(range(1000, 3000)), partitions=4)
        eventually(lambda: staging(stream))
        first.kill()
        eventually(lambda: stream.has_rows(3000))
        first.start()
        spark_cluster.workers[1].kill()
        stream.produce(events(range(3000, 5000)), partitions=4)
        eventually(lambda: stream.has_rows(5000))
        spark_cluster.workers[1].start()
    check_exact(stream, range(5000))


@pytest.mark.soak
def test_a_writer_continues_during_and_after_an_outage_of_its_spark_master(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events, eventually: Any
):
    declare(stream, spark_cluster)
    stream.produce(events(range(1000)), partitions=4)
    with running(stream) as (writer, _):
        eventually(lambda: stream.has_rows(1000))
        spark_cluster.master.kill()
        stream.produce(events(range(1000, 2000)), partitions=4)
        eventually(lambda: stream.has_rows(2000))
        spark_cluster.master.start()
        # A new executor, so that the master is known to know the writer.
        (killed,) = executors(spark_cluster.workers[0])
        killed.kill()
        eventually(lambda: [found for found in executors(spark_cluster.workers[0]) if found != killed])
        stream.produce(events(range(2000, 3000)), partitions=4)
        eventually(lambda: stream.has_rows(3000))
        assert writer.poll() is None
    check_exact(stream, range(3000))


@pytest.mark.soak
def test_a_batch_without_workers_is_reported_and_continues_with_new_workers(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events, eventually: Any
):
    declare(stream, spark_cluster)
    stream.produce(events(range(1000)), partitions=4)
    with running(stream) as (_, said):
        eventually(lambda: stream.has_rows(1000))
        for worker in spark_cluster.workers:
            worker.kill()
        stream.produce(events(range(1000, 2000)), partitions=4)
        eventually(lambda: any("no executor is left, and spark://" in line for line in said), within_s=180)
        for worker in spark_cluster.workers:
            worker.start()
        eventually(lambda: stream.has_rows(2000))
    check_exact(stream, range(2000))


@pytest.mark.soak
def test_a_shuffle_whose_executor_dies_between_reading_and_writing_is_run_again(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events, eventually: Any
):
    declare(stream, spark_cluster, extra="distribution: hash\n")
    stream.produce(events(range(1000)), partitions=4)
    with running(stream):
        eventually(lambda: stream.has_rows(1000))
        for last in (20_000, 40_000, 60_000):
            stream.produce(events(range(last - 20_000 + 1000, last + 1000)), partitions=4)
            eventually(lambda: staging(stream))
            for killed in executors(spark_cluster.workers[0]):
                killed.kill()
            eventually(lambda last=last: stream.has_rows(last + 1000))
    check_exact(stream, range(61_000))


@pytest.mark.soak
def test_executors_come_and_go_by_dynamic_allocation(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events, eventually: Any
):
    allocation = {"enabled": "true", "minExecutors": "0", "executorIdleTimeout": "2s"}
    declare(stream, spark_cluster, resources=spark({f"spark.dynamicAllocation.{k}": v for k, v in allocation.items()}))
    with running(stream):
        for last in (1000, 2000, 3000):
            stream.produce(events(range(last - 1000, last)), partitions=4)
            eventually(lambda last=last: stream.has_rows(last))
            eventually(lambda: not any(executors(worker) for worker in spark_cluster.workers))
    check_exact(stream, range(3000))


@pytest.mark.soak
def test_executors_without_frazil_are_refused_before_the_take_over(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events
):
    stream.produce(events(range(10)), partitions=4)
    declare(stream, spark_cluster, resources=spark({"spark.pyspark.python": "/usr/bin/python3"}))
    done = caught_up(stream)
    assert done.returncode == EnvironmentUnusable.exit_code
    assert "their Python /usr/bin/python3 has no frazil. The driver is Python 3.11 with frazil" in done.stderr
    assert "(epoch 1)" not in done.stderr


@pytest.mark.soak
def test_executors_need_only_the_package(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events, tmp_path: Path
):
    made = CliRunner().invoke(frazil, ["package", str(tmp_path / "package.tar.gz"), "--storage", "s3"])
    assert "MiB, for tables in folders, s3" in made.stdout, made.output
    stream.produce([*events(range(3000)), *BAD], partitions=4)
    declare(stream, spark_cluster, resources=f", package: {tmp_path}/package.tar.gz")
    done = caught_up(stream)
    assert done.returncode == 0
    assert "had to be compiled" not in done.stderr
    check_exact(stream, range(3000), rejected=BAD)
