"""Writers whose tasks run on a standalone Spark cluster: what dies there, and what does not fit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from typing import Any

import psutil

from frazil.dev.spark_cluster import EmbeddedSparkCluster

from .exactness import check_exact

BAD = [b"not json", b"[]", None]
Events = Callable[[Iterable[int]], Iterator[bytes]]


def declare(stream: Any, cluster: EmbeddedSparkCluster, *, resources: str = "", extra: str = "") -> None:
    stream.declare(
        f"resources: {{master: '{cluster.master.address}', cores: 2{resources}}}\ncommit: {{interval: 1s}}\n{extra}"
    )


def caught_up(stream: Any) -> subprocess.CompletedProcess[str]:
    """The writer's process, to its end."""
    command = stream.command("--until-caught-up")
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    print(done.stderr[-8000:])
    return done


def test_the_cluster_listens_on_loopback_alone(spark_cluster: EmbeddedSparkCluster):
    processes = [psutil.Process(found.pid) for s in spark_cluster.servers.values() if (found := s.server())]
    ips = {c.laddr.ip for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
    assert {ip_address(ip.removeprefix("::ffff:")).is_loopback for ip in ips} == {True}


def test_a_stream_is_written_by_the_executors_of_a_cluster(
    stream: Any, spark_cluster: EmbeddedSparkCluster, events: Events
):
    stream.produce([*events(range(3000)), *BAD], partitions=4)
    declare(stream, spark_cluster)
    assert caught_up(stream).returncode == 0
    check_exact(stream, range(3000), rejected=BAD)
