"""The model of a writer's resources, on this host or on a Spark cluster."""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, Field

from frazil.spec.values import Bytes, IntegerBounds, Model, Properties, YamlForm

LOCAL = "local[*]"
YARN = "yarn"
KUBERNETES = "k8s://"
IMAGE_PROPERTIES = frozenset({"spark.kubernetes.container.image", "spark.kubernetes.executor.container.image"})
"""Spark properties for the image of executors. On Kubernetes, one of them must be set."""
_STANDALONE = re.compile(r"spark://[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*")
_KUBERNETES = re.compile(r"k8s://(https?://)?[^\s,:/]+(:\d{1,5})?(/[^\s,]*)?")
_ALLOWED_MASTERS = f"{LOCAL} for this host, or spark://host:port, yarn or k8s://https://host:port of a cluster"


Cores = Annotated[int, IntegerBounds(1, 100_000)]


class DeployMode(StrEnum):
    """The location of a writer's driver."""

    CLIENT = "client"
    CLUSTER = "cluster"


class ClusterManager(StrEnum):
    STANDALONE = "a standalone cluster"
    YARN = "YARN"
    KUBERNETES = "Kubernetes"


def _check_master(value: str) -> str:
    if value in {LOCAL, YARN} or _STANDALONE.fullmatch(value) or _KUBERNETES.fullmatch(value):
        return value
    if value.startswith("local"):
        raise ValueError(f"is not {LOCAL}; write {LOCAL}, and set the number of concurrent tasks with resources.cores")
    if value.startswith("yarn"):
        raise ValueError(
            f"is not {YARN}; write {YARN}, and set HADOOP_CONF_DIR to the configuration with the ResourceManager's "
            "address"
        )
    raise ValueError(f"is not a master; write {_ALLOWED_MASTERS}")


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


class Resources(Model):
    """The writer's resources, on this host or on a Spark cluster."""

    master: Annotated[
        str,
        AfterValidator(_check_master),
        YamlForm("`local[*]`, `spark://host:port`, `yarn` or `k8s://https://host:port`"),
    ] = LOCAL
    """Executors of the tasks: this host, a standalone cluster (several masters: `spark://host:port,host:port`), the
    YARN cluster of `HADOOP_CONF_DIR`, or Kubernetes.
    """
    deploy_mode: DeployMode = DeployMode.CLIENT
    """Whether the driver runs on this host, or in the cluster, where it outlives this host."""
    rest_port: Annotated[int, IntegerBounds(1, 65_535)] = 6066
    """Port of the masters' REST servers, for `deploy-mode: cluster` on a standalone cluster."""
    cores: Cores = 2
    """Concurrent tasks; on a cluster, of all executors together."""
    driver_memory: Bytes = 1 * 2**30
    """Heap of the driver's JVM."""
    executor_cores: Cores = 1
    """Concurrent tasks of one executor on a cluster, a divisor of `cores`."""
    executor_memory: Bytes = 512 * 2**20
    """Heap of an executor's JVM on a cluster. Records are outside it, in Python processes."""
    package: str | None = Field(default=None, min_length=1)
    """Path or URL of `frazil package`'s archive on a cluster. Without it, executors need it at the driver's path."""
    spark: Properties = Field(default_factory=dict)
    """Other Spark properties."""

    @property
    def on_cluster(self) -> bool:
        return self.master != LOCAL

    @property
    def on_loopback(self) -> bool:
        """Whether all masters of a standalone cluster listen on loopback, so its workers run on this host."""
        if not self.master.startswith("spark://"):
            return False
        hosts = [address.rpartition(":")[0] for address in self.master.removeprefix("spark://").split(",")]
        return all(host == "localhost" or _is_loopback(host) for host in hosts)

    @property
    def driver_in_cluster(self) -> bool:
        return self.on_cluster and self.deploy_mode is DeployMode.CLUSTER

    @property
    def manager(self) -> ClusterManager | None:
        if self.master == LOCAL:
            return None
        if self.master == YARN:
            return ClusterManager.YARN
        return ClusterManager.KUBERNETES if self.master.startswith(KUBERNETES) else ClusterManager.STANDALONE
